/* Encodes that a CUDA graph replays: a graph repeats what its capture was given, and so would draw the same random
 * numbers at every replay. */
#ifndef DEEPREDUCE_GRAPH_H
#define DEEPREDUCE_GRAPH_H

#include "deepreduce.h"

enum {
  /* A flag of dr_call: `step` is the address of a uint64_t that holds the step, in memory of the place. It is read when
   * the encode runs, so a kernel may count there between replays. With DR_CALL_TAG the frame's tag is `tag` plus that
   * step. On a GPU it takes one launch more. ARGUMENT: the address is NULL, or not aligned to 8. For dr_encode,
   * dr_batch_encode and dr_binding_encode */
  DR_CALL_STEP_AT = 1u << 4
};

#endif
