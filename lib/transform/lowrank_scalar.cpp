#include <cstring>

#include "transform/lowrank_kernel.hpp"
#include "transform/lowrank_vectors.hpp"

namespace dr {
namespace {

struct vectors {
  struct vector {
    float v[4];
  };
  static constexpr uint32_t lanes = 4;

  template <class F>
  DR_EVERYWHERE static vector each(F&& f) {
    vector x;
    for (uint32_t i = 0; i < lanes; ++i) x.v[i] = f(i);
    return x;
  }
  DR_EVERYWHERE static vector all(float x) {
    return each([&](uint32_t) { return x; });
  }
  DR_EVERYWHERE static vector load(const float* from) {
    return each([&](uint32_t i) { return from[i]; });
  }
  DR_EVERYWHERE static void store(float* to, const vector& x) { std::memcpy(to, x.v, sizeof x.v); }
  DR_EVERYWHERE static vector add(const vector& x, const vector& y) {
    return each([&](uint32_t i) { return x.v[i] + y.v[i]; });
  }
  DR_EVERYWHERE static vector sub(const vector& x, const vector& y) {
    return each([&](uint32_t i) { return x.v[i] - y.v[i]; });
  }
  DR_EVERYWHERE static vector mul(const vector& x, const vector& y) {
    return each([&](uint32_t i) { return x.v[i] * y.v[i]; });
  }
};

}  // namespace

constinit const lowrank_kernels lowrank_scalar = make_lowrank_kernels<vectors>();

}  // namespace dr
