/* One public header, alone and twice, as C11: compiled by a test with -DHEADER="…" -pedantic-errors -Werror. */
#include HEADER
#include HEADER

extern int not_an_empty_file;
