#include "codecs/value/sign/sign_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::sign_encode, dr::sign_common)
DR_DEVICE_JOB_KERNEL(dr::sign_decode, dr::sign_common)
