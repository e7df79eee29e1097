// Coded symbols, eight at a time: two vectors have the states of a string.
#include "codecs/family/rans/rans.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

// For a mask of eight states that read a word: the numbers of their words.
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

// For a mask of eight states that write a word: their numbers, packed to the upper end.
struct state_numbers {
  uint64_t of[256];
  constexpr state_numbers() : of{} {
    for (unsigned mask = 0; mask < 256; ++mask)
      for (unsigned i = 8, next = 8; i-- > 0;)
        if (mask >> i & 1) of[mask] |= uint64_t{i} << 8 * --next;
  }
};
constexpr state_numbers writers;

template <unsigned count, bool of>
void put(const rans_code* codes, rans_output* strings, uint64_t groups) {
  const __m256i low16 = _mm256_set1_epi32(0xffff), total = _mm256_set1_epi32(rans_total);
  const __m256i row = _mm256_set1_epi32(sizeof(rans_code) / sizeof(uint32_t));
  const __m256 two32 = _mm256_set1_ps(0x1p32f), less = _mm256_set1_ps(1 - 0x1p-21f);
  __m256i states[count][2];
  uint8_t* at[count];
#pragma GCC unroll 4
  for (unsigned k = 0; k < count; ++k) {
    for (unsigned h = 0; h < 2; ++h)
      states[k][h] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(strings[k].state + 8 * h));
    at[k] = strings[k].at;
  }
  for (uint64_t i = groups * 16; i > 0;) {
    i -= 16;
#pragma GCC unroll 4
    for (unsigned k = 0; k < count; ++k) {
#pragma GCC unroll 2
      for (unsigned upper = 0; upper < 2; ++upper) {
        const unsigned h = 1 - upper;
        __m256i x = states[k][h];
        const auto load8 = [&](const uint8_t* from) __attribute__((always_inline)) {
          return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i + 8 * h)));
        };
        __m256i symbol = load8(strings[k].symbols);
        if constexpr (of) symbol = _mm256_add_epi32(symbol, _mm256_madd_epi16(load8(strings[k].of), row));
        const __m256i range = _mm256_i32gather_epi32(reinterpret_cast<const int*>(codes->range.data()), symbol, 4);
        const __m256i f = _mm256_and_si256(range, low16);
        const __m256i full = _mm256_cmpgt_epi32(f, _mm256_srli_epi32(x, 20));  // those that do not write
        const auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(full))) ^ 0xff;
        const __m256i writes =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(writers.of + mask)));
        const __m256i words = _mm256_and_si256(_mm256_permutevar8x32_epi32(x, writes), low16);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at[k] - 16),
                         _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
        at[k] -= 2 * _mm_popcnt_u32(mask);
        x = _mm256_blendv_epi8(_mm256_srli_epi32(x, 16), x, full);
        // As numbers with a sign, and 2^32 to those that are negative then. By roundings in any mode (three halves of
        // 2^-23 for both of these, 2^-23 each for the quotient and its product) and the 2^-21 the quotient is above
        // x / f · (1 - 15 · 2^-24), and never above x / f; of x / f < 2^20 that is less than 1.
        const __m256 number =
            _mm256_add_ps(_mm256_cvtepi32_ps(x), _mm256_and_ps(_mm256_castsi256_ps(_mm256_srai_epi32(x, 31)), two32));
        const __m256i quotient = _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_div_ps(number, _mm256_cvtepi32_ps(f)), less));
        const __m256i rest = _mm256_sub_epi32(x, _mm256_mullo_epi32(quotient, f));
        const __m256i more = _mm256_cmpgt_epi32(f, rest);  // those that are rests
        x = _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(quotient, rans_bits), rest),
                             _mm256_srli_epi32(range, 16));
        states[k][h] = _mm256_add_epi32(x, _mm256_andnot_si256(more, _mm256_sub_epi32(total, f)));
      }
    }
  }
#pragma GCC unroll 4
  for (unsigned k = 0; k < count; ++k) {
    for (unsigned h = 0; h < 2; ++h)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(strings[k].state + 8 * h), states[k][h]);
    strings[k].at = at[k];
  }
}

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
  if (strings->of) return count == 1 ? put<1, true>(codes, strings, groups) : put<4, true>(codes, strings, groups);
  count == 1 ? put<1, false>(codes, strings, groups) : put<4, false>(codes, strings, groups);
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
