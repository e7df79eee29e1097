#include "codecs/value/lloyd/lloyd_decode_tile.hpp"
#include "codecs/value/lloyd/lloyd_encode_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::lloyd_range, dr::lloyd_common)
DR_DEVICE_JOB_KERNEL(dr::lloyd_sample, dr::lloyd_common)
DR_DEVICE_JOB_KERNEL(dr::lloyd_find, dr::lloyd_common)
DR_DEVICE_JOB_KERNEL(dr::lloyd_quantise, dr::lloyd_common)
DR_DEVICE_JOB_KERNEL(dr::lloyd_code, dr::lloyd_common)
DR_DEVICE_JOB_KERNEL(dr::lloyd_open, dr::lloyd_common)
DR_DEVICE_JOB_KERNEL(dr::lloyd_decode, dr::lloyd_common)
