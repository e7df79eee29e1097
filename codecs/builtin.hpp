// The built-in codecs, one a folder.
#pragma once

#include "core/codec_notes.hpp"
#include "deepreduce/codec.h"

namespace dr {

extern const dr_codec index_raw_codec, golomb_codec, rice_codec, bloom_codec;
extern const dr_codec bitmap_codec, rle_codec, elias_fano_codec, delta_varint_codec, delta_bitpack_codec,
    delta_pfor_codec, gap_huffman_codec, seeded_codec, all_codec, block_codec, magnitude_codec, index_history_codec,
    index_chunks_codec;
extern const dr_codec value_raw_codec, qsgd_codec, fit_poly_codec, half_codec, sketch_codec, three_lc_codec,
    fit_dexp_codec, rank_fit_codec;
extern const dr_codec uniform_quant_codec, log_quant_codec, lloyd_codec;
extern const dr_codec sign_codec, ternary_codec, natural_codec, dynamic_tree_codec, inceptionn_codec, ulp_codec,
    xor_codec, planes_codec, value_history_codec;
extern const dr_codec bitpack_codec;
extern const dr_codec deflate_codec, zstd_codec, huffman_codec;

extern const codec_notes golomb_notes, rice_notes, bitmap_notes, rle_notes, gap_huffman_notes, magnitude_notes,
    seeded_notes;
extern const codec_notes uniform_quant_notes, log_quant_notes, half_notes, value_raw_notes, ulp_notes, xor_notes,
    qsgd_notes, lloyd_notes, sign_notes, ternary_notes, fit_poly_notes;

// Their CUDA operations, in NAME_device.cpp.
extern const dr_ops index_raw_cuda, golomb_cuda, rice_cuda, bloom_cuda, all_cuda;
extern const dr_ops value_raw_cuda, qsgd_cuda, fit_poly_cuda, log_quant_cuda, uniform_quant_cuda, half_cuda, sign_cuda,
    ternary_cuda, lloyd_cuda, ulp_cuda;
extern const dr_ops bitpack_cuda;

}  // namespace dr
