#include "codecs/value/fit_poly/fit_poly_decode_tile.hpp"
#include "codecs/value/fit_poly/fit_poly_encode_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::fit_poly_keys, dr::fit_poly_common)
DR_DEVICE_JOB_KERNEL(dr::fit_poly_fit_sorted, dr::fit_poly_common)
DR_DEVICE_JOB_KERNEL(dr::fit_poly_encode_small, dr::fit_poly_common)
DR_DEVICE_JOB_KERNEL(dr::fit_poly_decode, dr::fit_poly_common)
