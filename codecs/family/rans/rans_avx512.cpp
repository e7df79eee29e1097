// Coded symbols, 16 at a time: a vector has the states of a string. Words that states give or take are those of a mask,
// in the order of the states.
#include "codecs/family/rans/rans.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {
namespace {

// Of 16 dwords the low words, so moved up that the first n end where a vector of 16 words ends: from entry n on, as
// numbers of bytes (permuting words needs two steps).
struct word_moves {
  uint16_t of[32];
  constexpr word_moves() : of{} {
    for (unsigned i = 16; i < 32; ++i) of[i] = static_cast<uint16_t>(0x100 * (4 * (i - 16) + 1) + 4 * (i - 16));
  }
};
constexpr word_moves moves;

// few: one table of at most 32 symbols, in registers
template <unsigned count, bool of, bool few>
void put(const rans_code* codes, rans_output* strings, uint64_t groups) {
  const __m512i ranges0 = _mm512_loadu_si512(codes->range.data()), ranges1 = _mm512_loadu_si512(&codes->range[16]);
  const __m512 inverses0 = _mm512_loadu_ps(codes->inverse.data()), inverses1 = _mm512_loadu_ps(&codes->inverse[16]);
  const __m512i low16 = _mm512_set1_epi32(0xffff), total = _mm512_set1_epi32(rans_total);
  const __m512i row = _mm512_set1_epi32(sizeof(rans_code) / sizeof(uint32_t));
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  __m512i states[count];
  uint8_t* at[count];
  const uint8_t *symbols[count], *ofs[count];
#pragma GCC unroll 4
  for (unsigned k = 0; k < count; ++k) {
    states[k] = _mm512_loadu_si512(strings[k].state);
    at[k] = strings[k].at;
    symbols[k] = strings[k].symbols;
    ofs[k] = strings[k].of;
  }
  for (uint64_t i = groups * 16; i > 0;) {
    i -= 16;
#pragma GCC unroll 4
    for (unsigned k = 0; k < count; ++k) {
      __m512i x = states[k];
      const auto load16 = [i](const uint8_t* from) __attribute__((always_inline)) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
      };
      __m512i symbol = load16(symbols[k]), range;
      __m512 inverse;
      if constexpr (few) {
        range = _mm512_permutex2var_epi32(ranges0, symbol, ranges1);
        inverse = _mm512_permutex2var_ps(inverses0, symbol, inverses1);
      } else {
        if constexpr (of) symbol = _mm512_add_epi32(symbol, _mm512_madd_epi16(load16(ofs[k]), row));
        range = _mm512_i32gather_epi32(symbol, codes->range.data(), 4);
        inverse = _mm512_i32gather_ps(symbol, codes->inverse.data(), 4);
      }
      const __m512i f = _mm512_and_si512(range, low16);
      const __mmask16 full = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(x, 20), f);
      const __m512i words = _mm512_maskz_compress_epi32(full, x);
      const auto n = static_cast<unsigned>(_mm_popcnt_u32(full));
      const __m512i move = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(moves.of + n)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(at[k] - 32),
                          _mm512_castsi512_si256(_mm512_permutexvar_epi8(move, words)));
      at[k] -= 2 * n;
      x = _mm512_mask_srli_epi32(x, full, x, 16);
      const __m512i quotient =
          _mm512_cvttps_epu32(_mm512_mul_round_ps(_mm512_cvt_roundepu32_ps(x, nearest), inverse, nearest));
      // Below 2 f <= 2^13: all that is needed is its low words, and the high ones of f are 0.
      const __m512i rest = _mm512_maskz_sub_epi16(0x55555555, x, _mm512_mullo_epi16(quotient, f));
      const __mmask16 more = _mm512_cmpge_epu32_mask(rest, f);
      x = _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(quotient, rans_bits), rest),
                           _mm512_srli_epi32(range, 16));
      states[k] = _mm512_mask_add_epi32(x, more, x, _mm512_sub_epi32(total, f));
    }
  }
#pragma GCC unroll 4
  for (unsigned k = 0; k < count; ++k) {
    _mm512_storeu_si512(strings[k].state, states[k]);
    strings[k].at = at[k];
  }
}

template <unsigned count, bool of>
uint64_t get(const rans_lookup* tables, rans_input* strings, uint64_t groups, const uint8_t* readable) {
  const __m512i low12 = _mm512_set1_epi32(rans_total - 1), low = _mm512_set1_epi32(rans_low);
  // Byte 3 − r of dword j is symbol 16 r + j.
  alignas(64) uint8_t of_byte[64];
  for (unsigned i = 0; i < 64; ++i) of_byte[i] = static_cast<uint8_t>(4 * (i % 16) + 3 - i / 16);
  const __m512i order = _mm512_load_si512(of_byte);
  __m512i states[count];
  const uint8_t *in[count], *ofs[count];
  uint8_t* symbols[count];
#pragma GCC unroll 8
  for (unsigned k = 0; k < count; ++k) {
    states[k] = _mm512_loadu_si512(strings[k].state);
    in[k] = strings[k].in;
    ofs[k] = strings[k].of;
    symbols[k] = strings[k].symbols;
  }
  uint64_t g = 0;
  for (; g + 4 <= groups; g += 4) {
    const uint8_t* last = in[0];
#pragma GCC unroll 8
    for (unsigned k = 1; k < count; ++k) last = in[k] > last ? in[k] : last;
    if (readable - last < 4 * 32) break;
    __m512i four[count];
#pragma GCC unroll 4
    for (unsigned r = 0; r < 4; ++r) {
#pragma GCC unroll 8
      for (unsigned k = 0; k < count; ++k) {
        __m512i x = states[k], at = _mm512_and_si512(x, low12);
        if constexpr (of) {
          const auto* const from = reinterpret_cast<const __m128i*>(ofs[k] + (g + r) * 16);
          at = _mm512_or_si512(at, _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(from)), rans_bits));
        }
        // Of eight strings the last four have the second table.
        const __m512i slot = _mm512_i32gather_epi32(at, tables[k / 4].slot.data(), 4);
        const __m512i high = _mm512_srli_epi32(x, rans_bits);
        const __m512i offset = _mm512_and_si512(_mm512_srli_epi32(slot, 12), low12);
        x = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_and_si512(slot, low12), high), _mm512_add_epi32(high, offset));
        const __mmask16 less = _mm512_cmplt_epu32_mask(x, low);
        const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in[k])));
        x = _mm512_mask_slli_epi32(x, less, x, 16);
        states[k] = _mm512_or_si512(x, _mm512_maskz_expand_epi32(less, words));
        in[k] += 2 * _mm_popcnt_u32(less);
        four[k] = r == 0 ? _mm512_srli_epi32(slot, 24) : _mm512_shldi_epi32(four[k], slot, 8);
      }
    }
#pragma GCC unroll 8
    for (unsigned k = 0; k < count; ++k)
      _mm512_storeu_si512(symbols[k] + g * 16, _mm512_permutexvar_epi8(order, four[k]));
  }
#pragma GCC unroll 8
  for (unsigned k = 0; k < count; ++k) {
    _mm512_storeu_si512(strings[k].state, states[k]);
    strings[k].in = in[k];
  }
  return g;
}

}  // namespace

void rans_put_groups_avx512(const rans_code* codes, rans_output* strings, unsigned count, uint64_t groups) {
  const bool one = count == 1, few = codes->end <= 32;
  if (strings->of)
    return one ? put<1, true, false>(codes, strings, groups) : put<4, true, false>(codes, strings, groups);
  if (few) return one ? put<1, false, true>(codes, strings, groups) : put<4, false, true>(codes, strings, groups);
  one ? put<1, false, false>(codes, strings, groups) : put<4, false, false>(codes, strings, groups);
}

uint64_t rans_get_groups_avx512(const rans_lookup* tables, rans_input* strings, unsigned count, uint64_t groups,
                                const uint8_t* readable) {
  const auto any = [&](auto of) {
    return count == 1   ? get<1, of.value>(tables, strings, groups, readable)
           : count == 4 ? get<4, of.value>(tables, strings, groups, readable)
                        : get<8, of.value>(tables, strings, groups, readable);
  };
  return strings->of ? any(std::true_type{}) : any(std::false_type{});
}

}  // namespace dr
DR_ISA_END
#endif
