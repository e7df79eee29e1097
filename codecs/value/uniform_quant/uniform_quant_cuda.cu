#include "codecs/value/uniform_quant/uniform_quant_decode_tile.hpp"
#include "codecs/value/uniform_quant/uniform_quant_encode_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::uniform_quant_range, dr::uniform_quant_common)
DR_DEVICE_JOB_KERNEL(dr::uniform_quant_survey, dr::uniform_quant_common)
DR_DEVICE_JOB_KERNEL(dr::uniform_quant_try, dr::uniform_quant_common)
DR_DEVICE_JOB_KERNEL(dr::uniform_quant_error_of_try, dr::uniform_quant_common)
DR_DEVICE_JOB_KERNEL(dr::uniform_quant_verdict, dr::uniform_quant_common)
DR_DEVICE_JOB_KERNEL(dr::uniform_quant_code, dr::uniform_quant_common)
DR_DEVICE_JOB_KERNEL(dr::uniform_quant_open, dr::uniform_quant_common)
DR_DEVICE_JOB_KERNEL(dr::uniform_quant_decode, dr::uniform_quant_common)
