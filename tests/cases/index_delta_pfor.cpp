#include <algorithm>
#include <optional>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

using bits = std::vector<bool>;

void append(bits& to, uint64_t number, unsigned width) {
  for (unsigned b = 0; b < width; ++b) to.push_back(number >> b & 1);
}
void pad(bits& to) {
  while (to.size() % 8) to.push_back(false);
}
unsigned width_of(uint64_t number) {
  unsigned width = 0;
  while (number >> width) ++width;
  return width;
}

// A block with so many low bits, by SPEC.md bit by bit; nothing where a head does not hold it.
std::optional<bits> form(const std::vector<uint64_t>& gaps, unsigned low, uint16_t& head) {
  const size_t n = gaps.size();
  bits out, flags, entries, uppers;
  uint64_t widest = 0, count = 0;
  for (const uint64_t gap : gaps)
    if (gap >> low) ++count, widest = std::max(widest, (gap >> low) - 1);
  const unsigned width = width_of(widest);
  if (count && (width > 31 || low + width > 32)) return std::nullopt;
  for (size_t i = 0; i < n; ++i) {
    const bool exception = gaps[i] >> low;
    append(out, gaps[i], low);
    flags.push_back(exception);
    if (!exception) continue;
    append(entries, i, width_of(n - 1));
    append(entries, (gaps[i] >> low) - 1, width);
    append(uppers, (gaps[i] >> low) - 1, width);
  }
  pad(out), pad(flags), pad(entries), pad(uppers);
  const bool listed = count <= n / 8;
  if (listed) {
    out.insert(out.end(), entries.begin(), entries.end());
  } else {
    out.insert(out.end(), flags.begin(), flags.end());
    out.insert(out.end(), uppers.begin(), uppers.end());
  }
  head = static_cast<uint16_t>(low | (count ? width : 0) << 6 | (listed ? count : 31) << 11);
  return out;
}

// Of all forms the shortest.
std::string judge(const observation& o) {
  const auto indices = words(o.in.elements);
  bits heads, bodies;
  uint64_t next = 0;
  for (size_t begin = 0; begin < indices.size(); begin += 128) {
    std::vector<uint64_t> gaps;
    for (size_t i = begin; i < std::min(begin + 128, indices.size()); ++i) {
      gaps.push_back(indices[i] - next);
      next = indices[i] + uint64_t{1};
    }
    std::optional<bits> best;
    uint16_t best_head = 0;
    for (unsigned low = width_of(std::ranges::max(gaps)) + 1; low-- > 0;) {
      uint16_t head = 0;
      const auto one = form(gaps, low, head);
      if (!one || (best && one->size() >= best->size())) continue;
      best = one;
      best_head = head;
    }
    append(heads, best_head, 16);
    bodies.insert(bodies.end(), best->begin(), best->end());
  }
  heads.insert(heads.end(), bodies.begin(), bodies.end());
  std::vector<uint8_t> expected(heads.size() / 8);
  for (size_t i = 0; i < heads.size(); ++i) expected[i / 8] = static_cast<uint8_t>(expected[i / 8] | heads[i] << i % 8);
  return std::ranges::equal(o.payload, expected) ? "" : "not the bits that SPEC.md gives";
}

}  // namespace

codec_case index_delta_pfor() { return {DR_ROLE_INDEX, "delta_pfor", {"delta_pfor"}, supports("delta_pfor"), judge}; }

}  // namespace dr::cases
