#include <algorithm>
#include <cstring>
#include <type_traits>

#include "sparsify/energy_kernel.hpp"

#if DR_X86
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of the intrinsics' own undefined registers (gcc PR 105593)
#endif
DR_AVX512_BEGIN
#include "sparsify/energy_vectors.hpp"
namespace dr {
namespace {

struct vectors {
  using vector = __m512;
  static constexpr uint32_t lanes = 16;

  template <class T>
  static __m512 squares(const typename T::bits* v) {
    __m512 x;
    if constexpr (std::is_same_v<T, f32_type>)
      x = _mm512_loadu_ps(v);
    else if constexpr (std::is_same_v<T, f16_type>)
      x = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v)));
    else
      x = _mm512_castsi512_ps(
          _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v))), 16));
    return _mm512_mul_ps(x, x);
  }
  static __m512 add(__m512 x, __m512 y) { return _mm512_add_ps(x, y); }

  template <uint32_t left>
  static __m512 fold(__m512 x, __m512 y) {
    if constexpr (left == 8) return add(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    if constexpr (left == 4) return add(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    if constexpr (left == 2) return add(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xee));
    if constexpr (left == 1) return add(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd));
  }

  template <uint32_t block>
  static void store(float* to, __m512 x) {
    if constexpr (block == 2)
      x = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15), x);
    if constexpr (block >= 4)
      x = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), x);
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(computed_nan));
    _mm512_storeu_ps(to, _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan));
  }
};

template <class T, uint32_t block>
void energies(const void* values, uint64_t n, float* to) {
  // Vectors across cache lines would double the time of a pass; vectors of half the length do not.
  if (sizeof(typename T::bits) == 4 && reinterpret_cast<uintptr_t>(values) % 64)
    return energy_avx2[0][bit_width(block) - 1](values, n, to);
  energy_loop<vectors, T, block>::run(values, n, to);
}

}  // namespace

const energy_kernels energy_avx512 = DR_ENERGY_KERNELS;

}  // namespace dr
DR_ISA_END
#endif
