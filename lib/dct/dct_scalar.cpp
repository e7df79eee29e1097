#include <cstring>

#include "dct/dct_kernel.hpp"
#include "dct/dct_vectors.hpp"
#include "primitive/value_type.hpp"

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
  DR_EVERYWHERE static vector clean(const vector& x) {
    return each([&](uint32_t i) { return computed(x.v[i]); });
  }
  DR_EVERYWHERE static void transpose_8(const float* from, uint64_t from_stride, float* to, uint64_t to_stride) {
    for (uint32_t r = 0; r < 8; ++r)
      for (uint32_t c = 0; c < 8; ++c) to[c * to_stride + r] = from[r * from_stride + c];
  }
};

}  // namespace

constinit const dct_kernels dct_scalar = make_dct_kernels<vectors>();

}  // namespace dr
