// Eight values at a time.
#include "primitive/value_rows.hpp"
#include "primitive/value_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

template <class T>
void widen_values_avx2(const typename T::bits* values, uint64_t n, uint32_t* wide) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = load_8<T>(values + i);
    if (any_nan(v)) [[unlikely]]  // which keep their payload, signalling or not
      widen_values_scalar<T>(values + i, 8, wide + i);
    else
      _mm256_storeu_ps(reinterpret_cast<float*>(wide + i), v);
  }
  widen_values_scalar<T>(values + i, n - i, wide + i);
}

template <class T>
void round_values_avx2(const float* wide, uint64_t n, void* to) {
  auto* const out = static_cast<typename T::bits*>(to);
  const __m256 most = _mm256_set1_ps(static_cast<float>(T::largest)), sign = _mm256_set1_ps(-0.0f);
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(wide + i);
    // Too large, infinite or NaN.
    if (_mm256_movemask_ps(_mm256_cmp_ps(_mm256_andnot_ps(sign, v), most, _CMP_NLE_UQ))) [[unlikely]]
      round_values_scalar<T>(wide + i, 8, out + i);
    else
      store_8<T>(v, out + i);
  }
  round_values_scalar<T>(wide + i, n - i, out + i);
}

#define DR_INSTANTIATE(T)                                                  \
  template void widen_values_avx2<T>(const T::bits*, uint64_t, uint32_t*); \
  template void round_values_avx2<T>(const float*, uint64_t, void*);
DR_INSTANTIATE(f32_type)
DR_INSTANTIATE(f16_type)
DR_INSTANTIATE(bf16_type)
#undef DR_INSTANTIATE

}  // namespace dr
DR_ISA_END
#endif
