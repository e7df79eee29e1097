#include <vector>

#include "codecs/value/rank_fit/rank_fit_kernel.hpp"
#include "levels.hpp"
#include "primitive/rng.hpp"

namespace dr {
namespace {

template <class T>
void compare() {
  using word = typename T::bits;
  for (unsigned bits = 1; bits <= rank_fit_bits_max; ++bits)
    for (const uint64_t n : {1, 7, 8, 9, 15, 16, 17, 31, 40, 64, 100, 129, 1000, 4099}) {
      CAPTURE(bits);
      CAPTURE(n);
      const rank_fit_layout l(bits, 3, n);
      const unsigned levels = 1u << bits;
      // Any magnitudes; thresholds among them, so that many values are equal to one.
      std::vector<word> values(n);
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t drawn = draw(bits, i);
        values[i] = static_cast<word>(drawn);
        if (!is_finite<T>(values[i])) values[i] = static_cast<word>(drawn >> 40 & 0xff);
      }
      uint32_t threshold[rank_fit_levels_max] = {};
      for (unsigned i = 1; i < levels; ++i)
        threshold[i] = std::bit_cast<uint32_t>(T::to_f32(values[draw(77, i) % n])) & 0x7fffffff;
      std::sort(threshold, threshold + levels);
      threshold[0] = 0;
      word level[rank_fit_levels_max] = {};
      for (unsigned i = 0; i < levels; ++i) level[i] = static_cast<word>(draw(78, i) & T::magnitude_mask);

      std::vector<uint8_t> expected(l.size, 0x5a);
      rank_fit_encode<T>.scalar(values.data(), l, threshold, expected.data());
      std::vector<word> decoded(n);
      rank_fit_decode<T>.scalar(expected.data(), l, level, decoded.data());
      for (uint64_t i = 0; i < n; ++i) {
        const uint32_t key = std::bit_cast<uint32_t>(T::to_f32(values[i])) & 0x7fffffff;
        const auto code = std::upper_bound(threshold + 1, threshold + levels, key) - threshold - 1;
        const auto sign = static_cast<word>(values[i] & ~T::magnitude_mask);
        REQUIRE(decoded[i] == static_cast<word>(level[code] | sign));
      }
      word range[2];
      rank_fit_range<T>.scalar(values.data(), n, range);
      each_fast_level([&](cpu_level at) {
        word same[2];
        rank_fit_range<T>.at(at)(values.data(), n, same);
        CHECK(same[0] == range[0]);
        CHECK(same[1] == range[1]);
        std::vector<uint8_t> payload(l.size + 32, 0x5a);
        rank_fit_encode<T>.at(at)(values.data(), l, threshold, payload.data());
        for (uint64_t i = l.size; i < payload.size(); ++i) REQUIRE(payload[i] == 0x5a);
        payload.resize(l.size);
        CHECK(payload == expected);
        std::vector<word> out(n + 16, 0x5a5a);
        rank_fit_decode<T>.at(at)(expected.data(), l, level, out.data());
        for (uint64_t i = n; i < out.size(); ++i) REQUIRE(out[i] == 0x5a5a);
        out.resize(n);
        CHECK(out == decoded);
      });
    }
}

}  // namespace

TEST_CASE("rank_fit codes alike at every level") {
  compare<f32_type>();
  compare<f16_type>();
  compare<bf16_type>();
}

}  // namespace dr
