#include "codecs/index/raw/index_raw_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::index_raw_encode, dr::index_raw_common)
DR_DEVICE_JOB_KERNEL(dr::index_raw_decode, dr::index_raw_common)
