// Tables of levels, eight values at a time: the bounds are searched by halves with vpermd, whose table has those of a
// step only, numbers looked up by vpermd.
#include "codecs/family/levels/table_levels.hpp"

#if DR_X86

namespace dr {

DR_AVX2_BEGIN

namespace {

inline __m256i load256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

// Numbers of a table of up to 8, 16, 32 or 64: whole tables by vpermd, of which an index's upper bits choose one.
template <unsigned size>
struct lookup {
  static constexpr unsigned parts = size <= 8 ? 1 : size / 8;
  __m256i part[parts];

  explicit lookup(const uint32_t* table) {
    for (unsigned i = 0; i < parts; ++i) part[i] = load256(table + 8 * i);
  }
  [[gnu::always_inline]] __m256i operator()(__m256i index) const {
    __m256i found[parts];
    for (unsigned i = 0; i < parts; ++i) found[i] = _mm256_permutevar8x32_epi32(part[i], index);
    for (unsigned left = parts, bit = 3; left > 1; left /= 2, ++bit) {
      const __m256 upper = _mm256_castsi256_ps(_mm256_sll_epi32(index, _mm_cvtsi32_si128(static_cast<int>(31 - bit))));
      for (unsigned i = 0; i < left / 2; ++i)
        found[i] = _mm256_castps_si256(
            _mm256_blendv_ps(_mm256_castsi256_ps(found[2 * i]), _mm256_castsi256_ps(found[2 * i + 1]), upper));
    }
    return found[0];
  }
};

// Of a step that leaves `half` levels the bounds, less 1: magnitudes and they are compared as signed numbers.
template <unsigned size, unsigned half>
struct step {
  static constexpr unsigned count = size / half / 2;
  alignas(32) uint32_t below[count < 8 ? 8 : count] = {};

  explicit step(const level_bounds& bounds) {
    for (unsigned i = 0; i < count; ++i) {
      const uint32_t bound = bounds.of[(2 * i + 1) * half - 1];
      below[i] = bound > 0x80000000u ? 0x7fffffffu : bound - 1;
    }
  }
};

// The levels above which a magnitude is: with i of the step before, 2 i or 2 i + 1.
template <unsigned size, unsigned half>
struct search {
  lookup<step<size, half>::count> below;
  search<size, half / 2> rest;

  explicit search(const level_bounds& bounds) : below(step<size, half>(bounds).below), rest(bounds) {}
  [[gnu::always_inline]] __m256i operator()(__m256i magnitude, __m256i i) const {
    const __m256i above = _mm256_cmpgt_epi32(magnitude, below(i));
    return rest(magnitude, _mm256_sub_epi32(_mm256_add_epi32(i, i), above));
  }
};
template <unsigned size>
struct search<size, 0> {
  explicit search(const level_bounds&) {}
  [[gnu::always_inline]] __m256i operator()(__m256i, __m256i i) const { return i; }
};

template <unsigned size>
void quantise(const uint32_t* values, size_t n, const level_bounds& bounds, uint8_t* levels, uint8_t* signs) {
  const search<size, size / 2> level_of(bounds);
  const __m256i mask = _mm256_set1_epi32(f32_type::magnitude_mask),
                in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i v[4], level[4];
    for (unsigned h = 0; h < 4; ++h) {
      v[h] = load256(values + i + 8 * h);
      level[h] = level_of(_mm256_and_si256(v[h], mask), _mm256_setzero_si256());
    }
    const __m256i bytes =
        _mm256_packus_epi16(_mm256_packus_epi32(level[0], level[1]), _mm256_packus_epi32(level[2], level[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels + i), _mm256_permutevar8x32_epi32(bytes, in_order));
    const __m256i negative = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    store(signs + i / 8, _mm256_movemask_epi8(_mm256_permutevar8x32_epi32(negative, in_order)));
  }
  if (i < n) table_quantise_scalar(values + i, n - i, bounds, levels + i, signs + i / 8);
}

template <unsigned size>
void restore(const uint8_t* levels, size_t n, const uint8_t* signs, const level_table& table, uint32_t* values) {
  const lookup<size> number(table.of);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  const __m256i first = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i negative = _mm256_set1_epi32(load<int32_t>(signs + i / 8));
    for (int h = 0; h < 4; ++h) {
      const __m256i level = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(levels + i + 8 * h)));
      const __m256i up = _mm256_sub_epi32(first, _mm256_set1_epi32(8 * h));
      const __m256i signs_here = _mm256_and_si256(_mm256_sllv_epi32(negative, up), sign);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + i + 8 * h), _mm256_or_si256(number(level), signs_here));
    }
  }
  if (i < n) table_restore_scalar(levels + i, n - i, signs + i / 8, table, values + i);
}

}  // namespace

void table_quantise_avx2(const uint32_t* values, size_t n, const level_bounds& bounds, uint8_t* levels,
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

void table_restore_avx2(const uint8_t* levels, size_t n, const uint8_t* signs, const level_table& table,
                        uint32_t* values) {
  if (table.count <= 8) return restore<8>(levels, n, signs, table, values);
  if (table.count <= 16) return restore<16>(levels, n, signs, table, values);
  if (table.count <= 32) return restore<32>(levels, n, signs, table, values);
  restore<64>(levels, n, signs, table, values);
}

DR_ISA_END

}  // namespace dr

#endif
