"""Access to the C library, to the program `deepreduce`, and to the memory of arrays."""
