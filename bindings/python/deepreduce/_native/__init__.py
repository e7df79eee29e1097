"""What speaks to the C library, to the program `deepreduce`, and to memory."""
