// natural, dynamic_tree and inceptionn, of Laplace values as gradients have them: a tenth beyond inceptionn's bound.
#include <cmath>
#include <memory>

#include "codecs/value/dynamic_tree/dynamic_tree_kernel.hpp"
#include "codecs/value/inceptionn/inceptionn_kernel.hpp"
#include "codecs/value/natural/natural_kernel.hpp"
#include "kernel_subjects.hpp"

namespace dr::bench {
namespace {

constexpr uint64_t n = 250000, key = 3;

template <class T>
struct memory {
  std::vector<typename T::bits> values = std::vector<typename T::bits>(n), back = values;
  std::vector<uint8_t> payload = std::vector<uint8_t>(5 * n);
  uint64_t size = 0;

  memory() {
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t d = draw(1, i);
      const double v = -4e-4 * std::log((static_cast<double>(d >> 11) + 1) * 0x1p-53);
      values[i] = T::from_f64(d & 1 ? -v : v);
    }
  }
};

// encode(level, values, payload) returns the payload's size; decode(level, payload, size, values).
template <class T, class E, class D>
void add(subjects& all, const std::string& name, const char* type, const std::vector<cpu_level>& encodes,
         const std::vector<cpu_level>& decodes, E encode, D decode) {
  auto m = std::make_shared<memory<T>>();
  m->size = encode(cpu_level::scalar, m->values.data(), m->payload.data());
  const double bytes = static_cast<double>(n * sizeof(typename T::bits) + m->size);
  all.push_back({name + " encode", type, "value", n, bytes, encodes,
                 [m, encode](cpu_level c) { m->size = encode(c, m->values.data(), m->payload.data()); },
                 [m] { return digest_of(m->payload.data(), m->size); }});
  all.push_back({name + " decode", type, "value", n, bytes, decodes,
                 [m, decode](cpu_level c) { decode(c, m->payload.data(), m->size, m->back.data()); },
                 [m] { return digest_of(m->back.data(), n * sizeof(typename T::bits)); }});
}

template <class T>
void add_type(subjects& all, const char* type) {
  using bits = typename T::bits;
  constexpr bool wide = sizeof(bits) == 4;
  const std::vector<cpu_level> every(std::begin(cpu_levels), std::end(cpu_levels)), one{cpu_level::scalar},
      ends{cpu_level::scalar, cpu_level::avx512};
  for (const natural_rounding rounding : {natural_stochastic, natural_nearest})
    add<T>(
        all, rounding == natural_nearest ? "natural(rounding=nearest)" : "natural", type, every, wide ? every : one,
        [rounding](cpu_level c, const bits* in, uint8_t* out) {
          natural_encode<T>.at(c)(in, n, rounding, key, out);
          return 1 + n;
        },
        [](cpu_level c, const uint8_t* in, uint64_t, bits* out) { natural_decode<T>.at(c)(in + 1, n, in[0], out); });
  add<T>(
      all, "dynamic_tree", type, {cpu_level::scalar, cpu_level::avx2}, wide ? ends : one,
      [](cpu_level c, const bits* in, uint8_t* out) {
        dynamic_tree_encode<T>.at(c)(in, n, out);
        return dynamic_tree_head + n;
      },
      [](cpu_level c, const uint8_t* in, uint64_t, bits* out) {
        dynamic_tree_decode<T>.at(c)(in + dynamic_tree_head, n, load<float>(in), out);
      });
  const inceptionn_rule rule(9, sizeof(bits));
  add<T>(
      all, "inceptionn", type, every, wide ? ends : one,
      [rule](cpu_level c, const bits* in, uint8_t* out) { return inceptionn_encode<T>.at(c)(in, n, rule, out); },
      [](cpu_level c, const uint8_t* in, uint64_t size, bits* out) {
        (void)inceptionn_decode<T>.at(c)(in, size, n, inceptionn_units(9), out);
      });
}

}  // namespace

void add_eight_bit(subjects& all) {
  add_type<f32_type>(all, "f32");
  add_type<f16_type>(all, "f16");
  add_type<bf16_type>(all, "bf16");
}

}  // namespace dr::bench
