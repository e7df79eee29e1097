#include "codecs/value/ternary/ternary_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::ternary_survey, dr::ternary_common)
DR_DEVICE_JOB_KERNEL(dr::ternary_measure, dr::ternary_common)
DR_DEVICE_JOB_KERNEL(dr::ternary_encode, dr::ternary_common)
DR_DEVICE_JOB_KERNEL(dr::ternary_decode, dr::ternary_common)
