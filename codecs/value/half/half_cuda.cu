#include "codecs/value/half/half_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::half_encode, dr::half_common)
DR_DEVICE_JOB_KERNEL(dr::half_decode, dr::half_common)
