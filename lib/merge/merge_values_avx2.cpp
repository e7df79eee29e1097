// Eight values at a time.
#include "merge/merge_values.hpp"
#include "primitive/value_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

// One value, of a type that this instruction set supports.
template <class T>
float number_avx2(typename T::bits b) {
  if constexpr (std::is_same_v<T, f16_type>)
    return _cvtsh_ss(b);
  else
    return T::to_f32(b);
}
template <class T>
typename T::bits bits_avx2(float x) {
  if constexpr (std::is_same_v<T, f16_type>)
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
  else
    return T::from_f32(x);
}

}  // namespace

template <class From, class To>
void convert_values_avx2(const typename From::bits* values, uint64_t n, typename To::bits* out) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = load_8<From>(values + i);
    if (any_nan(v)) [[unlikely]]  // whose payload must not change
      convert_values_scalar<From, To>(values + i, 8, out + i);
    else
      store_8<To>(v, out + i);
  }
  convert_values_scalar<From, To>(values + i, n - i, out + i);
}

template <class From, class To>
void add_values_avx2(const typename From::bits* values, uint64_t n, float weight, typename To::bits* out) {
  const __m256 by = _mm256_set1_ps(weight), nan = _mm256_castsi256_ps(_mm256_set1_epi32(computed_nan));
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 sum = _mm256_add_ps(load_8<To>(out + i), _mm256_mul_ps(by, load_8<From>(values + i)));
    store_8<To>(_mm256_blendv_ps(sum, nan, _mm256_cmp_ps(sum, sum, _CMP_UNORD_Q)), out + i);
  }
  add_values_scalar<From, To>(values + i, n - i, weight, out + i);
}

template <class From, class To>
uint64_t add_pairs_avx2(const uint32_t* support, const typename From::bits* values, uint64_t n, float weight,
                        uint64_t first, uint64_t end, typename To::bits* out) {
  uint64_t i = 0;
  for (; i < n && support[i] < end; ++i) {
    typename To::bits& to = out[support[i] - first];
    to = bits_avx2<To>(weighted_sum(number_avx2<To>(to), weight, number_avx2<From>(values[i])));
  }
  return i;
}

DR_MERGE_VALUES(avx2)

}  // namespace dr
DR_ISA_END
#endif
