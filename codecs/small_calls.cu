#include "codecs/small_calls.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_KERNEL(dr::small_encode)
DR_DEVICE_KERNEL(dr::small_decode)
