#!/usr/bin/env bash
# A Meson project outside of the tree that has this one as a subproject: it gets the library, and neither tests nor the tool.
#   subproject.sh SOURCE
# Builds the consumer's object only: the library takes minutes. With DEEPREDUCE_TEST_SUBPROJECT set all is built and run.
set -euo pipefail

source=$(cd "$1" && pwd)
fail() { echo "FAIL: $*"; exit 1; }

for tool in meson ninja python3; do
  command -v "$tool" >/dev/null || { echo "skipped: no $tool"; exit 77; }
done
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/subprojects"
ln -s "$source" "$place/subprojects/deepreduce"
cp "$source/tests/install/meson_consumer/meson.build" "$source/examples/encode.c" "$place/"

cd "$place"
meson setup build --buildtype=release --force-fallback-for=deepreduce -Ddeepreduce:cuda=disabled >log 2>&1 || { cat log; fail 'meson setup'; }
targets=$(meson introspect --targets build | python3 -c 'import json, sys; print(*sorted({each["name"] for each in json.load(sys.stdin)}))')
[[ $targets == 'consumer deepreduce deepreduce_engine' ]] || fail "targets of the whole: $targets"
tests=$(meson introspect --tests build)
[[ $tests == '[]' ]] || fail "tests of the subproject are the consumer's: $tests"

object=$(ninja -C build -t targets all | sed -n 's/^\(consumer\.p\/.*\.o\): .*/\1/p')
[[ $object ]] || fail 'the consumer has no object'
ninja -C build "$object" >log 2>&1 || { cat log; fail "the consumer's object"; }
if [[ ${DEEPREDUCE_TEST_SUBPROJECT-} ]]; then
  ninja -C build >log 2>&1 || { tail -n 40 log; fail 'ninja'; }
  build/consumer || fail "the consumer exits with $?"
fi
echo "configured as a subproject: $targets"
