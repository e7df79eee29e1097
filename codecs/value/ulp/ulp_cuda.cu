#include "codecs/value/ulp/ulp_decode_tile.hpp"
#include "codecs/value/ulp/ulp_encode_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::ulp_symbols, dr::ulp_common)
DR_DEVICE_JOB_KERNEL(dr::ulp_count, dr::ulp_common)
DR_DEVICE_JOB_KERNEL(dr::ulp_chain, dr::ulp_common)
DR_DEVICE_JOB_KERNEL(dr::ulp_pack, dr::ulp_common)
DR_DEVICE_JOB_KERNEL(dr::ulp_apart, dr::ulp_common)
DR_DEVICE_JOB_KERNEL(dr::ulp_open, dr::ulp_common)
DR_DEVICE_JOB_KERNEL(dr::ulp_values, dr::ulp_common)
