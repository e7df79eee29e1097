#include <memory>

#include "codecs/value/half/half_kernel.hpp"
#include "kernel_subjects.hpp"
#include "primitive/rng.hpp"

namespace dr::bench {
namespace {

template <class From, class To>
void add(subjects& all, const char* name, uint64_t n) {
  struct memory {
    std::vector<uint8_t> in, out;
  };
  auto m = std::make_shared<memory>();
  m->in.resize(n * sizeof(typename From::bits));
  m->out.resize(n * sizeof(typename To::bits));
  for (uint64_t i = 0; i < n; ++i)
    store(m->in.data() + i * sizeof(typename From::bits), From::from_f64(1e-3 * (unit_interval(draw(1, i)) - 0.5)));
  all.push_back({name,
                 "n=" + std::to_string(n),
                 "value",
                 static_cast<double>(n),
                 static_cast<double>(m->in.size() + m->out.size()),
                 {cpu_level::scalar, cpu_level::avx2},
                 [m, n](cpu_level level) { half_table<From, To>.at(level)(m->in.data(), n, m->out.data()); },
                 [m] { return digest_of(m->out.data(), m->out.size()); }});
}

template <class From>
void add_widening(subjects& all, const char* name, uint64_t n) {
  auto in = std::make_shared<std::vector<uint16_t>>(n);
  auto out = std::make_shared<std::vector<float>>(n);
  for (uint64_t i = 0; i < n; ++i) (*in)[i] = From::from_f64(1e-3 * (unit_interval(draw(1, i)) - 0.5));
  all.push_back({name,
                 "n=" + std::to_string(n),
                 "value",
                 static_cast<double>(n),
                 6.0 * static_cast<double>(n),
                 {cpu_level::scalar, cpu_level::avx2},
                 [=](cpu_level level) {
                   half_widen<From>.at(level)(reinterpret_cast<const uint8_t*>(in->data()), n, out->data());
                 },
                 [=] { return digest_of(reinterpret_cast<const uint8_t*>(out->data()), 4 * n); }});
}

}  // namespace

void add_half(subjects& all) {
  for (const uint64_t n : {uint64_t{4096}, uint64_t{250000}}) {
    add<f32_type, f16_type>(all, "half f32 to f16", n);
    add_widening<f16_type>(all, "half f16 to f32", n);
    add<f32_type, bf16_type>(all, "half f32 to bf16", n);
    add_widening<bf16_type>(all, "half bf16 to f32", n);
  }
}

}  // namespace dr::bench
