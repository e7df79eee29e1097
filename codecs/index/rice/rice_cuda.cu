#include "codecs/family/golomb/golomb_decode_tile.hpp"
#include "codecs/family/golomb/golomb_encode_tile.hpp"
#include "cuda/entry.cuh"

DR_DEVICE_JOB_KERNEL(dr::golomb_encode_tile, dr::golomb_common<dr::rice_rule, dr::golomb_block_log2>)
DR_DEVICE_JOB_KERNEL(dr::golomb_decode_tile, dr::golomb_common<dr::rice_rule, dr::golomb_block_log2>)
DR_DEVICE_JOB_KERNEL(dr::golomb_sum_groups, dr::golomb_common<dr::rice_rule, dr::golomb_block_log2>)
DR_DEVICE_JOB_KERNEL(dr::golomb_encode_tile, dr::golomb_common<dr::rice_rule, dr::golomb_block_log2_max>)
DR_DEVICE_JOB_KERNEL(dr::golomb_decode_tile, dr::golomb_common<dr::rice_rule, dr::golomb_block_log2_max>)
DR_DEVICE_JOB_KERNEL(dr::golomb_sum_groups, dr::golomb_common<dr::rice_rule, dr::golomb_block_log2_max>)
