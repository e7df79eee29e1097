#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// Bit by bit.
std::string judge(const observation& o) {
  unsigned width = 0;
  while (uint64_t{1} << width < o.in.count) ++width;
  std::vector<uint8_t> expected((o.in.count * width + 7) / 8);
  size_t at = 0;
  for (const uint32_t position : words(o.in.elements))
    for (unsigned b = 0; b < width; ++b, ++at) expected[at / 8] |= static_cast<uint8_t>((position >> b & 1) << at % 8);
  return std::ranges::equal(o.payload, expected) ? "" : "not the bits that SPEC.md gives";
}

}  // namespace

codec_case order_bitpack() { return {DR_ROLE_ORDER, "bitpack", {"bitpack"}, permutations(), judge}; }

}  // namespace dr::cases
