// Gaps of 128 indices at a time in as many bits as take least, and those that are wider patched (Zukowski et al. 2006, PFor;
// Yan, Ding, Suel 2009, OptPFD; Lemire, Boytsov 2015, FastPFor; layout: SPEC.md).
#pragma once

#include <array>
#include <iterator>

#include "codecs/family/gaps/gaps.hpp"

namespace dr {

// A block's first two bytes: bits of each gap, and where gaps are wider (exceptions) the bits of what is left of them and how
// many they are, or that a bitmap says which.
struct pfor_head {
  unsigned bits = 0, upper_bits = 0, exceptions = 0;
};
inline constexpr unsigned pfor_head_size = 2, pfor_bitmap = 31;

constexpr uint16_t pfor_pack_head(const pfor_head& h) {
  return static_cast<uint16_t>(h.bits | h.upper_bits << 6 | h.exceptions << 11);
}
constexpr pfor_head pfor_unpack_head(uint16_t x) { return {x & 63u, x >> 6 & 31u, x >> 11 & 31u}; }

// Whether 128 gaps span less than 2^32: with exceptions they are below 2^(bits + upper_bits + 1).
constexpr bool pfor_narrow(const pfor_head& h) { return h.bits + h.upper_bits < narrow_gap_bits; }

// A position costs up to 7 bits in a list and n bits in a bitmap, so eighths are less in a list. Sixteen fit a vector.
constexpr bool pfor_listed(size_t n, unsigned exceptions) { return exceptions <= n / 8; }
constexpr unsigned pfor_position_bits(size_t n) { return bit_width(n - 1); }

constexpr uint64_t pfor_exceptions_size(size_t n, unsigned exceptions, unsigned upper_bits) {
  if (exceptions == 0) return 0;
  return pfor_listed(n, exceptions) ? packed_size(exceptions, pfor_position_bits(n) + upper_bits)
                                    : ceil_div(n, 8) + packed_size(exceptions, upper_bits);
}

// A block never takes more than as wide as its widest gap.
constexpr uint64_t delta_pfor_bound(uint64_t universe, uint64_t count_max) {
  return packed_gaps_bound(universe, count_max) + (pfor_head_size - 1) * ceil_div(count_max, gap_block);
}

// Numbers behind the last exception that vectors touch.
inline constexpr size_t pfor_room = 16;

struct pfor_form {
  unsigned bits, upper_bits, exceptions;
  uint64_t size;  // without head
};

// The form of fewest bytes, the widest among equals. wider(bits) gaps of n need more than so many bits.
template <class Wider>
pfor_form pfor_least(size_t n, uint32_t widest, Wider&& wider) {
  const unsigned top = bit_width(widest);
  pfor_form best{top, 0, 0, packed_size(n, top)};
  for (unsigned bits = top; bits-- > 0;) {
    const unsigned exceptions = wider(bits), upper_bits = bit_width((widest >> bits) - 1);
    // With k <= bits there are no fewer exceptions, of at least top - 1 - k bits each, so no fewer than
    // n·k + exceptions·(top - 1 - k) >= exceptions·(top - 1) bits beside positions.
    const uint64_t positions = pfor_listed(n, exceptions) ? uint64_t{exceptions} * pfor_position_bits(n) : n;
    if (positions + uint64_t{exceptions} * (top - 1) >= 8 * best.size) break;
    if (upper_bits > 31 || bits + upper_bits > 32) continue;
    const uint64_t size = packed_size(n, bits) + pfor_exceptions_size(n, exceptions, upper_bits);
    if (size < best.size) best = {bits, upper_bits, exceptions, size};
  }
  return best;
}

using pfor_form_fn = pfor_form (*)(const uint32_t* gaps, size_t n);
// Of n gaps the low bits, which are the exceptions, and what is left of these in order.
using pfor_split_fn = void (*)(const uint32_t* gaps, size_t n, unsigned bits, uint32_t* low, uint64_t* which,
                               uint32_t* upper);
// Reads a block's exceptions from [in, in + size), in a payload that ends at `end`: above[i] of n is what gap i has above its low
// bits, 0 if it is none; one more is scratch. Returns their bytes, or 0 if they are not what an encoder writes.
using pfor_above_fn = uint64_t (*)(const uint8_t* in, uint64_t size, const uint8_t* end, size_t n, pfor_head head,
                                   uint32_t* above);
// x[i] of n, as ungap_fn, from the low bits of their gaps and what these have above.
using pfor_ungap_fn = uint64_t (*)(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next,
                                   const uint32_t* above, uint32_t* x);

inline pfor_form pfor_form_scalar(const uint32_t* gaps, size_t n) {
  unsigned of_width[33] = {};
  uint32_t widest = 0;
  for (size_t i = 0; i < n; ++i) {
    ++of_width[bit_width(gaps[i])];
    if (gaps[i] > widest) widest = gaps[i];
  }
  for (unsigned k = 32; k-- > 0;) of_width[k] += of_width[k + 1];
  return pfor_least(n, widest, [&](unsigned bits) { return of_width[bits + 1]; });
}

inline void pfor_split_scalar(const uint32_t* gaps, size_t n, unsigned bits, uint32_t* low, uint64_t* which,
                              uint32_t* upper) {
  which[0] = which[1] = 0;
  for (size_t i = 0; i < n; ++i) {
    low[i] = gaps[i] & static_cast<uint32_t>(low_mask(bits));
    if (const uint32_t above = gaps[i] >> bits) {
      which[i / 64] |= uint64_t{1} << i % 64;
      *upper++ = above;
    }
  }
}

// A list's bytes, or a bitmap's and those of its numbers, if all of them are there and padded with zeros; else 0.
inline uint64_t pfor_whole_list(const uint8_t* in, uint64_t size, size_t n, const pfor_head& head) {
  const uint64_t bits = uint64_t{head.exceptions} * (pfor_position_bits(n) + head.upper_bits),
                 taken = ceil_div(bits, 8);
  return pfor_listed(n, head.exceptions) && taken <= size && padding_is_zero(in, bits) ? taken : 0;
}
inline uint64_t pfor_whole_bitmap(const uint8_t* in, uint64_t size, size_t n, unsigned exceptions,
                                  unsigned upper_bits) {
  const uint64_t bitmap = ceil_div(n, 8), bits = uint64_t{exceptions} * upper_bits, taken = bitmap + ceil_div(bits, 8);
  if (pfor_listed(n, exceptions) || taken > size) return 0;
  return padding_is_zero(in, n) && padding_is_zero(in + bitmap, bits) ? taken : 0;
}

inline uint64_t pfor_above_scalar(const uint8_t* in, uint64_t size, const uint8_t*, size_t n, pfor_head head,
                                  uint32_t* above) {
  uint64_t which[2] = {}, taken;
  uint32_t all = 0;
  for (size_t i = 0; i < n; ++i) above[i] = 0;
  const auto take = [&](uint64_t i, bit_reader& reader) {
    const auto upper = static_cast<uint32_t>(reader.get(head.upper_bits));
    all |= upper;
    above[i] = upper + 1;
  };
  if (head.exceptions == pfor_bitmap) {
    const uint64_t bitmap = ceil_div(n, 8);
    if (bitmap > size) return 0;
    std::memcpy(which, in, bitmap);
    taken = pfor_whole_bitmap(in, size, n, popcount(which[0]) + popcount(which[1]), head.upper_bits);
    if (taken == 0) return 0;
    bit_reader reader(in + bitmap, 8 * (taken - bitmap));
    for (const uint64_t word : {0, 1})
      for (uint64_t left = which[word]; left; left &= left - 1) take(64 * word + countr_zero(left), reader);
  } else {
    taken = pfor_whole_list(in, size, n, head);
    if (taken == 0) return 0;
    bit_reader reader(in, 8 * taken);
    uint64_t next = 0;
    for (unsigned i = 0; i < head.exceptions; ++i) {
      const uint64_t position = reader.get(pfor_position_bits(n));
      if (position < next || position >= n) return 0;
      next = position + 1;
      take(position, reader);
    }
  }
  return bit_width(all) == head.upper_bits ? taken : 0;
}

inline uint64_t pfor_ungap_scalar(const uint8_t* in, const uint8_t*, size_t n, unsigned bits, uint64_t next,
                                  const uint32_t* above, uint32_t* x) {
  bit_reader reader(in, n * bits);
  for (size_t i = 0; i < n; ++i) {
    next += reader.get(bits) + (uint64_t{above[i]} << bits);
    x[i] = static_cast<uint32_t>(next++);
  }
  return next;
}

#if DR_X86
DR_AVX2_BEGIN
inline pfor_form pfor_form_avx2(const uint32_t* gaps, size_t n) {
  if (n != gap_block) return pfor_form_scalar(gaps, n);
  const auto* const from = reinterpret_cast<const __m256i*>(gaps);
  __m256i widest = _mm256_setzero_si256(), widths[4];  // a byte each, in any order
  const auto width_of = [&](__m256i gap) {
    widest = _mm256_max_epu32(widest, gap);
    // The exponent of a float, which must not be rounded up: no two ones on top. From 2^31 on the sign makes it large.
    const __m256i top = _mm256_andnot_si256(_mm256_srli_epi32(gap, 1), gap);
    const __m256i exponent = _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(top)), 23);
    return _mm256_min_epi32(
        _mm256_max_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(126)), _mm256_setzero_si256()),
        _mm256_set1_epi32(32));
  };
  for (unsigned i = 0; i < 4; ++i) {
    __m256i w[4];
    for (unsigned j = 0; j < 4; ++j) w[j] = width_of(_mm256_loadu_si256(from + 4 * i + j));
    widths[i] = _mm256_packs_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
  }
  __m128i half = _mm_max_epu32(_mm256_castsi256_si128(widest), _mm256_extracti128_si256(widest, 1));
  half = _mm_max_epu32(half, _mm_srli_si128(half, 8));
  half = _mm_max_epu32(half, _mm_srli_si128(half, 4));
  return pfor_least(n, static_cast<uint32_t>(_mm_cvtsi128_si32(half)), [&](unsigned bits) {
    const __m256i limit = _mm256_set1_epi8(static_cast<char>(bits));
    unsigned wider = 0;
    for (const __m256i& w : widths)
      wider += static_cast<unsigned>(
          __builtin_popcount(static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi8(w, limit)))));
    return wider;
  });
}

inline void pfor_split_avx2(const uint32_t* gaps, size_t n, unsigned bits, uint32_t* low, uint64_t* which,
                            uint32_t* upper) {
  if (n != gap_block) return pfor_split_scalar(gaps, n, bits, low, which, upper);
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(low_mask(bits)));
  for (size_t word = 0; word < 2; ++word, gaps += 64, low += 64) {
    uint64_t within = 0;
    for (unsigned i = 0; i < 64; i += 8) {
      const __m256i gap = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(gaps + i));
      const __m256i rest = _mm256_and_si256(gap, mask);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(low + i), rest);
      const auto same = static_cast<uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(rest, gap))));
      within |= same << i;
    }
    which[word] = ~within;
    for (uint64_t left = ~within; left; left &= left - 1) *upper++ = gaps[_tzcnt_u64(left)] >> bits;
  }
}

// Lists of up to 25 bits an entry, and bitmaps whose numbers fit a byte.
inline uint64_t pfor_above_avx2(const uint8_t* in, uint64_t size, const uint8_t* end, size_t n, pfor_head head,
                                uint32_t* above) {
  const unsigned upper_bits = head.upper_bits;
  const bool listed = head.exceptions != pfor_bitmap;
  const auto left = static_cast<uint64_t>(end - in);
  if (n != gap_block || upper_bits > (listed ? fast_bits_max - 7 : 7) || left < 16 + 128)
    return pfor_above_scalar(in, size, end, n, head, above);
  uint64_t which[2], taken;
  uint32_t all = 0;
  if (listed) {
    taken = pfor_whole_list(in, size, n, head);
    if (taken == 0) return 0;
    // One by one: of a loop gcc makes `rep stos`, which takes half of this function's time.
    const auto clear = [above](auto... i) {
      (_mm256_store_si256(reinterpret_cast<__m256i*>(above) + i, _mm256_setzero_si256()), ...);
    };
    clear(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    alignas(32) uint32_t positions[16], uppers[16];
    const unpack_8 unpack(7 + upper_bits);
    const __m256i turn = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i minus_one = _mm256_set1_epi32(-1);
    __m256i before = minus_one, any = _mm256_setzero_si256(), ascend = minus_one;
    for (int i = 0; i < 16; i += 8, in += 7 + upper_bits) {
      const __m256i entries = unpack(in), upper = _mm256_srli_epi32(entries, 7);
      const __m256i taken_8 = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(head.exceptions) - i), lane);
      const __m256i position = _mm256_and_si256(entries, _mm256_set1_epi32(127)),
                    turned = _mm256_permutevar8x32_epi32(position, turn);
      const __m256i higher = _mm256_cmpgt_epi32(position, _mm256_blend_epi32(turned, before, 1));
      ascend = _mm256_and_si256(ascend, _mm256_or_si256(higher, _mm256_xor_si256(taken_8, minus_one)));
      before = turned;
      any = _mm256_or_si256(any, _mm256_and_si256(upper, taken_8));
      // What is no entry goes behind the block.
      _mm256_store_si256(reinterpret_cast<__m256i*>(positions + i),
                         _mm256_blendv_epi8(_mm256_set1_epi32(gap_block), position, taken_8));
      _mm256_store_si256(reinterpret_cast<__m256i*>(uppers + i), _mm256_sub_epi32(upper, minus_one));
    }
    if (_mm256_movemask_epi8(ascend) != -1) return 0;
    for (unsigned i = 0; i < 16; ++i) above[positions[i]] = uppers[i];
    all = or_of_lanes(any);
  } else {
    if (size < 16) return 0;
    std::memcpy(which, in, 16);
    const auto exceptions = static_cast<unsigned>(_mm_popcnt_u64(which[0]) + _mm_popcnt_u64(which[1]));
    taken = pfor_whole_bitmap(in, size, n, exceptions, upper_bits);
    if (taken == 0) return 0;
    in += 16;
    const uint64_t ones = 0x0101010101010101, low = low_mask(upper_bits) * ones;
    uint64_t any = 0, at = 0;
    for (size_t i = 0; i < n; i += 8) {
      // A byte for each of eight, from the next bits of the string.
      const uint64_t here = which[i / 64] >> i % 64 & 0xff, taken_here = _pdep_u64(here, ones);
      const uint64_t upper = _pdep_u64(load<uint64_t>(in + at / 8) >> at % 8, taken_here * 0xff & low);
      any |= upper;
      at += static_cast<uint64_t>(_mm_popcnt_u64(here)) * upper_bits;
      _mm256_store_si256(reinterpret_cast<__m256i*>(above + i),
                         _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(upper + taken_here))));
    }
    any |= any >> 32;
    any |= any >> 16;
    all = static_cast<uint32_t>((any | any >> 8) & 0xff);
  }
  return bit_width(all) == upper_bits ? taken : 0;
}

// bits <= 24
inline uint64_t pfor_ungap_avx2(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next,
                                const uint32_t* above, uint32_t* x) {
  if (n != gap_block || static_cast<size_t>(end - in) < packed_size(n, bits) + unpack_8::reach(bits))
    return pfor_ungap_scalar(in, end, n, bits, next, above, x);
  const unpack_8 unpack(bits);
  index_steps_8 step(next);
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(bits));
  for (size_t i = 0; i < n; i += 8, in += bits) {
    const __m256i high = _mm256_sll_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(above + i)), shift);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x + i), step(_mm256_or_si256(unpack(in), high)));
  }
  return step.behind(next);
}
DR_ISA_END

DR_AVX512_BEGIN
inline pfor_form pfor_form_avx512(const uint32_t* gaps, size_t n) {
  if (n != gap_block) return pfor_form_scalar(gaps, n);
  __m512i widest = _mm512_setzero_si512(), widths[2];
  for (unsigned i = 0; i < 2; ++i) {
    __m128i w[4];
    for (unsigned j = 0; j < 4; ++j) {
      const __m512i gap = _mm512_loadu_si512(gaps + 64 * i + 16 * j);
      widest = _mm512_max_epu32(widest, gap);
      w[j] = _mm512_cvtepi32_epi8(_mm512_sub_epi32(_mm512_set1_epi32(32), _mm512_lzcnt_epi32(gap)));
    }
    widths[i] =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(w[1], w[0])), _mm256_set_m128i(w[3], w[2]), 1);
  }
  return pfor_least(n, _mm512_reduce_max_epu32(widest), [&](unsigned bits) {
    const __m512i limit = _mm512_set1_epi8(static_cast<char>(bits));
    return static_cast<unsigned>(_mm_popcnt_u64(_mm512_cmpgt_epi8_mask(widths[0], limit)) +
                                 _mm_popcnt_u64(_mm512_cmpgt_epi8_mask(widths[1], limit)));
  });
}

// `upper` has room for 15 behind its last.
inline void pfor_split_avx512(const uint32_t* gaps, size_t n, unsigned bits, uint32_t* low, uint64_t* which,
                              uint32_t* upper) {
  if (n != gap_block) return pfor_split_scalar(gaps, n, bits, low, which, upper);
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(low_mask(bits)));
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(bits));
  for (size_t word = 0; word < 2; ++word, gaps += 64, low += 64) {
    uint64_t within = 0;
    for (unsigned i = 0; i < 64; i += 16) {
      const __m512i gap = _mm512_loadu_si512(gaps + i);
      const __mmask16 wider = _mm512_cmpgt_epu32_mask(gap, mask);
      _mm512_storeu_si512(low + i, _mm512_and_si512(gap, mask));
      _mm512_storeu_si512(upper, _mm512_maskz_compress_epi32(wider, _mm512_srl_epi32(gap, shift)));
      upper += _mm_popcnt_u32(wider);
      within |= uint64_t{wider} << i;
    }
    which[word] = within;
  }
}

// Where each eight numbers of so many bits have their bytes, and one more that a shift reaches into.
inline constexpr auto pfor_upper_bytes = [] {
  std::array<std::array<uint8_t, 64>, 8> from{};
  for (unsigned bits = 0; bits < 8; ++bits)
    for (unsigned i = 0; i < 64; ++i) from[bits][i] = static_cast<uint8_t>(i / 8 * bits + i % 8);
  return from;
}();

// Bitmaps whose numbers fit a byte, 64 at a time.
inline uint64_t pfor_above_avx512(const uint8_t* in, uint64_t size, const uint8_t* end, size_t n, pfor_head head,
                                  uint32_t* above) {
  const unsigned upper_bits = head.upper_bits;
  if (n != gap_block || head.exceptions != pfor_bitmap || upper_bits > 7 || end - in < 16 + 56 + 64)
    return pfor_above_avx2(in, size, end, n, head, above);
  if (size < 16) return 0;
  uint64_t which[2];
  std::memcpy(which, in, 16);
  const auto exceptions = static_cast<unsigned>(_mm_popcnt_u64(which[0]) + _mm_popcnt_u64(which[1]));
  const uint64_t taken = pfor_whole_bitmap(in, size, n, exceptions, upper_bits);
  if (taken == 0) return 0;
  in += 16;
  const __m512i bytes_of = _mm512_loadu_si512(pfor_upper_bytes[upper_bits].data());
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(low_mask(upper_bits)));
  const uint64_t ones = 0x0101010101010101, steps = 0x0706050403020100 * upper_bits;
  __m512i all = _mm512_setzero_si512();
  uint64_t at = 0;
  for (unsigned half = 0; half < 2; ++half, above += 64) {
    const __m512i words = _mm512_permutexvar_epi8(bytes_of, _mm512_loadu_si512(in + at / 8));
    const __m512i shifts = _mm512_set1_epi64(static_cast<int64_t>(steps + at % 8 * ones));
    const __m512i uppers = _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, words), mask);
    __m512i placed = _mm512_maskz_expand_epi8(which[half], uppers);
    all = _mm512_or_si512(all, placed);
    placed = _mm512_mask_sub_epi8(placed, which[half], placed, _mm512_set1_epi8(-1));
    _mm512_store_si512(above, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(placed)));
    _mm512_store_si512(above + 16, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(placed, 1)));
    _mm512_store_si512(above + 32, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(placed, 2)));
    _mm512_store_si512(above + 48, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(placed, 3)));
    at += static_cast<uint64_t>(_mm_popcnt_u64(which[half])) * upper_bits;
  }
  const __m512i top = _mm512_set1_epi8(static_cast<char>((1u << upper_bits) >> 1));
  return upper_bits == 0 || _mm512_test_epi8_mask(all, top) ? taken : 0;
}

inline uint64_t pfor_ungap_avx512(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next,
                                  const uint32_t* above, uint32_t* x) {
  if (n != gap_block) return pfor_ungap_scalar(in, end, n, bits, next, above, x);
  const unpack_16 unpack(bits);
  index_steps_16 step(next);
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(bits));
  for (size_t i = 0; i < n; i += 16, in += 2 * bits) {
    const __m512i high = _mm512_sll_epi32(_mm512_load_si512(above + i), shift);
    _mm512_storeu_si512(x + i, step(_mm512_or_si512(unpack(in), high)));
  }
  return step.behind(next);
}
DR_ISA_END
inline constexpr cpu_table<pfor_form_fn> pfor_form_of{pfor_form_scalar, pfor_form_avx2, pfor_form_avx512};
inline constexpr cpu_table<pfor_split_fn> pfor_split{pfor_split_scalar, pfor_split_avx2, pfor_split_avx512};
inline constexpr cpu_table<pfor_above_fn> pfor_above{pfor_above_scalar, pfor_above_avx2, pfor_above_avx512};
inline constexpr cpu_table<pfor_ungap_fn> pfor_ungap{pfor_ungap_scalar, pfor_ungap_avx2, pfor_ungap_avx512};
#else
inline constexpr cpu_table<pfor_form_fn> pfor_form_of{pfor_form_scalar};
inline constexpr cpu_table<pfor_split_fn> pfor_split{pfor_split_scalar};
inline constexpr cpu_table<pfor_above_fn> pfor_above{pfor_above_scalar};
inline constexpr cpu_table<pfor_ungap_fn> pfor_ungap{pfor_ungap_scalar};
#endif

inline uint64_t delta_pfor_size(const uint32_t* x, uint64_t n, cpu_level level) {
  const pfor_form_fn form_of = pfor_form_of.at(level);
  uint64_t size = pfor_head_size * ceil_div(n, gap_block);
  each_gap_block(x, n, level,
                 [&](uint64_t, size_t m, const uint32_t* gaps, unsigned) { size += form_of(gaps, m).size; });
  return size;
}

// The exceptions of a block of n behind its low bits. upper: less one, since none is 0. Returns the end.
inline uint8_t* pfor_put_exceptions(const uint64_t* which, uint32_t* upper, size_t n, const pfor_form& form,
                                    pack_fn pack_at, uint8_t* out) {
  if (!pfor_listed(n, form.exceptions)) {
    std::memcpy(out, which, ceil_div(n, 8));
    return pack_at(upper, form.exceptions, form.upper_bits, out + ceil_div(n, 8));
  }
  const unsigned position_bits = pfor_position_bits(n);
  const bool fit = position_bits + form.upper_bits <= 32;
  bit_writer writer(out);
  unsigned i = 0;
  for (const uint64_t word : {0, 1})
    for (uint64_t left = which[word]; left; left &= left - 1, ++i) {
      const uint32_t position = static_cast<uint32_t>(64 * word) + countr_zero(left);
      if (fit) {
        upper[i] = position | upper[i] << position_bits;
      } else {
        writer.put(position, position_bits);
        writer.put(upper[i], form.upper_bits);
      }
    }
  return fit ? pack_at(upper, form.exceptions, position_bits + form.upper_bits, out) : writer.finish();
}

//   x [n] strictly ascending     out: delta_pfor_bound bytes. Returns bytes written.
inline uint64_t delta_pfor_encode(const uint32_t* x, uint64_t n, cpu_level level, uint8_t* out) {
  const pfor_form_fn form_of = pfor_form_of.at(level);
  const pfor_split_fn split_at = pfor_split.at(level);
  const pack_fn pack_at = pack_bits.at(level);
  uint8_t *head = out, *body = out + pfor_head_size * ceil_div(n, gap_block);
  each_gap_block(x, n, level, [&](uint64_t, size_t m, const uint32_t* gaps, unsigned) {
    const pfor_form form = form_of(gaps, m);
    const unsigned exceptions = pfor_listed(m, form.exceptions) ? form.exceptions : pfor_bitmap;
    store(head, pfor_pack_head({form.bits, form.upper_bits, exceptions}));
    head += pfor_head_size;
    if (form.exceptions == 0) {
      body = pack_at(gaps, m, form.bits, body);
      return;
    }
    uint32_t low[gap_block], upper[gap_block + pfor_room];
    uint64_t which[2];
    split_at(gaps, m, form.bits, low, which, upper);
    for (unsigned i = 0; i < form.exceptions; ++i) --upper[i];
    body = pack_at(low, m, form.bits, body);
    body = pfor_put_exceptions(which, upper, m, form, pack_at, body);
  });
  return static_cast<uint64_t>(body - out);
}

// Returns false and sets *where (a byte of the payload) if it is corrupt.
inline bool delta_pfor_decode(const uint8_t* in, uint64_t size, uint64_t n, uint64_t universe, cpu_level level,
                              uint32_t* x, uint64_t* where) {
  const pfor_above_fn above_of = pfor_above.at(level);
  const ungap_fn ungap_at = ungap.at(level);
  const pfor_ungap_fn patched_at = pfor_ungap.at(level);
  // Exceptions of a few blocks first: a vector that is read soon after numbers were put in it waits for them (1.2 times slower).
  struct block {
    pfor_head head;
    uint64_t at;
    alignas(64) uint32_t above[gap_block + 1];
  };
  block ahead[4];
  uint64_t at = pfor_head_size * ceil_div(n, gap_block), next = 0;
  *where = 0;
  if (at > size) return false;
  const auto length = [n](uint64_t i) { return static_cast<size_t>(n - i < gap_block ? n - i : gap_block); };
  // Reads what the block of index i has beside its low bits, and goes behind it.
  const auto read = [&](block& b, uint64_t i) {
    *where = pfor_head_size * (i / gap_block);
    const pfor_head head = b.head = pfor_unpack_head(load<uint16_t>(in + *where));
    const uint64_t low_bits = uint64_t{length(i)} * head.bits, low = ceil_div(low_bits, 8);
    if (head.bits > 32 || low > size - at) return false;
    if (head.exceptions ? head.bits == 32 || head.bits + head.upper_bits > 32 : head.upper_bits != 0) return false;
    *where = b.at = at;
    if (!padding_is_zero(in + at, low_bits)) return false;
    at += low;
    if (head.exceptions == 0) return true;
    const uint64_t taken = above_of(in + at, size - at, in + size, length(i), head, b.above);
    at += taken;
    return taken != 0;
  };
  const auto indices = [&](const block& b, uint64_t i) {
    uint32_t all = 0;
    if (b.head.exceptions == 0)
      next = ungap_at(in + b.at, in + size, length(i), b.head.bits, next, x + i, all);
    else
      next = (pfor_narrow(b.head) ? patched_at : pfor_ungap_scalar)(in + b.at, in + size, length(i), b.head.bits, next,
                                                                    b.above, x + i);
    return next <= index_end(universe) && (b.head.exceptions != 0 || bit_width(all) == b.head.bits);
  };
  for (uint64_t i = 0, done = 0; i < n;) {
    size_t blocks = 0;
    bool sound = true;
    while (blocks < std::size(ahead) && i < n && (sound = read(ahead[blocks], i))) ++blocks, i += gap_block;
    for (size_t k = 0; k < blocks; ++k, done += gap_block)
      if (!indices(ahead[k], done)) return *where = ahead[k].at, false;
    if (!sound) return false;
  }
  *where = at;
  return at == size;
}

}  // namespace dr
