#include "codecs/value/raw/value_raw_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::value_raw_copy, dr::value_raw_common)
