#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

std::string judge(const observation& o) {
  std::vector<uint8_t> expected;
  uint64_t next = 0;
  for (const uint32_t i : words(o.in.elements)) {
    uint64_t gap = i - next;
    while (gap >= 128) {
      expected.push_back(static_cast<uint8_t>(gap % 128 + 128));
      gap /= 128;
    }
    expected.push_back(static_cast<uint8_t>(gap));
    next = i + uint64_t{1};
  }
  return std::ranges::equal(o.payload, expected) ? "" : "not the varints that SPEC.md gives";
}

}  // namespace

codec_case index_delta_varint() {
  return {DR_ROLE_INDEX, "delta_varint", {"delta_varint"}, supports("delta_varint"), judge};
}

}  // namespace dr::cases
