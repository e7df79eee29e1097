#include <random>
#include <vector>

#include "levels.hpp"
#include "primitive/check.hpp"

namespace dr {

// FORMAT.md's definition, word for word.
static uint64_t plain_check(const uint8_t* from, size_t words, uint64_t first) {
  uint64_t total = 0;
  for (size_t begin = 0, c = first; begin < words; begin += 1024, ++c) {
    uint64_t sum = c * 0x9e3779b97f4a7c15;
    for (size_t i = begin; i < words && i < begin + 1024; ++i) {
      const uint64_t t = mix64((i - begin + 1) * 0x9e3779b97f4a7c15) >> 32 | 1;
      sum += (uint64_t{load<uint32_t>(from + 4 * i)} + 1) * t;
    }
    total += mix64(sum);
  }
  return total;
}

TEST_CASE("check: every level sums as FORMAT.md states, at any address") {
  std::mt19937_64 s(1);
  std::vector<uint8_t> bytes(4 * 5000 + 64);
  for (const int kind : {0, 1}) {
    for (auto& b : bytes) b = kind ? 0xff : static_cast<uint8_t>(s());
    for (const size_t words : {0, 1, 7, 15, 16, 1023, 1024, 1025, 2047, 2048, 3072, 5000})
      for (const size_t at : {0, 1, 4, 28, 44, 63}) {
        CAPTURE(words);
        CAPTURE(at);
        const uint64_t expected = plain_check(bytes.data() + at, words, 3);
        CHECK(check_terms.scalar(bytes.data() + at, words, 3) == expected);
        each_fast_level(
            [&](cpu_level level) { CHECK(check_terms.at(level)(bytes.data() + at, words, 3) == expected); });
      }
  }
}

}  // namespace dr
