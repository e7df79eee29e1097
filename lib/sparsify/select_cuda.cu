// Selection, for a GPU.
#include "cuda/entry.cuh"
#include "sparsify/select_tile.hpp"

#define DR_SELECT(BITS, N)                            \
  DR_DEVICE_KERNEL(dr::select_solve<BITS, N>)         \
  DR_DEVICE_KERNEL(dr::select_bracket<BITS, N>)       \
  DR_DEVICE_KERNEL(dr::select_chunks<BITS, N>)        \
  DR_DEVICE_KERNEL(dr::select_filter<BITS, false, N>) \
  DR_DEVICE_KERNEL(dr::select_filter<BITS, true, N>)  \
  DR_DEVICE_KERNEL(dr::select_survey<BITS, false, N>) \
  DR_DEVICE_KERNEL(dr::select_survey<BITS, true, N>)  \
  DR_DEVICE_KERNEL(dr::select_refine<BITS, N>)        \
  DR_DEVICE_KERNEL(dr::select_compact<BITS, N>)       \
  DR_DEVICE_KERNEL(dr::select_fallback<BITS, N>)
DR_SELECT(uint32_t, dr::jobs_few)
DR_SELECT(uint32_t, dr::jobs_many)
DR_SELECT(uint16_t, dr::jobs_few)
DR_SELECT(uint16_t, dr::jobs_many)

DR_DEVICE_JOB_KERNEL(dr::select_adopt, dr::adopt_common)
DR_DEVICE_JOB_KERNEL(dr::select_draw, dr::draw_common)
