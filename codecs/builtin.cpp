// The written list of built-ins (linkers drop static initialisers), in the order in which users see them.
#include "codecs/builtin.hpp"

#include "codecs/sparsifiers.hpp"
#include "core/registry.hpp"
#include "feedback/feedback_kinds.hpp"

namespace dr {

std::span<const dr_codec* const> builtin_codecs() {
  static constexpr const dr_codec* list[] = {
      // sparsify, feedback
      &none_sparsifier.entry, &topr_sparsifier.entry, &threshold_sparsifier.entry, &random_sparsifier.entry,
      &dgc_sparsifier.entry, &blocks_sparsifier.entry, &adaq_sparsifier.entry, &changed_sparsifier.entry,
      &chunks_sparsifier.entry, &visible_sparsifier.entry, &residual_feedback.entry, &efsignsgd_feedback.entry,
      &dgc_feedback.entry, &momentum_feedback.entry,
      // index
      &index_raw_codec, &golomb_codec, &rice_codec, &bloom_codec, &bitmap_codec, &rle_codec, &elias_fano_codec,
      &delta_varint_codec, &delta_bitpack_codec, &delta_pfor_codec, &gap_huffman_codec, &seeded_codec, &all_codec,
      &block_codec, &magnitude_codec, &index_history_codec, &index_chunks_codec,
      // value, order, bytes
      &value_raw_codec, &qsgd_codec, &fit_poly_codec, &half_codec, &sketch_codec, &three_lc_codec, &fit_dexp_codec,
      &rank_fit_codec, &uniform_quant_codec, &log_quant_codec, &lloyd_codec, &sign_codec, &ternary_codec,
      &natural_codec, &dynamic_tree_codec, &inceptionn_codec, &ulp_codec, &xor_codec, &planes_codec,
      &value_history_codec, &bitpack_codec, &deflate_codec, &zstd_codec, &huffman_codec};
  return list;
}

std::span<const codec_notes* const> builtin_notes() {
  static constexpr const codec_notes* list[] = {
      // index
      &golomb_notes, &rice_notes, &bitmap_notes, &rle_notes, &gap_huffman_notes, &magnitude_notes, &seeded_notes,
      // value: raw meets any error
      &uniform_quant_notes, &log_quant_notes, &half_notes, &value_raw_notes, &ulp_notes, &xor_notes,
      // not tried
      &qsgd_notes, &lloyd_notes, &sign_notes, &ternary_notes, &fit_poly_notes};
  return list;
}

}  // namespace dr
