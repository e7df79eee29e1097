// Codes eight values at a time; appends them to their streams one by one.
#include "codecs/value/inceptionn/inceptionn_kernel.hpp"
#include "primitive/value_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

__m256i inceptionn_magnitude_avx2(__m256 v) {
  return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
}
__m256i inceptionn_from_avx2(uint32_t from) { return _mm256_set1_epi32(static_cast<int>(from) - 1); }

template <class T>
inceptionn_counts inceptionn_count_avx2(const typename T::bits* values, uint64_t n, const inceptionn_rule& rule) {
  const __m256i from_short = inceptionn_from_avx2(rule.from_short), from_long = inceptionn_from_avx2(rule.from_long),
                from_raw = inceptionn_from_avx2(rule.from_raw);
  const auto ones = [](__m256i m, __m256i from) {
    const int mask = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(m, from)));
    return static_cast<uint64_t>(_mm_popcnt_u32(static_cast<uint32_t>(mask)));
  };
  uint64_t shorts = 0, longs = 0, raws = 0, i = 0;  // from there on
  for (; i + 8 <= n; i += 8) {
    const __m256i m = inceptionn_magnitude_avx2(load_8<T>(values + i));
    shorts += ones(m, from_short);
    longs += ones(m, from_long);
    raws += ones(m, from_raw);
  }
  const inceptionn_counts rest = inceptionn_count_scalar<T>(values + i, n - i, rule);
  return {shorts - longs + rest.shorts, longs - raws + rest.longs, raws + rest.raws};
}

template <class T>
void inceptionn_split_avx2(const typename T::bits* values, uint64_t n, const inceptionn_rule& rule,
                           inceptionn_streams<T>& to, inceptionn_counts& all) {
  inceptionn_counts counts;
  const __m256 scale = _mm256_set1_ps(rule.scale);
  const __m256i from_short = inceptionn_from_avx2(rule.from_short), from_long = inceptionn_from_avx2(rule.from_long),
                from_raw = inceptionn_from_avx2(rule.from_raw), one = _mm256_set1_epi32(1);
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = load_8<T>(values + i);
    const __m256i m = inceptionn_magnitude_avx2(v), sign = _mm256_srli_epi32(_mm256_castps_si256(v), 31);
    const __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(m), scale));
    const __m256i s = _mm256_cmpgt_epi32(m, from_short), l = _mm256_cmpgt_epi32(m, from_long),
                  r = _mm256_cmpgt_epi32(m, from_raw);
    // The class: the number of the three bounds that are reached.
    alignas(32) uint32_t q_of[8], sign_of[8], tag_of[8];
    const __m256i bounds = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_add_epi32(_mm256_add_epi32(s, l), r));
    // Where long codes have no room of their own, the second and third bound are one.
    _mm256_store_si256(reinterpret_cast<__m256i*>(q_of), q);
    _mm256_store_si256(reinterpret_cast<__m256i*>(sign_of), _mm256_and_si256(sign, one));
    _mm256_store_si256(reinterpret_cast<__m256i*>(tag_of), bounds);
    uint32_t tags = 0;
    for (uint32_t k = 0; k < 8; ++k) {
      to.shorts[counts.shorts] = static_cast<uint8_t>((q_of[k] & 0x7f) | sign_of[k] << 7);
      to.longs[counts.longs] = static_cast<uint16_t>((q_of[k] & 0x7fff) | sign_of[k] << 15);
      to.raws[counts.raws] = values[i + k];
      counts.shorts += tag_of[k] == inceptionn_short;
      counts.longs += tag_of[k] == inceptionn_long;
      counts.raws += tag_of[k] == inceptionn_raw;
      tags |= tag_of[k] << 2 * k;
    }
    store(to.tags + i / 4, static_cast<uint16_t>(tags));
  }
  inceptionn_split_scalar<T>(values, i, n, rule, to, counts);
  all = counts;
}

}  // namespace

template <class T>
uint64_t inceptionn_encode_avx2(const typename T::bits* values, uint64_t n, const inceptionn_rule& rule, uint8_t* out) {
  return inceptionn_encode_with<T, inceptionn_count_avx2<T>, inceptionn_split_avx2<T>>(values, n, rule, out);
}
template uint64_t inceptionn_encode_avx2<f32_type>(const f32_type::bits*, uint64_t, const inceptionn_rule&, uint8_t*);
template uint64_t inceptionn_encode_avx2<f16_type>(const f16_type::bits*, uint64_t, const inceptionn_rule&, uint8_t*);
template uint64_t inceptionn_encode_avx2<bf16_type>(const bf16_type::bits*, uint64_t, const inceptionn_rule&, uint8_t*);

}  // namespace dr
DR_ISA_END
#endif
