#include "sparsify/energy_kernel.hpp"

namespace dr {
namespace {

template <class T, uint32_t block>
void energies(const void* values, uint64_t n, float* to) {
  const auto* v = static_cast<const typename T::bits*>(values);
  for (uint64_t i = 0; i < n; ++i, v += block) {
    float q[block];
    for (uint32_t k = 0; k < block; ++k) q[k] = T::to_f32(v[k]) * T::to_f32(v[k]);
    for (uint32_t half = block / 2; half; half /= 2)
      for (uint32_t k = 0; k < half; ++k) q[k] += q[k + half];
    to[i] = computed(q[0]);
  }
}

}  // namespace

const energy_kernels energy_scalar = DR_ENERGY_KERNELS;

}  // namespace dr
