#include "codecs/value/qsgd/qsgd_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::qsgd_encode, dr::qsgd_common)
DR_DEVICE_JOB_KERNEL(dr::qsgd_decode, dr::qsgd_common)
