#include <algorithm>
#include <cstring>

#include "primitive/neon_vectors.hpp"
#include "sparsify/energy_kernel.hpp"

#if DR_NEON
#include "sparsify/energy_vectors.hpp"
namespace dr {
namespace {

struct energies_of_4 {
  using vector = float32x4_t;
  static constexpr uint32_t lanes = 4;

  template <class T>
  static float32x4_t squares(const typename T::bits* v) {
    const float32x4_t x = floats_of_4<T>(v);
    return vmulq_f32(x, x);
  }
  static float32x4_t add(float32x4_t x, float32x4_t y) { return vaddq_f32(x, y); }

  // (Blocks stay in order.)
  template <uint32_t left>
  static float32x4_t fold(float32x4_t x, float32x4_t y) {
    if constexpr (left == 2)
      return add(vcombine_f32(vget_low_f32(x), vget_low_f32(y)), vcombine_f32(vget_high_f32(x), vget_high_f32(y)));
    else
      return vpaddq_f32(x, y);
  }
  template <uint32_t>
  static void store(float* to, float32x4_t x) {
    vst1q_f32(to, computed_4(x));
  }
};

template <class T, uint32_t block>
void energies(const void* values, uint64_t n, float* to) {
  energy_loop<energies_of_4, T, block>::run(values, n, to);
}

}  // namespace

const energy_kernels energy_neon = DR_ENERGY_KERNELS;

}  // namespace dr
#endif
