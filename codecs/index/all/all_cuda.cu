#include "codecs/index/all/all_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::all_encode, dr::all_common)
DR_DEVICE_JOB_KERNEL(dr::all_decode, dr::all_common)
