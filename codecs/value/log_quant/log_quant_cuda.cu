#include "codecs/value/log_quant/log_quant_decode_tile.hpp"
#include "codecs/value/log_quant/log_quant_encode_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::log_quant_range, dr::log_quant_common)
DR_DEVICE_JOB_KERNEL(dr::log_quant_levels, dr::log_quant_common)
DR_DEVICE_JOB_KERNEL(dr::log_quant_code, dr::log_quant_common)
DR_DEVICE_JOB_KERNEL(dr::log_quant_open, dr::log_quant_common)
DR_DEVICE_JOB_KERNEL(dr::log_quant_decode, dr::log_quant_common)
