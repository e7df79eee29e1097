#!/bin/sh
# nvcc.sh REPORT NVCC ARGUMENT…: compiles, and keeps what ptxas reports of registers and spills.
report=$1
shift
"$@" >"$report" 2>&1 || { cat "$report" >&2; exit 1; }
grep -v -e ptxas -e '^ *[0-9]* bytes stack frame' "$report" >&2 || true
