// A frame's values and pairs, added to a gradient of their type and subtracted again: all is 0 at the end.
#include <memory>

#include "kernel_subjects.hpp"
#include "merge/merge_values.hpp"
#include "primitive/rng.hpp"

namespace dr::bench {
namespace {

template <class T>
void add(subjects& all, const std::string& type, uint64_t n) {
  using bits = typename T::bits;
  struct memory {
    std::vector<bits> values, out;
    std::vector<uint32_t> support;  // of a tenth of them
  };
  auto m = std::make_shared<memory>();
  m->values.resize(n);
  m->out.resize(n);
  for (uint64_t i = 0; i < n; ++i) m->values[i] = T::from_f64(1e-3 * (unit_interval(draw(1, i)) - 0.5));
  for (uint64_t i = 0; i < n; i += 1 + draw(2, i) % 19) m->support.push_back(static_cast<uint32_t>(i));
  const auto add_one = [&](const char* what, uint64_t values, double bytes, auto&& call) {
    all.push_back({"merge " + type + what,
                   "n=" + std::to_string(values),
                   "value",
                   2 * static_cast<double>(values),
                   2 * bytes,
                   {cpu_level::scalar, cpu_level::avx2},
                   [=](cpu_level level) {
                     for (const float weight : {1.0f, -1.0f}) call(level, weight);
                   },
                   [=] { return digest_of(reinterpret_cast<const uint8_t*>(m->out.data()), n * sizeof(bits)); }});
  };
  add_one("", n, 3.0 * sizeof(bits) * static_cast<double>(n), [m, n](cpu_level level, float weight) {
    add_values_at<T, T>.at(level)(m->values.data(), n, weight, m->out.data());
  });
  const uint64_t pairs = m->support.size();
  add_one(", pairs", pairs, (4.0 + 3.0 * sizeof(bits)) * static_cast<double>(pairs),
          [m, n, pairs](cpu_level level, float weight) {
            add_pairs_at<T, T>.at(level)(m->support.data(), m->values.data(), pairs, weight, 0, n, m->out.data());
          });
}

}  // namespace

void add_merge(subjects& all) {
  add<f32_type>(all, "f32", 32768);
  add<f16_type>(all, "f16", 32768);
  add<bf16_type>(all, "bf16", 32768);
}

}  // namespace dr::bench
