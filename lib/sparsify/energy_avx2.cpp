#include <algorithm>
#include <cstring>

#include "primitive/value_vectors.hpp"
#include "sparsify/energy_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
#include "sparsify/energy_vectors.hpp"
namespace dr {
namespace {

struct vectors {
  using vector = __m256;
  static constexpr uint32_t lanes = 8;

  template <class T>
  static __m256 squares(const typename T::bits* v) {
    const __m256 x = load_8<T>(v);
    return _mm256_mul_ps(x, x);
  }
  static __m256 add(__m256 x, __m256 y) { return _mm256_add_ps(x, y); }

  template <uint32_t left>
  static __m256 fold(__m256 x, __m256 y) {
    if constexpr (left == 4) return add(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
    if constexpr (left == 2) return add(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
    if constexpr (left == 1) return add(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd));
  }

  template <uint32_t block>
  static void store(float* to, __m256 x) {
    if constexpr (block == 2) x = _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7));
    if constexpr (block >= 4) x = _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(computed_nan));
    _mm256_storeu_ps(to, _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  }
};

template <class T, uint32_t block>
void energies(const void* values, uint64_t n, float* to) {
  energy_loop<vectors, T, block>::run(values, n, to);
}

}  // namespace

const energy_kernels energy_avx2 = DR_ENERGY_KERNELS;

}  // namespace dr
DR_ISA_END
#endif
