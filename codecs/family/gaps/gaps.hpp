// Gaps between ascending indices, in blocks of 128, and indices from packed gaps: what delta_bitpack and delta_pfor share.
#pragma once

#include "primitive/packing.hpp"

namespace dr {

inline constexpr uint64_t gap_block = 128;

// The most that may be behind the last index: those of 32 bits, whatever a caller takes for the universe.
constexpr uint64_t index_end(uint64_t universe) { return universe >> 32 ? uint64_t{1} << 32 : universe; }

// A block of gaps of so many bits spans less than 2^32: lanes of 32 bits do not overflow unseen.
inline constexpr unsigned narrow_gap_bits = 24;

// The widest gap needs at most bit_width(universe - 1) bits, and of at most `universe` all gaps together: a block whose gaps
// need k bits spans at least 2^(k-1), so blocks of k bits or more are at most universe / 2^(k-1).
// What packing each block as wide as its widest gap takes at most, with a byte a block.
constexpr uint64_t packed_gaps_bound(uint64_t universe, uint64_t count_max) {
  const uint64_t blocks = ceil_div(count_max, gap_block);
  uint64_t bits = 0;  // of each index of a block, summed over blocks
  for (unsigned k = 1; k <= 32; ++k) {
    const uint64_t as_wide = universe >> (k - 1);
    bits += as_wide < blocks ? as_wide : blocks;
  }
  return blocks + ceil_div(bits * (count_max < gap_block ? count_max : gap_block), 8);
}

// Gaps of n ascending indices whose predecessor is next - 1; returns the bits of the widest.
using gaps_fn = unsigned (*)(const uint32_t* x, size_t n, uint64_t next, uint32_t* gaps);
// x[i] of n from their packed gaps; returns the index behind the last, at least 2^32 where one does not fit 32 bits. Into
// `all` go the gaps' bits.
using ungap_fn = uint64_t (*)(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next,
                              uint32_t* x, uint32_t& all);

inline unsigned gaps_scalar(const uint32_t* x, size_t n, uint64_t next, uint32_t* gaps) {
  uint32_t all = 0;
  for (size_t i = 0; i < n; ++i) {
    gaps[i] = static_cast<uint32_t>(x[i] - next);
    all |= gaps[i];
    next = uint64_t{x[i]} + 1;
  }
  return bit_width(all);
}

inline uint64_t ungap_scalar(const uint8_t* in, const uint8_t*, size_t n, unsigned bits, uint64_t next, uint32_t* x,
                             uint32_t& all) {
  bit_reader reader(in, n * bits);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t gap = reader.get(bits);
    all |= static_cast<uint32_t>(gap);
    next += gap;
    x[i] = static_cast<uint32_t>(next++);
  }
  return next;
}

#if DR_X86
DR_AVX2_BEGIN
inline uint32_t or_of_lanes(__m256i v) {
  __m128i half = _mm_or_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  half = _mm_or_si128(half, _mm_srli_si128(half, 8));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(half) | _mm_extract_epi32(half, 1));
}

inline unsigned gaps_avx2(const uint32_t* x, size_t n, uint64_t next, uint32_t* gaps) {
  if (n == 0) return 0;
  gaps[0] = static_cast<uint32_t>(x[0] - next);
  __m256i all = _mm256_setzero_si256();
  uint32_t rest = gaps[0];
  size_t i = 1;
  for (; i + 8 <= n; i += 8) {
    const __m256i now = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)),
                  before = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i - 1));
    // now - before - 1 = now + ~before
    const __m256i gap = _mm256_add_epi32(now, _mm256_xor_si256(before, _mm256_set1_epi32(-1)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(gaps + i), gap);
    all = _mm256_or_si256(all, gap);
  }
  for (; i < n; ++i) rest |= gaps[i] = x[i] - x[i - 1] - 1;
  return bit_width(rest | or_of_lanes(all));
}

// The next eight indices from their gaps, while a block's span is below 2^32.
struct index_steps_8 {
  __m256i before;  // the index before, in all lanes

  explicit index_steps_8(uint64_t next) : before(_mm256_set1_epi32(static_cast<int>(next - 1))) {}
  __m256i operator()(__m256i gaps) {
    const __m256i last_of_low = _mm256_setr_epi32(3, 3, 3, 3, 3, 3, 3, 3), last = _mm256_set1_epi32(7);
    const __m256i high_half = _mm256_setr_epi32(0, 0, 0, 0, -1, -1, -1, -1);
    __m256i sum = _mm256_sub_epi32(gaps, _mm256_set1_epi32(-1));
    sum = _mm256_add_epi32(sum, _mm256_slli_si256(sum, 4));
    sum = _mm256_add_epi32(sum, _mm256_slli_si256(sum, 8));
    sum = _mm256_add_epi32(sum, _mm256_and_si256(_mm256_permutevar8x32_epi32(sum, last_of_low), high_half));
    const __m256i now = _mm256_add_epi32(sum, before);
    before = _mm256_add_epi32(before, _mm256_permutevar8x32_epi32(sum, last));
    return now;
  }
  // The index behind the last, from that behind which the steps began.
  uint64_t behind(uint64_t next) const {
    const auto reached = static_cast<uint32_t>(_mm256_cvtsi256_si32(before));
    return next + static_cast<uint32_t>(reached - static_cast<uint32_t>(next - 1));
  }
};

inline uint64_t ungap_avx2(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next, uint32_t* x,
                           uint32_t& all) {
  size_t i = 0;
  if (bits <= narrow_gap_bits) {
    const unpack_8 unpack(bits);
    index_steps_8 step(next);
    __m256i any = _mm256_setzero_si256();
    for (; i + 8 <= n && static_cast<size_t>(end - in) >= unpack_8::reach(bits); i += 8, in += bits) {
      const __m256i gaps = unpack(in);
      any = _mm256_or_si256(any, gaps);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(x + i), step(gaps));
    }
    all |= or_of_lanes(any);
    next = step.behind(next);
  }
  return ungap_scalar(in, end, n - i, bits, next, x + i, all);
}
DR_ISA_END

DR_AVX512_BEGIN
// The next sixteen.
struct index_steps_16 {
  __m512i before;

  explicit index_steps_16(uint64_t next) : before(_mm512_set1_epi32(static_cast<int>(next - 1))) {}
  __m512i operator()(__m512i gaps) {
    const __m512i none = _mm512_setzero_si512(), last = _mm512_set1_epi32(15);
    __m512i sum = _mm512_sub_epi32(gaps, _mm512_set1_epi32(-1));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, none, 15));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, none, 14));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, none, 12));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, none, 8));
    const __m512i now = _mm512_add_epi32(sum, before);
    before = _mm512_add_epi32(before, _mm512_permutexvar_epi32(last, sum));
    return now;
  }
  uint64_t behind(uint64_t next) const {
    const auto reached = static_cast<uint32_t>(_mm512_cvtsi512_si32(before));
    return next + static_cast<uint32_t>(reached - static_cast<uint32_t>(next - 1));
  }
};

inline uint64_t ungap_avx512(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next, uint32_t* x,
                             uint32_t& all) {
  size_t i = 0;
  if (bits <= narrow_gap_bits) {
    const unpack_16 unpack(bits);
    index_steps_16 step(next);
    __m512i any = _mm512_setzero_si512();
    for (; i + 16 <= n; i += 16, in += 2 * bits) {
      const __m512i gaps = unpack(in);
      any = _mm512_or_si512(any, gaps);
      _mm512_storeu_si512(x + i, step(gaps));
    }
    all |= static_cast<uint32_t>(_mm512_reduce_or_epi32(any));
    next = step.behind(next);
  }
  return ungap_scalar(in, end, n - i, bits, next, x + i, all);
}
DR_ISA_END
inline constexpr cpu_table<gaps_fn> gaps_of{gaps_scalar, gaps_avx2};
inline constexpr cpu_table<ungap_fn> ungap{ungap_scalar, ungap_avx2, ungap_avx512};
#else
inline constexpr cpu_table<gaps_fn> gaps_of{gaps_scalar};
inline constexpr cpu_table<ungap_fn> ungap{ungap_scalar};
#endif

// Calls each(first, n, gaps, bits) for each block.
template <class F>
void each_gap_block(const uint32_t* x, uint64_t n, cpu_level level, F&& each) {
  const gaps_fn gaps_at = gaps_of.at(level);
  uint32_t gaps[gap_block];
  uint64_t next = 0;
  for (uint64_t i = 0; i < n; i += gap_block) {
    const size_t m = static_cast<size_t>(n - i < gap_block ? n - i : gap_block);
    const unsigned bits = gaps_at(x + i, m, next, gaps);
    each(i, m, gaps, bits);
    next = uint64_t{x[i + m - 1]} + 1;
  }
}

}  // namespace dr
