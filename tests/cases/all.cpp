// The written list of cases, in the order of the codecs' own (codecs/builtin.cpp). A file a codec: ROLE_NAME.cpp.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <stdexcept>

#include "cases/case.hpp"

namespace dr::cases {

codec_case index_raw(), index_golomb(), index_rice(), index_bloom();
codec_case index_bitmap(), index_rle(), index_elias_fano(), index_delta_varint(), index_delta_bitpack(),
    index_delta_pfor(), index_gap_huffman(), index_seeded(), index_all(), index_magnitude(), index_history(),
    index_chunks();
codec_case value_raw(), value_qsgd(), value_fit_poly(), value_half(), value_sketch(), value_three_lc(),
    value_fit_dexp(), value_rank_fit(), value_uniform_quant(), value_log_quant(), value_lloyd(), value_sign(),
    value_ternary(), value_natural(), value_dynamic_tree(), value_inceptionn(), value_ulp(), value_xor(),
    value_planes(), value_history();
codec_case order_bitpack();
codec_case bytes_deflate(), bytes_zstd(), bytes_huffman();

std::span<const codec_case> all() {
  static const codec_case list[] = {
      index_raw(),          index_golomb(),     index_rice(),         index_bloom(),         index_bitmap(),
      index_rle(),          index_elias_fano(), index_delta_varint(), index_delta_bitpack(), index_delta_pfor(),
      index_gap_huffman(),  index_seeded(),     index_all(),          index_magnitude(),     index_history(),
      index_chunks(),       value_raw(),        value_qsgd(),         value_fit_poly(),      value_half(),
      value_sketch(),       value_three_lc(),   value_fit_dexp(),     value_rank_fit(),      value_uniform_quant(),
      value_log_quant(),    value_lloyd(),      value_sign(),         value_ternary(),       value_natural(),
      value_dynamic_tree(), value_inceptionn(), value_ulp(),          value_xor(),           value_planes(),
      value_history(),      order_bitpack(),    bytes_deflate(),      bytes_zstd(),          bytes_huffman()};
  return list;
}

namespace {

std::string title(dr_role role, std::string_view name) {
  constexpr std::string_view roles[] = {"", "index", "value", "order", "bytes"};
  static_assert(DR_ROLE_INDEX == 1 && DR_ROLE_VALUE == 2 && DR_ROLE_ORDER == 3 && DR_ROLE_BYTES == 4);
  return std::string(roles[role]) + "/" + std::string(name);
}

std::set<std::string> asked_titles() {
  std::set<std::string> titles;
  const char* text = std::getenv("DEEPREDUCE_CASES");
  for (std::string_view rest = text ? text : ""; !rest.empty();) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string_view one = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (std::ranges::none_of(all(), [&](const codec_case& c) { return title(c.role, c.name) == one; }))
      throw std::invalid_argument("DEEPREDUCE_CASES: no case " + std::string(one));
    titles.emplace(one);
  }
  return titles;
}

}  // namespace

bool is_asked_for(dr_role role, std::string_view name) {
  static const std::set<std::string> titles = asked_titles();
  return titles.empty() || titles.contains(title(role, name));
}

}  // namespace dr::cases
