// The written list of cases, in the order of the codecs' own (codecs/builtin.cpp). A file a codec: ROLE_NAME.cpp.
#include "cases/case.hpp"

namespace dr::cases {

codec_case index_raw(), index_golomb(), index_rice(), index_bloom();
codec_case index_bitmap(), index_rle(), index_elias_fano(), index_delta_varint(), index_delta_bitpack(),
    index_delta_pfor(), index_gap_huffman(), index_seeded(), index_all(), index_magnitude();
codec_case value_raw(), value_qsgd(), value_fit_poly(), value_half(), value_sketch(), value_three_lc(),
    value_fit_dexp(), value_rank_fit(), value_uniform_quant(), value_log_quant(), value_lloyd(), value_sign(),
    value_ternary(), value_natural(), value_dynamic_tree(), value_inceptionn(), value_ulp(), value_xor(),
    value_planes();
codec_case order_bitpack();
codec_case bytes_deflate(), bytes_zstd(), bytes_huffman();

std::span<const codec_case> all() {
  static const codec_case list[] = {
      index_raw(),         index_golomb(),     index_rice(),          index_bloom(),         index_bitmap(),
      index_rle(),         index_elias_fano(), index_delta_varint(),  index_delta_bitpack(), index_delta_pfor(),
      index_gap_huffman(), index_seeded(),     index_all(),           index_magnitude(),     value_raw(),
      value_qsgd(),        value_fit_poly(),   value_half(),          value_sketch(),        value_three_lc(),
      value_fit_dexp(),    value_rank_fit(),   value_uniform_quant(), value_log_quant(),     value_lloyd(),
      value_sign(),        value_ternary(),    value_natural(),       value_dynamic_tree(),  value_inceptionn(),
      value_ulp(),         value_xor(),        value_planes(),        order_bitpack(),       bytes_deflate(),
      bytes_zstd(),        bytes_huffman()};
  return list;
}

}  // namespace dr::cases
