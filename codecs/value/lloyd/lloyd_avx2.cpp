// The check of the result, eight values at a time.
#include "codecs/value/lloyd/lloyd_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

void lloyd_check_avx2(const uint32_t* values, const uint32_t* got, size_t n, lloyd_sums& sums) {
  const __m256 scale = _mm256_set1_ps(sums.scale), origin = _mm256_set1_ps(sums.origin),
               magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 error = _mm256_setzero_ps(), sum = error, squares = error;
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(reinterpret_cast<const float*>(values + i)), scale);
    const __m256 g = _mm256_mul_ps(_mm256_loadu_ps(reinterpret_cast<const float*>(got + i)), scale);
    const __m256 e = _mm256_sub_ps(v, g), y = _mm256_sub_ps(_mm256_and_ps(v, magnitude), origin);
    error = _mm256_add_ps(error, _mm256_mul_ps(e, e));
    sum = _mm256_add_ps(sum, y);
    squares = _mm256_add_ps(squares, _mm256_mul_ps(y, y));
  }
  lloyd_sums::lanes l;
  _mm256_storeu_ps(l.error, error);
  _mm256_storeu_ps(l.sum, sum);
  _mm256_storeu_ps(l.squares, squares);
  for (size_t k = 0; i < n; ++i, ++k) {
    const float v = f32_type::to_f32(values[i]) * sums.scale, e = v - f32_type::to_f32(got[i]) * sums.scale,
                y = std::fabs(v) - sums.origin;
    l.error[k] += e * e;
    l.sum[k] += y;
    l.squares[k] += y * y;
  }
  sums.add(l);
}

}  // namespace dr
DR_ISA_END
#endif
