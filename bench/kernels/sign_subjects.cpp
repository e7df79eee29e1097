// sign's and ternary's payloads of Laplace values: what a dense gradient costs.
#include <cmath>
#include <memory>

#include "codecs/value/sign/sign_kernel.hpp"
#include "codecs/value/ternary/ternary_kernel.hpp"
#include "kernel_subjects.hpp"

namespace dr::bench {
namespace {

template <class T, uint64_t n = 250000, uint64_t key = 3>
void add_signs_of(subjects& all, const char* type) {
  struct memory {
    std::vector<typename T::bits> values = std::vector<typename T::bits>(n), back = values;
    std::vector<uint8_t> signs = std::vector<uint8_t>(ceil_div(n, 8)), bytes = std::vector<uint8_t>(n / 5),
                         digits = std::vector<uint8_t>(n + ternary_digits_slack);
    sign_sums sums{};
    double squares = 0;
  };
  auto m = std::make_shared<memory>();
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t d = draw(1, i);
    const double v = -1e-3 * std::log((static_cast<double>(d >> 11) + 1) * 0x1p-53);
    m->values[i] = T::from_f64(d & 1 ? -v : v);
  }
  sign_pack_scalar<T>(m->values.data(), n, m->signs.data());
  ternary_draw_scalar<T>(m->values.data(), n, 2e-3f, key, 0, m->digits.data());
  ternary_pack_scalar(m->digits.data(), n / 5, m->bytes.data());
  const double size = sizeof(typename T::bits), bytes = static_cast<double>(n) * size;
  const std::vector<cpu_level> at(std::begin(cpu_levels), std::end(cpu_levels));
  const auto put = [&](const char* kernel, double moved, auto run, auto digest) {
    all.push_back({kernel, type, "value", n, moved, at, run, digest});
  };
  const auto values_digest = [m] { return digest_of(m->back.data(), n * sizeof(typename T::bits)); };
  put(
      "sign pack", bytes + n / 8.0, [m](cpu_level c) { sign_pack<T>.at(c)(m->values.data(), n, m->signs.data()); },
      [m] { return digest_of(m->signs.data(), m->signs.size()); });
  put(
      "sign sums", bytes, [m](cpu_level c) { m->sums = sign_sums_of<T>.at(c)(m->values.data(), n); },
      [m] { return digest_of(&m->sums, sizeof m->sums); });
  put(
      "sign unpack", bytes + n / 8.0,
      [m](cpu_level c) { sign_unpack<T>.at(c)(m->signs.data(), n, 3, 5, m->back.data()); }, values_digest);
  put(
      "ternary squares", bytes,
      [m](cpu_level c) {
        uint32_t largest = 0;
        m->squares = ternary_squares<T>.at(c)(m->values.data(), n, largest);
      },
      [m] { return digest_of(&m->squares, sizeof m->squares); });
  put(
      "ternary draw", bytes + n,
      [m](cpu_level c) { ternary_draw<T>.at(c)(m->values.data(), n, 2e-3f, key, 0, m->digits.data()); },
      [m] { return digest_of(m->digits.data(), n); });
  put(
      "ternary pack", 1.2 * n, [m](cpu_level c) { ternary_pack.at(c)(m->digits.data(), n / 5, m->bytes.data()); },
      [m] { return digest_of(m->bytes.data(), m->bytes.size()); });
  put(
      "ternary unpack", bytes + n / 5.0,
      [m](cpu_level c) {
        constexpr typename T::bits numbers[] = {2, 0, 1};
        ternary_unpack<typename T::bits>.at(c)(m->bytes.data(), n, numbers, m->back.data());
      },
      values_digest);
}

}  // namespace

void add_signs(subjects& all) {
  add_signs_of<f32_type>(all, "f32");
  add_signs_of<f16_type>(all, "f16");
}

}  // namespace dr::bench
