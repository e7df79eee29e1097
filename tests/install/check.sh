#!/usr/bin/env bash
# Installs a build into an empty folder and uses it as a stranger would.
#   check.sh BUILD SOURCE
set -euo pipefail

build=$(cd "$1" && pwd)
source=$(cd "$2" && pwd)
version_h=$source/include/deepreduce/version.h
map=$source/capi/deepreduce.map

fail() { echo "FAIL: $*"; exit 1; }
skip() { echo "skipped: $*"; exit 77; }

for tool in meson pkg-config readelf nm "${CC:=cc}"; do
  command -v "${tool%% *}" >/dev/null || skip "no $tool"
done
options=$(meson introspect --buildoptions "$build" | tr -d ' \n')

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
DESTDIR=$stage meson install --no-rebuild -C "$build" >"$stage/install.log" 2>&1 ||
  { cat "$stage/install.log"; fail 'meson install'; }

pc=$(find "$stage" -name deepreduce.pc)
[[ $pc && $pc != *$'\n'* ]] || fail "one deepreduce.pc expected, found: ${pc:-none}"
libdir=$(dirname "$(dirname "$pc")")
library=$libdir/libdeepreduce.so
[[ -e $library ]] || fail "no libdeepreduce.so beside $pc"

# Every public header is installed. meson.build lists them.
headers=$(find "$stage" -path '*/include/deepreduce/*' -printf '%f\n' | sort)
[[ $headers == "$(cd "$source/include/deepreduce" && printf '%s\n' *.h *.hpp | sort)" ]] || fail "installed headers: ${headers//$'\n'/ }"

# The soname is the ABI version.
abi=$(awk '$2 == "DR_ABI_VERSION" { print $3 }' "$version_h")
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[[ $soname == "libdeepreduce.so.$abi" ]] || fail "soname is '$soname', DR_ABI_VERSION is '$abi'"
[[ -e $libdir/$soname ]] || fail "$soname was not installed"
version=$(awk '$2 == "DR_VERSION_STRING" { gsub(/"/, "", $3); print $3 }' "$version_h")
found=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --modversion deepreduce)
[[ $found == "$version" ]] || fail "pkg-config says version $found, version.h says $version"

# Exported: dr_* under the version node, the node, and nothing else.
node=$(sed -n 's/^\([A-Za-z0-9_.]*\) *{.*/\1/p' "$map" | head -n 1)
[[ $node ]] || fail "no version node in $map"
symbols=$(nm -D --defined-only --with-symbol-versions "$library" | awk '{ print $NF }')
strangers=$(grep -vxE "dr_[a-z0-9_]+@@$node|$node(@@$node)?" <<<"$symbols" || true)
[[ ! $strangers ]] || fail "exported beside dr_*@@$node: ${strangers//$'\n'/ }"
grep -q "^dr_encode@@$node$" <<<"$symbols" || fail "dr_encode is not exported under $node"

# Hardened: stack protectors, checked calls of the C library (where it is optimized), full RELRO, no executable stack.
check_hardened() {
  local file=$1 name=${1##*/} dynamic segments calls
  dynamic=$(readelf -dW "$file") segments=$(readelf -lW "$file") calls=$(nm -D "$file")
  grep -qE '\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW' <<<"$dynamic" || fail "$name binds its functions lazily"
  grep -q GNU_RELRO <<<"$segments" || fail "$name has no RELRO"
  if grep GNU_STACK <<<"$segments" | grep -q E; then fail "$name has an executable stack"; fi
  grep -q __stack_chk_fail <<<"$calls" || fail "$name has no stack protector"
  if [[ $options == *'"name":"optimization","value":"0"'* ]]; then return; fi
  grep -qE ' __[a-z]+_chk(@|$)' <<<"$calls" || fail "$name makes no checked call: _FORTIFY_SOURCE"
}
check_hardened "$library"

# A C program that knows only pkg-config.
export PKG_CONFIG_PATH=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$stage
read -ra flags <<<"$(pkg-config --cflags --libs deepreduce)"
read -ra compiler <<<"$CC"
"${compiler[@]}" -std=c11 -Wall -Wextra -Werror "$source/examples/encode.c" "${flags[@]}" -o "$stage/example" ||
  fail "encode.c does not compile with: ${flags[*]}"
LD_LIBRARY_PATH=$libdir "$stage/example" || fail "encode.c exits with $?"

# The examples in C and C++ (those for MPI: tests/mpi), compiled in the same way.
read -ra compiler_of_cpp <<<"${CXX:=c++}"
for example in feedback.c model_batch.cpp unix_mean.c elastic_ranks.c loopback_ranks.cpp; do
  language=("${compiler[@]}" -std=gnu11)
  if [[ $example == *.cpp ]]; then language=("${compiler_of_cpp[@]}" -std=c++20); fi
  "${language[@]}" -O1 -Wall -Wextra -Werror "$source/examples/$example" "${flags[@]}" -lm -o "$stage/program" ||
    fail "examples/$example does not compile with: ${flags[*]}"
  status=0
  arguments=()
  if [[ $example == unix_mean.c ]]; then arguments=(3 'index=all value=raw'); fi # frames larger than a socket takes
  LD_LIBRARY_PATH=$libdir "$stage/program" "${arguments[@]}" >"$stage/said" || status=$?
  ((status == 0)) || { cat "$stage/said"; fail "examples/$example exits with $status"; }
done

# The .pc asks for no other package, for a program that links the shared library; and for zlib and Zstandard beside the archive,
# which are in what a static program links and not in what a dynamic one does.
needed=()
if [[ -e $libdir/libdeepreduce.a ]]; then needed=(zlib libzstd); fi
mkdir "$stage/pc"
cp "$pc" "$stage/pc/"
for each in "${needed[@]}"; do cp "$(pkg-config --variable=pcfiledir "$each")/$each.pc" "$stage/pc/"; done
read -ra found <<<"$(unset PKG_CONFIG_PATH && PKG_CONFIG_LIBDIR=$stage/pc pkg-config --cflags --libs deepreduce 2>&1)"
[[ ${found[*]} == "${flags[*]}" ]] || fail "pkg-config with ${needed[*]:-no other package} says: ${found[*]}"
[[ ${flags[*]} != *eigen* ]] || fail "pkg-config names Eigen: ${flags[*]}"
for each in -lz -lzstd -lstdc++; do
  [[ " ${flags[*]} " != *" $each "* ]] || fail "pkg-config names $each for a dynamic program: ${flags[*]}"
  [[ ! ${needed[*]} || " $(pkg-config --static --libs deepreduce) " == *" $each "* ]] || fail "pkg-config --static does not name $each"
done
if [[ ${needed[*]} ]]; then
  # As docs/INSTALL.md has it: beside a shared library -ldeepreduce would be that.
  read -ra archive <<<"$(pkg-config --cflags --static --libs deepreduce | sed 's/-ldeepreduce/-l:libdeepreduce.a/')"
  "${compiler[@]}" -std=c11 "$source/examples/encode.c" "${archive[@]}" -o "$stage/static" || fail 'a static program does not link'
  "$stage/static" || fail "a static program exits with $?"
  if readelf -d "$stage/static" | grep -q libdeepreduce; then fail 'a static program loads libdeepreduce'; fi
fi
# A tree that was moved.
moved=$(unset PKG_CONFIG_SYSROOT_DIR && pkg-config --define-variable=prefix=/elsewhere --cflags --libs deepreduce)
[[ $moved == *-I/elsewhere/include* && $moved == *-L/elsewhere/lib* ]] || fail "pkg-config of a tree moved to /elsewhere: $moved"

# What docs/INSTALL.md shows is what is built here; packages have the library's version.
block() { awk -v "fence=\`\`\`$1" '$0 == fence { inside = 1; next } inside && /^```$/ { exit } inside' "$source/docs/INSTALL.md"; }
diff -u "$source/tests/install/cmake_consumer/CMakeLists.txt" <(block cmake) || fail "docs/INSTALL.md's CMake example"
diff -u "$source/tests/install/meson_consumer/meson.build" <(block meson) || fail "docs/INSTALL.md's Meson example"
packaged=$(sed -n '1s/.*(\(.*\)).*/\1/p' "$source/packaging/debian/changelog")
[[ $packaged == "$version" ]] || fail "packaging/debian/changelog says $packaged, version.h says $version"

# CMake's package, from where it was moved to. A version that is too new is refused.
if command -v cmake >/dev/null; then
  cmake_dir=$(find "$stage" -type d -path '*/cmake/deepreduce')
  cp -r "$source/tests/install/cmake_consumer" "$source/examples/encode.c" "$stage/"
  mv "$stage/encode.c" "$stage/cmake_consumer/"
  configure=(cmake -S "$stage/cmake_consumer" -B "$stage/cmake" -DCMAKE_BUILD_TYPE=Debug "-Ddeepreduce_DIR=$cmake_dir")
  { "${configure[@]}" && cmake --build "$stage/cmake"; } >"$stage/cmake.log" 2>&1 || { cat "$stage/cmake.log"; fail 'CMake consumer'; }
  "$stage/cmake/consumer" || fail "CMake consumer exits with $?"
  sed -i 's/deepreduce 0.2/deepreduce 99.0/' "$stage/cmake_consumer/CMakeLists.txt"
  if "${configure[@]}" >"$stage/cmake.log" 2>&1; then fail "CMake takes $version for 99.0"; fi
  grep -q 'requested version "99.0"' "$stage/cmake.log" || { cat "$stage/cmake.log"; fail 'CMake does not name the version'; }
fi

# The pages that the headers point to, and the licence.
mapfile -t pages < <(find "$stage" -path '*/include/deepreduce/*.h*' -exec grep -ohE '[A-Z_]+\.md' {} + | sort -u)
((${#pages[@]} > 3)) || fail 'the installed headers name no pages'
for page in "${pages[@]}" LICENSE; do
  [[ -s $(find "$stage" -path "*/share/doc/deepreduce/$page") ]] || fail "share/doc/deepreduce/$page was not installed"
done

# The man page and the completions, where shells and man look for them.
if [[ -e $build/packaging/deepreduce.1 ]]; then
  for path in man/man1/deepreduce.1 bash-completion/completions/deepreduce zsh/site-functions/_deepreduce \
    fish/vendor_completions.d/deepreduce.fish; do
    [[ -s $(find "$stage" -path "*/share/$path") ]] || fail "share/$path was not installed"
  done
fi

# The tool, if it was built, finds its library and its codecs.
tool=$(find "$stage" -path '*/bin/deepreduce')
if [[ $tool ]]; then
  LD_LIBRARY_PATH=$libdir "$tool" codecs >"$stage/codecs" || fail "deepreduce codecs exits with $?"
  grep -q golomb "$stage/codecs" || fail 'deepreduce codecs does not list golomb'
  check_hardened "$tool"
fi
echo "installed, linked and run: $soname, $(grep -c '^dr_' <<<"$symbols") functions under $node"
