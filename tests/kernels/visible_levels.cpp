// Which values would change weights: every level judges as scalar does.
#include <vector>

#include "codecs/sparsify/visible/visible_kernel.hpp"
#include "levels.hpp"
#include "primitive/rng.hpp"

namespace dr {

TEST_CASE("visible: every level keeps what scalar keeps, of any bits and of values about a last place") {
  constexpr uint32_t n = 20000;
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
    for (const bool f16 : {false, true})
      for (const float rate : {1.0f, 0.7f, 1e-3f})
        for (const bool any : {true, false}) {
          std::vector<uint32_t> v(n), w(n), expected(n), got(n);
          for (uint32_t i = 0; i < n; ++i) {
            w[i] = static_cast<uint32_t>(draw(1, i));
            v[i] = static_cast<uint32_t>(draw(2, i));
            if (any) continue;
            // A weight of f32, or two of 16 bits, and a value 2^-1 to 2^-16 of it.
            const uint32_t by = static_cast<uint32_t>(draw(3, i) % 16);
            w[i] = (w[i] & 0x807f807f) | (dtype == DR_F16 ? 0x34003400 : 0x3e803e80);
            v[i] = (w[i] ^ (v[i] & 0x80008000)) - (dtype == DR_F32   ? by << 23
                                                   : dtype == DR_F16 ? 0
                                                                     : (by << 7) * 0x10001u);
          }
          keep_visible_scalar(dtype, {rate, f16}, v.data(), w.data(), n, expected.data());
          each_fast_level([&](cpu_level level) {
            for (const uint32_t count : {n, n - 3, uint32_t{1}}) {
              std::fill(got.begin(), got.end(), 0);
              keep_visible.at(level)(dtype, {rate, f16}, v.data(), w.data(), count, got.data());
              CHECK(std::memcmp(got.data(), expected.data(), count * value_size(dtype)) == 0);
            }
          });
        }
}

}  // namespace dr
