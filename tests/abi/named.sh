#!/bin/sh
# Each exported function is named in the headers for C++ and in docs/C_API.md:  named.sh SOURCE
status=0
while read -r name; do
  grep -qw "$name" "$1"/include/deepreduce/*.hpp || { echo "$name: in no include/deepreduce/*.hpp"; status=1; }
  grep -qw "$name" "$1/docs/C_API.md" || { echo "$name: not in docs/C_API.md"; status=1; }
done <"$1/tests/abi/symbols.txt"
exit $status
