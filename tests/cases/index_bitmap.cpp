#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

std::string judge(const observation& o) {
  std::vector<uint8_t> expected((o.in.universe + 7) / 8);
  for (const uint32_t i : words(o.in.elements)) expected[i / 8] |= static_cast<uint8_t>(1u << i % 8);
  return std::ranges::equal(o.payload, expected) ? "" : "not the bits that SPEC.md gives";
}

}  // namespace

// A bit an element, so universes are small here.
codec_case index_bitmap() { return {DR_ROLE_INDEX, "bitmap", {"bitmap"}, supports("bitmap", 41000), judge}; }

}  // namespace dr::cases
