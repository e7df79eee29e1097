#include <cstring>

#include "dct/dct_kernel.hpp"
#include "primitive/value_type.hpp"

#if DR_X86
DR_AVX512_BEGIN
#include "dct/dct_vectors.hpp"
namespace dr {
namespace {

struct vectors {
  using vector = __m512;
  static constexpr uint32_t lanes = 16;

  static vector all(float x) { return _mm512_set1_ps(x); }
  static vector load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, vector x) { _mm512_storeu_ps(to, x); }
  static vector add(vector x, vector y) { return _mm512_add_ps(x, y); }
  static vector sub(vector x, vector y) { return _mm512_sub_ps(x, y); }
  static vector mul(vector x, vector y) { return _mm512_mul_ps(x, y); }
  static vector clean(vector x) {
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(computed_nan));
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
  }
  // (Eight rows of eight: pairs, quads, halves.)
  static void transpose_8(const float* from, uint64_t from_stride, float* to, uint64_t to_stride) {
    __m256 r[8], t[8];
    for (unsigned i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_stride);
    for (unsigned i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (unsigned i = 0; i < 8; i += 4)
      for (unsigned k = 0; k < 2; ++k) {
        r[i + 2 * k] = _mm256_shuffle_ps(t[i + k], t[i + k + 2], 0x44);
        r[i + 2 * k + 1] = _mm256_shuffle_ps(t[i + k], t[i + k + 2], 0xee);
      }
    for (unsigned i = 0; i < 4; ++i) {
      _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
      _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
  }
};

}  // namespace

constinit const dct_kernels dct_avx512 = make_dct_kernels<vectors>();

}  // namespace dr
DR_ISA_END
#endif
