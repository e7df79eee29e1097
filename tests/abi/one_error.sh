#!/bin/sh
# A compiler says one error, with these words, and no more:  one_error.sh WORDS COMPILER [ARGUMENT…]
words=$1
shift
said=$(LC_ALL=C "$@" 2>&1) && { echo 'it compiles'; exit 1; }
[ "$(printf '%s\n' "$said" | grep -c 'error:')" = 1 ] && printf '%s\n' "$said" | grep -q "error:.*$words" && exit
printf '%s\n' "$said" | head -n 20
exit 1
