#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// A set of the first draws that differ, by splitmix64 as its authors describe it.
std::string judge(const observation& o) {
  uint64_t state = 0;
  if (o.payload.size() != 8) return "not 8 bytes";
  for (unsigned b = 0; b < 8; ++b) state |= uint64_t{o.payload[b]} << 8 * b;
  const auto next = [&] {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  };
  const uint64_t universe = o.in.universe, count = o.told.size();
  const bool without = count > universe / 2;
  std::set<uint32_t> drawn;
  while (drawn.size() < (without ? universe - count : count)) {
    const uint64_t d = next();  // d * universe / 2^64, by halves: universe has 32 bits
    drawn.insert(static_cast<uint32_t>(((d >> 32) * universe + ((d & 0xffffffff) * universe >> 32)) >> 32));
  }
  std::vector<uint32_t> expected;
  for (uint32_t i = 0; i < universe; ++i)
    if (drawn.contains(i) != without) expected.push_back(i);
  return std::ranges::equal(expected, o.told) ? "" : "not the first distinct draws";
}

}  // namespace

// A bitmap of the universe is its memory, so universes are small here.
codec_case index_seeded() {
  return {DR_ROLE_INDEX,
          "seeded",
          {"seeded(ratio=0.1)", "seeded", "seeded(ratio=0.9)", "seeded(ratio=1)", "seeded(count=7)"},
          supports("seeded", 70000),
          judge};
}

}  // namespace dr::cases
