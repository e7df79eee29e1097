// Gradients for tests of the GPU: of every type and shape, the same on every machine.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>

#include "client.hpp"

namespace client {

inline uint64_t bytes_of(dr_dtype dtype) {
  return dtype == DR_F32 || dtype == DR_U32 || dtype == DR_I32 ? 4 : dtype == DR_U64 || dtype == DR_I64 ? 8 : 2;
}

// f16 and bf16 by cutting, small numbers to some denormal: which one does not matter.
inline uint16_t half_of(dr_dtype dtype, float v) {
  uint32_t b;
  std::memcpy(&b, &v, 4);
  if (dtype == DR_BF16) return static_cast<uint16_t>(b >> 16 | (std::isnan(v) ? 1 : 0));
  const uint32_t sign = b >> 16 & 0x8000;
  if (std::isnan(v)) return static_cast<uint16_t>(sign | 0x7e00);
  if (std::isinf(v)) return static_cast<uint16_t>(sign | 0x7c00);
  const int e = static_cast<int>(b >> 23 & 0xff) - 112;
  if (v == 0) return static_cast<uint16_t>(sign);
  if (e <= 0) return static_cast<uint16_t>(sign | (b >> 13 & 0x3ff));
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::min(e, 30)) << 10 | (b >> 13 & 0x3ff));
}

// In memory of its own, on the CPU.
struct gradient {
  dr_dtype dtype = DR_F32;
  uint64_t universe = 0;
  uint32_t width = 1;
  bytes values;
  bytes base;                // of a patch
  dr_dtype index_dtype = 0;  // 0: dense
  uint64_t count = 0;
  bytes indices;
  std::vector<uint64_t> state;

  uint64_t rows() const { return index_dtype ? count : universe; }
  uint64_t elements() const { return rows() * width; }
  dr_tensor tensor() {
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = dtype;
    t.universe = universe;
    t.width = width;
    t.values = values.data();
    t.base = base.empty() ? nullptr : base.data();
    t.index_dtype = index_dtype;
    t.indices = index_dtype ? indices.data() : nullptr;
    t.count = count;
    t.state = state.empty() ? nullptr : state.data();
    t.state_size = 8 * state.size();
    return t;
  }
  void set(uint64_t i, float v) {
    if (dtype == DR_F32) {
      std::memcpy(&values[4 * i], &v, 4);
    } else {
      const uint16_t h = half_of(dtype, v);
      std::memcpy(&values[2 * i], &h, 2);
    }
  }
  // A fresh state of feedback, whatever the residual.
  void give_state() { state.assign((16 + 4 * universe * width + 7) / 8, 0); }
};

using gradients = std::vector<gradient>;

using element_fn = std::function<float(uint64_t i, rng&)>;

inline gradient make_of(dr_dtype dtype, uint64_t universe, uint64_t seed, const element_fn& element,
                        uint32_t width = 1) {
  gradient g;
  g.dtype = dtype;
  g.universe = universe;
  g.width = width;
  g.values.assign(universe * width * bytes_of(dtype), 0);
  rng r{seed};
  for (uint64_t i = 0; i < universe * width; ++i) g.set(i, element(i, r));
  return g;
}

inline gradient make(dr_dtype dtype, uint64_t universe, uint64_t seed, double zeros = 0, uint32_t width = 1) {
  return make_of(
      dtype, universe, seed, [=](uint64_t, rng& r) { return r.uniform() < zeros ? 0.0f : r.laplace(1); }, width);
}

// Ascending indices, spread evenly, of any type that the ABI takes.
inline gradient make_sparse(dr_dtype dtype, uint64_t universe, uint64_t count, uint64_t seed,
                            dr_dtype index_dtype = DR_I64, uint32_t width = 1) {
  gradient g = make(dtype, count, seed, 0, width);
  g.universe = universe;
  g.index_dtype = index_dtype;
  g.count = count;
  g.indices.resize(count * bytes_of(index_dtype));
  rng r{seed + 1};
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t from = i * universe / count, to = (i + 1) * universe / count;
    const uint64_t index = from + r.next() % std::max<uint64_t>(1, to - from);
    std::memcpy(&g.indices[i * bytes_of(index_dtype)], &index, bytes_of(index_dtype));
  }
  return g;
}

struct named_gradient {
  std::string name;
  gradient g;
};

// What breaks a selection, a quantiser or a sort: ties everywhere, few distinct values, order, extremes of the type.
inline std::vector<named_gradient> awkward(dr_dtype dtype, uint64_t d) {
  const float largest = dtype == DR_F16 ? 65504.0f : 3e38f, smallest = dtype == DR_F16 ? 6e-8f : 1e-45f;
  const auto of = [&](auto&& element) { return make_of(dtype, d, 7, element); };
  const auto n = static_cast<float>(d ? d : 1);
  return {
      {"constant", of([](uint64_t, rng&) { return 0.25f; })},
      {"zero", of([](uint64_t, rng&) { return 0.0f; })},
      {"zero of either sign", of([](uint64_t i, rng&) { return i % 2 ? -0.0f : 0.0f; })},
      {"two values", of([](uint64_t, rng& r) { return r.next() % 50 ? 0.5f : -2.0f; })},
      {"of one size and either sign", of([](uint64_t, rng& r) { return r.next() % 2 ? 1.0f : -1.0f; })},
      {"ascending", of([=](uint64_t i, rng&) { return static_cast<float>(i) / n; })},
      {"descending", of([=](uint64_t i, rng&) { return 1 - static_cast<float>(i) / n; })},
      {"the large ones first", of([=](uint64_t i, rng& r) { return r.laplace(i < d / 100 ? 1e3 : 1e-3); })},
      {"the large ones last", of([=](uint64_t i, rng& r) { return r.laplace(i + d / 100 < d ? 1e-3 : 1e3); })},
      {"all in one block", of([=](uint64_t i, rng& r) { return i / 64 == d / 128 ? r.laplace(1) : 0.0f; })},
      {"one value", of([=](uint64_t i, rng&) { return i == d / 2 ? -3.0f : 0.0f; })},
      {"the largest numbers", of([=](uint64_t, rng& r) { return r.next() % 2 ? largest : -largest; })},
      {"the smallest numbers", of([=](uint64_t, rng& r) { return static_cast<float>(r.next() % 9) * smallest; })},
      {"every size", of([=](uint64_t, rng& r) {
         return static_cast<float>(
             std::exp2(r.uniform() * (dtype == DR_F16 ? 30 : 250) - (dtype == DR_F16 ? 15 : 125)));
       })},
  };
}

inline std::vector<named_gradient> not_finite(dr_dtype dtype, uint64_t d) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const auto with = [&](uint64_t i, float v) {
    gradient g = make(dtype, d, 9);
    g.set(i, v);
    return g;
  };
  std::vector<named_gradient> all{{"NaN in front", with(0, nan)},
                                  {"NaN at the end", with(d - 1, nan)},
                                  {"an infinity", with(d / 2, inf)},
                                  {"minus infinity", with(d / 3, -inf)},
                                  {"many of them", make(dtype, d, 9)}};
  for (uint64_t i = 0; i < d; i += 7) all.back().g.set(i, i % 3 ? nan : inf);
  return all;
}

}  // namespace client
