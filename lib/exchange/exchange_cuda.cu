// An exchange's own kernels, for a GPU.
#include "cuda/entry.cuh"
#include "exchange/sum_tile.hpp"

DR_DEVICE_KERNEL(dr::round_values_of<dr::jobs_few>)
DR_DEVICE_KERNEL(dr::round_values_of<dr::jobs_many>)
DR_DEVICE_KERNEL(dr::add_values_to<dr::jobs_few>)
DR_DEVICE_KERNEL(dr::add_values_to<dr::jobs_many>)
