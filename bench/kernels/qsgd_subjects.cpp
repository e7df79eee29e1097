// qsgd's payloads of the Top-1 % of Laplace values.
#include <cmath>
#include <memory>

#include "codecs/value/qsgd/qsgd_payload_kernel.hpp"
#include "kernel_subjects.hpp"

namespace dr::bench {
namespace {

constexpr uint64_t n = 250000, key = 3;

template <class T>
void add(subjects& all, const char* type, uint64_t levels, uint64_t bucket) {
  struct memory {
    std::vector<typename T::bits> values = std::vector<typename T::bits>(n), back = values;
    std::vector<uint8_t> payload;
  };
  const qsgd_layout l(levels, bucket, n);
  auto m = std::make_shared<memory>();
  m->payload.resize(l.size);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t d = draw(1, i);
    const double v = 1e-3 * (std::log(100.0) - std::log((static_cast<double>(d >> 11) + 1) * 0x1p-53));
    m->values[i] = T::from_f64(d & 1 ? -v : v);
  }
  qsgd_encode_scalar<T>(m->values.data(), l, key, m->payload.data());
  const std::string input =
      std::string(type) + ", levels " + std::to_string(levels) + ", bucket " + std::to_string(bucket);
  const double bytes = static_cast<double>(n * sizeof(typename T::bits) + l.size);
  const std::vector<cpu_level> at(std::begin(cpu_levels), std::end(cpu_levels));
  all.push_back({"qsgd encode", input, "value", n, bytes, at,
                 [m, l](cpu_level c) { qsgd_encode_at<T>.at(c)(m->values.data(), l, key, m->payload.data()); },
                 [m] { return digest_of(m->payload.data(), m->payload.size()); }});
  all.push_back({"qsgd decode", input, "value", n, bytes, at,
                 [m, l](cpu_level c) { qsgd_decode_at<T>.at(c)(m->payload.data(), l, m->back.data()); },
                 [m] { return digest_of(m->back.data(), n * sizeof(typename T::bits)); }});
}

}  // namespace

void add_qsgd(subjects& all) {
  add<f32_type>(all, "f32", 127, 512);
  add<f32_type>(all, "f32", 63, 512);
  add<f32_type>(all, "f32", 127, 100);
  add<f16_type>(all, "f16", 127, 512);
  add<bf16_type>(all, "bf16", 127, 512);
}

}  // namespace dr::bench
