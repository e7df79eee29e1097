// Coded symbols: decoded eight at a time, encoded as scalar code with this set's multiplications and shifts.
#include "codecs/family/rans/rans.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

// Of a mask of eight states that take a word: the number of each one's word.
struct word_numbers {
  uint64_t of[256];
  constexpr word_numbers() : of{} {
    for (unsigned mask = 0; mask < 256; ++mask)
      for (unsigned i = 0, next = 0; i < 8; ++i) {
        of[mask] |= uint64_t{next} << 8 * i;
        next += mask >> i & 1;
      }
  }
};
constexpr word_numbers numbers;

template <unsigned count, bool of>
uint64_t get(const rans_lookup* tables, rans_input* strings, uint64_t groups, const uint8_t* readable) {
  const __m256i low12 = _mm256_set1_epi32(rans_total - 1), zero = _mm256_setzero_si256();
  __m256i states[count][2];
  const uint8_t* in[count];
#pragma GCC unroll 4
  for (unsigned k = 0; k < count; ++k) {
    for (unsigned h = 0; h < 2; ++h)
      states[k][h] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(strings[k].state + 8 * h));
    in[k] = strings[k].in;
  }
  uint64_t g = 0;
  for (; g < groups; ++g) {
    const uint8_t* last = in[0];
#pragma GCC unroll 4
    for (unsigned k = 1; k < count; ++k) last = in[k] > last ? in[k] : last;
    if (readable - last < 32) break;
#pragma GCC unroll 4
    for (unsigned k = 0; k < count; ++k) {
      __m256i symbols[2];
#pragma GCC unroll 2
      for (unsigned h = 0; h < 2; ++h) {
        __m256i x = states[k][h], at = _mm256_and_si256(x, low12);
        if constexpr (of) {
          const auto* const from = reinterpret_cast<const __m128i*>(strings[k].of + g * 16 + 8 * h);
          at = _mm256_or_si256(at, _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from)), rans_bits));
        }
        const __m256i slot = _mm256_i32gather_epi32(reinterpret_cast<const int*>(tables->slot.data()), at, 4);
        const __m256i high = _mm256_srli_epi32(x, rans_bits);
        const __m256i offset = _mm256_and_si256(_mm256_srli_epi32(slot, 12), low12);
        x = _mm256_add_epi32(_mm256_mullo_epi32(_mm256_and_si256(slot, low12), high), _mm256_add_epi32(high, offset));
        const __m256i less = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), zero);
        const auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(less)));
        const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in[k])));
        const __m256i number =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(numbers.of + mask)));
        const __m256i longer = _mm256_or_si256(_mm256_slli_epi32(x, 16), _mm256_permutevar8x32_epi32(words, number));
        states[k][h] = _mm256_blendv_epi8(x, longer, less);
        in[k] += 2 * _mm_popcnt_u32(mask);
        symbols[h] = _mm256_srli_epi32(slot, 24);
      }
      const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(symbols[0], symbols[1]), 0xd8);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(strings[k].symbols + g * 16),
                       _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
  }
#pragma GCC unroll 4
  for (unsigned k = 0; k < count; ++k) {
    for (unsigned h = 0; h < 2; ++h)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(strings[k].state + 8 * h), states[k][h]);
    strings[k].in = in[k];
  }
  return g;
}

}  // namespace

void rans_put_groups_avx2(const rans_code* codes, rans_output* strings, unsigned count, uint64_t groups) {
  rans_put_groups_with(codes, strings, count, groups);
}

uint64_t rans_get_groups_avx2(const rans_lookup* tables, rans_input* strings, unsigned count, uint64_t groups,
                              const uint8_t* readable) {
  if (strings->of)
    return count == 1 ? get<1, true>(tables, strings, groups, readable)
                      : get<4, true>(tables, strings, groups, readable);
  return count == 1 ? get<1, false>(tables, strings, groups, readable)
                    : get<4, false>(tables, strings, groups, readable);
}

}  // namespace dr
DR_ISA_END
#endif
