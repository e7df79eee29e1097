#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// Bit by bit.
std::string judge(const observation& o) {
  const auto indices = words(o.in.elements);
  std::vector<uint8_t> widths, bodies;
  uint64_t next = 0;
  for (size_t begin = 0; begin < indices.size(); begin += 128) {
    const size_t n = std::min<size_t>(128, indices.size() - begin);
    std::vector<uint64_t> gaps;
    for (size_t i = begin; i < begin + n; ++i) {
      gaps.push_back(indices[i] - next);
      next = indices[i] + uint64_t{1};
    }
    unsigned width = 0;
    while (std::ranges::max(gaps) >> width) ++width;
    widths.push_back(static_cast<uint8_t>(width));
    std::vector<uint8_t> body((n * width + 7) / 8);
    size_t at = 0;
    for (const uint64_t gap : gaps)
      for (unsigned b = 0; b < width; ++b, ++at) body[at / 8] |= static_cast<uint8_t>((gap >> b & 1) << at % 8);
    bodies.insert(bodies.end(), body.begin(), body.end());
  }
  widths.insert(widths.end(), bodies.begin(), bodies.end());
  return std::ranges::equal(o.payload, widths) ? "" : "not the bits that SPEC.md gives";
}

}  // namespace

codec_case index_delta_bitpack() {
  return {DR_ROLE_INDEX, "delta_bitpack", {"delta_bitpack"}, supports("delta_bitpack"), judge};
}

}  // namespace dr::cases
