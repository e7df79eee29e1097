#!/bin/sh
# The library exports the functions of symbols.txt, no fewer and no more:  symbols.sh LIBRARY SYMBOLS
command -v nm >/dev/null || { echo 'skipped: no nm'; exit 77; }
found=$(mktemp) && trap 'rm -f "$found"' EXIT
nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $NF); print $NF }' | LC_ALL=C sort >"$found"
[ -s "$found" ] || { echo "nm finds no symbol in $1"; exit 1; }
diff -u "$2" "$found" || { echo 'A function that went away or came in without a word. If it is meant, write it into symbols.txt'; exit 1; }
