#include "codecs/order/bitpack/bitpack_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::bitpack_encode, dr::bitpack_common)
DR_DEVICE_JOB_KERNEL(dr::bitpack_decode, dr::bitpack_common)
