#include "codecs/index/bloom/bloom_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::bloom_build, dr::bloom_common)
DR_DEVICE_JOB_KERNEL(dr::bloom_tell, dr::bloom_common)
DR_DEVICE_JOB_KERNEL(dr::bloom_decode, dr::bloom_common)
