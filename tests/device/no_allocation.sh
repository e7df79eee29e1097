#!/bin/sh
# What codecs do on the way to a GPU neither allocates, copies, waits, prints nor throws: their objects do not even know the functions.
#   no_allocation.sh ENGINE      the archive with all objects
command -v nm >/dev/null || { echo 'skipped: no nm'; exit 77; }
forbidden='cuda(Malloc|Free|Memcpy|Memset|HostAlloc|HostRegister|DeviceSynchronize|StreamSynchronize|StreamWait|StreamQuery|EventSynchronize|Launch).*'
forbidden="$forbidden|malloc|calloc|realloc|aligned_alloc|posix_memalign|_Zn[wa].*|mmap|printf|fprintf|puts|abort|exit|__cxa_throw|_ZSt[0-9]+__throw.*"
undefined=$(mktemp) && trap 'rm -f "$undefined"' EXIT
# "ARCHIVE:MEMBER: U SYMBOL", or "ARCHIVE[MEMBER]: …"
nm -A -u "$1" 2>/dev/null | sed -n 's/^[^ ]*[:[]\([^] :]*\)\]\{0,1\}: *[Uw] \([^@ ]*\).*/\1 \2/p' >"$undefined"
# The emulator allocates: a test that cannot see it sees nothing. (A fast build compiles it with its folder.)
grep -Eq "_(lib_cuda_emulator|all_of_cuda)\.cpp\.o ($forbidden)$" "$undefined" || { echo 'this test does not see what the emulator allocates'; exit 1; }
objects='^(.*_codecs_.*_device\.cpp\.o|.*_cuda\.o) '
grep -Eq "$objects" "$undefined" || { echo 'no codec has CUDA operations?'; exit 1; }
if grep -E "$objects($forbidden)$" "$undefined"; then exit 1; fi
grep -E "$objects" "$undefined" | cut -d' ' -f1 | sort -u | wc -l | sed 's/$/ objects/'
