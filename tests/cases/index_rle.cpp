#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// From a bitmap, element by element.
std::string judge(const observation& o) {
  const auto indices = words(o.in.elements);
  const uint64_t code = o.fields[0];
  std::vector<uint64_t> lengths;
  uint64_t before = 0, ones = 0;  // the element behind the last one; the length of its run
  for (const uint32_t i : indices) {
    const bool goes_on = ones && i == before;
    if (!goes_on && ones && code < 4) lengths.push_back(ones);
    if (!goes_on || code >= 4) lengths.push_back(i - before);
    ones = goes_on ? ones + 1 : 1;
    before = i + uint64_t{1};
  }
  if (code < 4) lengths.push_back(ones);

  std::vector<uint8_t> expected;
  if (code == 0) {
    unsigned bits = 0;
    while (std::ranges::max(lengths) >> bits) ++bits;
    expected.assign(1 + (lengths.size() * bits + 7) / 8, 0);
    expected[0] = static_cast<uint8_t>(bits);
    size_t at = 8;
    for (const uint64_t l : lengths)
      for (unsigned b = 0; b < bits; ++b, ++at) expected[at / 8] |= static_cast<uint8_t>((l >> b & 1) << at % 8);
  } else {
    const unsigned bytes = 1u << (code - 1) % 3;
    const uint64_t escape = (uint64_t{1} << 8 * bytes) - 1;
    const auto put = [&](uint64_t unit) {
      for (unsigned b = 0; b < bytes; ++b) expected.push_back(static_cast<uint8_t>(unit >> 8 * b));
    };
    for (const uint64_t l : lengths) {
      for (uint64_t e = 0; e < l / escape; ++e) put(escape);
      put(l % escape);
    }
  }
  return std::ranges::equal(o.payload, expected) ? "" : "not the runs that SPEC.md gives";
}

}  // namespace

// Units of 8 bits tell a long run at length, so universes are bounded here.
codec_case index_rle() {
  return {DR_ROLE_INDEX,
          "rle",
          {"rle", "rle(code=runs8)", "rle(code=runs16)", "rle(code=runs32)", "rle(code=gaps8)", "rle(code=gaps16)",
           "rle(code=gaps32)"},
          supports("rle", 300000),
          judge};
}

}  // namespace dr::cases
