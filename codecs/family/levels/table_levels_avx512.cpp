// Tables of levels, 16 values at a time: the bounds are searched by halves with vpermd, numbers looked up by vpermd.
#include "codecs/family/levels/table_levels.hpp"

#if DR_X86

namespace dr {

DR_AVX512_BEGIN

namespace {

inline __mmask16 first_lanes(size_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }

// Numbers of a table of up to 16, 32 or 64.
template <unsigned size>
struct lookup {
  __m512i part[size <= 16 ? 1 : size / 16];

  explicit lookup(const uint32_t* table) {
    for (unsigned i = 0; i < sizeof part / sizeof *part; ++i) part[i] = _mm512_load_si512(table + 16 * i);
  }
  __m512i operator()(__m512i index) const {
    if constexpr (size <= 16) {
      return _mm512_permutexvar_epi32(index, part[0]);
    } else if constexpr (size == 32) {
      return _mm512_permutex2var_epi32(part[0], index, part[1]);
    } else {
      const __mmask16 high = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
      return _mm512_mask_blend_epi32(high, _mm512_permutex2var_epi32(part[0], index, part[1]),
                                     _mm512_permutex2var_epi32(part[2], index, part[3]));
    }
  }
};

template <unsigned size>
void quantise(const uint32_t* values, size_t n, const level_bounds& bounds, uint8_t* levels, uint8_t* signs) {
  const lookup<size> bound(bounds.of);
  const auto level_of = [&](__m512i bits) {
    const __m512i m = _mm512_and_si512(bits, _mm512_set1_epi32(f32_type::magnitude_mask));
    __m512i level = _mm512_setzero_si512();
    // The first bound is the same for all.
    const __mmask16 above = _mm512_cmpge_epu32_mask(m, _mm512_set1_epi32(static_cast<int>(bounds.of[size / 2 - 1])));
    level = _mm512_maskz_mov_epi32(above, _mm512_set1_epi32(size / 2));
    for (int half = size / 4; half > 0; half /= 2) {
      const __m512i at = _mm512_add_epi32(level, _mm512_set1_epi32(half - 1));
      level = _mm512_mask_add_epi32(level, _mm512_cmpge_epu32_mask(m, bound(at)), level, _mm512_set1_epi32(half));
    }
    return _mm512_cvtepi32_epi8(level);
  };
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512i a = _mm512_loadu_si512(values + i), b = _mm512_loadu_si512(values + i + 16);
    const uint32_t negative = _mm512_movepi32_mask(a) | uint32_t{_mm512_movepi32_mask(b)} << 16;
    std::memcpy(signs + i / 8, &negative, 4);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(levels + i), level_of(a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(levels + i + 16), level_of(b));
  }
  for (; i < n; i += 16) {
    const __mmask16 some = first_lanes(n - i);
    const __m512i bits = _mm512_maskz_loadu_epi32(some, values + i);
    const uint16_t negative = _mm512_movepi32_mask(bits);
    std::memcpy(signs + i / 8, &negative, n - i > 8 ? 2 : 1);
    _mm_mask_storeu_epi8(levels + i, some, level_of(bits));
  }
}

template <unsigned size>
void restore(const uint8_t* levels, size_t n, const uint8_t* signs, const level_table& table, uint32_t* values) {
  const lookup<size> number(table.of);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  const auto value = [&](__m128i level, uint32_t negative) {
    const __m512i v = number(_mm512_cvtepu8_epi32(level));
    return _mm512_mask_or_epi32(v, static_cast<__mmask16>(negative), v, sign);
  };
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    uint16_t negative;
    std::memcpy(&negative, signs + i / 8, 2);
    _mm512_storeu_si512(values + i, value(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels + i)), negative));
  }
  if (i < n) {
    const __mmask16 some = first_lanes(n - i);
    const uint32_t negative = signs[i / 8] | (n - i > 8 ? uint32_t{signs[i / 8 + 1]} << 8 : 0);
    _mm512_mask_storeu_epi32(values + i, some, value(_mm_maskz_loadu_epi8(some, levels + i), negative));
  }
}

}  // namespace

void table_quantise_avx512(const uint32_t* values, size_t n, const level_bounds& bounds, uint8_t* levels,
                           uint8_t* signs) {
  switch (bounds.count) {
    case 2: return quantise<2>(values, n, bounds, levels, signs);
    case 4: return quantise<4>(values, n, bounds, levels, signs);
    case 8: return quantise<8>(values, n, bounds, levels, signs);
    case 16: return quantise<16>(values, n, bounds, levels, signs);
    case 32: return quantise<32>(values, n, bounds, levels, signs);
    case 64: return quantise<64>(values, n, bounds, levels, signs);
    default: return table_quantise_scalar(values, n, bounds, levels, signs);
  }
}

void table_restore_avx512(const uint8_t* levels, size_t n, const uint8_t* signs, const level_table& table,
                          uint32_t* values) {
  if (table.count <= 16) return restore<16>(levels, n, signs, table, values);
  if (table.count <= 32) return restore<32>(levels, n, signs, table, values);
  restore<64>(levels, n, signs, table, values);
}

DR_ISA_END

}  // namespace dr

#endif
