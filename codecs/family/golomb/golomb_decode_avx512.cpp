// Split Golomb decoded at 32 indices a step: ones of the unary string by compress, v by multishift, extras by pdep, one
// prefix sum.
#include "codecs/family/golomb/golomb_lanes.hpp"
#include "codecs/family/golomb/golomb_payload.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {
namespace {

constexpr size_t group = adaptive_group, block_max = size_t{1} << golomb_block_log2_max;

// Unpacks 32 fields of `bits` bits, at most 15, from 4 * bits bytes.
struct unpacker {
  alignas(64) uint8_t spread[64], shift[64];
  uint16_t mask;
};
struct unpacker_table {
  unpacker of[16]{};
  constexpr unpacker_table() {
    for (unsigned bits = 0; bits < 16; ++bits)
      for (unsigned i = 0; i < 64; ++i) {
        const unsigned first = i / 8 * 4 * bits;  // bit of the first field of this 64-bit lane
        of[bits].spread[i] = static_cast<uint8_t>(first / 8 + i % 8);
        of[bits].shift[i] = static_cast<uint8_t>(first % 8 + i % 8 / 2 * bits + i % 2 * 8);
        of[bits].mask = static_cast<uint16_t>((1u << bits) - 1);
      }
  }
};
constexpr unpacker_table unpackers;

__m512i all32(uint64_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }

__m512i load_tail(const uint8_t* from, size_t rest) {  // of 64 bytes those that are there
  return rest >= 64 ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(low_mask(static_cast<unsigned>(rest)), from);
}

// Positions of the first n ones of a bit string of at most 65535 bits; 0 if there are fewer, else the bits up to the
// last of them.
size_t select_ones(const uint8_t* bits, size_t size, size_t n, uint16_t* positions) {
  const __m512i step = _mm512_set1_epi16(32);
  __m512i iota = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11,
                                  10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  size_t found = 0, at = 0;
  for (; found < n && at + 8 <= size; at += 8) {
    const uint64_t word = load<uint64_t>(bits + at);
    const auto low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> 32);
    _mm512_storeu_si512(positions + found, _mm512_maskz_compress_epi16(low, iota));
    iota = _mm512_add_epi16(iota, step);
    const size_t between = found + static_cast<size_t>(_mm_popcnt_u32(low));
    _mm512_storeu_si512(positions + between, _mm512_maskz_compress_epi16(high, iota));
    iota = _mm512_add_epi16(iota, step);
    found += static_cast<size_t>(_mm_popcnt_u64(word));
  }
  for (; found < n && at < size; at += 4) {
    const size_t rest = size - at;
    const auto word = static_cast<uint32_t>(load_bytes(bits + at, rest < 4 ? static_cast<unsigned>(rest) : 4));
    _mm512_storeu_si512(positions + found, _mm512_maskz_compress_epi16(word, iota));
    iota = _mm512_add_epi16(iota, step);
    found += static_cast<size_t>(_mm_popcnt_u32(word));
  }
  return found < n ? 0 : positions[n - 1] + size_t{1};
}

// Keeps a constant in a register: gcc would recompute it in every iteration of a loop.
__m512i pinned(__m512i v) {
  __asm__("" : "+v"(v));
  return v;
}
__mmask32 pinned(__mmask32 m) {
  __asm__("" : "+Yk"(m));
  return m;
}

// At least 32 bits of a string from bit `at` on, zeros past its `size` bytes; `begin` is where readable memory
// begins.
[[gnu::always_inline]] inline uint64_t bits_from(const uint8_t* string, uint64_t at, size_t size,
                                                 const uint8_t* begin) {
  const size_t byte = at / 8;
  if (byte + 8 <= size) return load<uint64_t>(string + byte) >> at % 8;
  const uint8_t* const end = string + size;
  if (end - begin < 8) return byte < size ? load_bytes(string + byte, static_cast<unsigned>(size - byte)) >> at % 8 : 0;
  const uint64_t gone = at + 64 - 8 * size;  // bits of the last 8 bytes that are before `at`
  return gone < 64 ? load<uint64_t>(end - 8) >> gone : 0;
}

// Inclusive sums of 32 lanes, all below 2^16. (Shifts and additions where they do: shuffles are scarcer.)
struct summer {
  __m512i third = pinned(_mm512_set4_epi32(0x07060706, 0x07060706, -1, -1));  // of the lower quadword, to the upper
  __m512i seventh = pinned(_mm512_set_epi16(23, 23, 23, 23, 23, 23, 23, 23, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7,
                                            7, 0, 0, 0, 0, 0, 0, 0, 0));
  __m512i fifteenth = pinned(_mm512_set1_epi16(15));
  __mmask32 odd = pinned(__mmask32{0xff00ff00}), upper = pinned(__mmask32{0xffff0000});

  summer() {}  // (an implied one would not be compiled for these instructions)
  [[gnu::always_inline]] inline __m512i operator()(__m512i v) const {
    v = _mm512_add_epi16(v, _mm512_slli_epi64(v, 16));
    v = _mm512_add_epi16(v, _mm512_slli_epi64(v, 32));
    v = _mm512_add_epi16(v, _mm512_shuffle_epi8(v, third));
    v = _mm512_mask_add_epi16(v, odd, v, _mm512_permutexvar_epi16(seventh, v));
    return _mm512_mask_add_epi16(v, upper, v, _mm512_permutexvar_epi16(fifteenth, v));
  }
};
__m512i sums_of32(__m512i v) {
  const __m512i zero = _mm512_setzero_si512();
  v = _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 15));
  v = _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 14));
  v = _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 12));
  return _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 8));
}

template <bool wide>  // 32 remainders whose sum passes 15 bits
bool get_block(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, golomb_code code, uint32_t* x) {
  const bool has_low = code.divisor > 1;
  const uint64_t low_total = has_low ? uint64_t{code.low_bits} * n : 0;
  const size_t low_size = static_cast<size_t>(ceil_div(low_total, 8));
  if (low_size > size || !padding_is_zero(body, low_total)) return false;
  const uint8_t* const unary = body + low_size;
  const size_t unary_max = size - low_size;

  alignas(64) uint16_t positions[block_max + 2 * group];
  const size_t unary_bits = select_ones(unary, unary_max < 8191 ? unary_max : 8191, n, positions);
  if (!unary_bits) return unary_max > 8191 && golomb_decode_block(body, size, n, base, end, code, x);
  if (!wide && unary_bits > 32768) return get_block<true>(body, size, n, base, end, code, x);
  if (!padding_is_zero(unary, unary_bits)) return false;
  const size_t unary_size = ceil_div(unary_bits, 8), extra_max = unary_max - unary_size;
  const uint8_t* const extra = unary + unary_size;

  // r + s = v + max(v, s) + extra bit, and x_i = base + M · pos_i + Σ (r_j + s) − s + i · (1 − M − s).
  const auto m = static_cast<uint32_t>(code.divisor), s = has_low ? static_cast<uint32_t>(code.short_low) : 0;
  const uint32_t slope = 1 - m - s;
  const __m512i iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i step = pinned(all32(group * slope)), short_low = _mm512_set1_epi16(static_cast<short>(s));
  const uint32_t start = static_cast<uint32_t>(base) - s;
  __m512i low_offset = _mm512_add_epi32(all32(start), _mm512_mullo_epi32(iota, all32(slope)));
  __m512i high_offset = _mm512_add_epi32(low_offset, all32(16 * slope));
  const unpacker& low_bits = unpackers.of[code.low_bits];
  const __m512i one = pinned(_mm512_set1_epi16(1)), last = all32(15), weights = pinned(all32(m << 16 | 1));
  const __m512i low_pairs = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                             37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high_pairs = _mm512_add_epi16(low_pairs, _mm512_set1_epi16(16));
  const summer sums_of;
  const __m512i spread = pinned(_mm512_load_si512(low_bits.spread)), shift = pinned(_mm512_load_si512(low_bits.shift)),
                mask = pinned(_mm512_set1_epi16(static_cast<short>(low_bits.mask))),
                last_of = pinned(_mm512_set1_epi16(31));
  const __mmask32 even = pinned(__mmask32{0x55555555});
  uint64_t extra_bits = 0;
  for (size_t i = 0; i < n; i += group) {
    const uint32_t valid = golomb_valid_lanes(i, n);
    __m512i r = _mm512_setzero_si512();
    if (has_low) {
      const size_t at = i / group * 4 * code.low_bits;
      const __m512i v = _mm512_and_si512(
          _mm512_multishift_epi64_epi8(shift, _mm512_permutexvar_epi8(spread, load_tail(body + at, size - at))), mask);
      const uint32_t longer = _mm512_mask_cmpge_epu16_mask(valid, v, short_low);
      const uint32_t odd = _pdep_u32(static_cast<uint32_t>(bits_from(extra, extra_bits, extra_max, body)), longer);
      extra_bits += static_cast<unsigned>(_mm_popcnt_u32(longer));
      r = _mm512_add_epi16(v, _mm512_max_epu16(v, short_low));
      r = _mm512_mask_add_epi16(r, odd, r, one);
    }
    __m512i low, high, total;
    if constexpr (wide) {
      const __m512i sums = sums_of32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(r)));
      const __m512i more = sums_of32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(r, 1)));
      const __m512i before = _mm512_permutexvar_epi32(last, sums);
      total = _mm512_add_epi32(before, _mm512_permutexvar_epi32(last, more));
      const __m512i at = _mm512_loadu_si512(positions + i), low_at = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(at));
      const __m512i high_at = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(at, 1));
      low = _mm512_add_epi32(sums, _mm512_mullo_epi32(low_at, all32(m)));
      high = _mm512_add_epi32(_mm512_add_epi32(more, before), _mm512_mullo_epi32(high_at, all32(m)));
    } else {
      const __m512i sums = sums_of(r), at = _mm512_loadu_si512(positions + i);
      low = _mm512_madd_epi16(_mm512_permutex2var_epi16(sums, low_pairs, at), weights);
      high = _mm512_madd_epi16(_mm512_permutex2var_epi16(sums, high_pairs, at), weights);
      total = _mm512_maskz_permutexvar_epi16(even, last_of, sums);
    }
    low = _mm512_add_epi32(low, low_offset);
    high = _mm512_add_epi32(high, high_offset);
    if (valid == ~0u) {
      _mm512_storeu_si512(x + i, low);
      _mm512_storeu_si512(x + i + 16, high);
    } else {
      _mm512_mask_storeu_epi32(x + i, static_cast<__mmask16>(valid), low);
      _mm512_mask_storeu_epi32(x + i + 16, static_cast<__mmask16>(valid >> 16), high);
    }
    total = _mm512_add_epi32(total, step);
    low_offset = _mm512_add_epi32(low_offset, total);
    high_offset = _mm512_add_epi32(high_offset, total);
  }
  if (extra_max != ceil_div(extra_bits, 8) || !padding_is_zero(extra, extra_bits)) return false;
  // Strictly ascending in 64 bits, as x is made: so the last is right if its 64 bits are. The remainders' sum, below
  // 2^13 · 2^16, follows from its 32.
  const uint64_t without = base + code.divisor * (unary_bits - n) + n - 1;
  const uint32_t sum = x[n - 1] - static_cast<uint32_t>(without);
  return without + sum + 1 == end;
}

// As get_block, with constants that change from group to group. A group begins after the last index of the previous one,
// and at the one past its last.
struct adaptive_lanes {
  alignas(64) uint32_t offset[32];  // (1 − M − s) · i − s
  constexpr adaptive_lanes() : offset{} {}
};
struct adaptive_table {
  adaptive_lanes of[16]{};
  constexpr adaptive_table() {
    for (unsigned level = 0; level < 16; ++level)
      for (uint32_t i = 0; i < 32; ++i) {
        const uint32_t m = golomb_lanes_of.divisor[level], s = golomb_lanes_of.short_low[level];
        of[level].offset[i] = (1 - m - s) * i - s;
      }
  }
};
constexpr adaptive_table adaptive_offsets;

bool get_adaptive(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, uint32_t* x) {
  const size_t groups = ceil_div(n, group), table = ceil_div(groups, 2);
  golomb_group_levels levels;
  if (!levels.read(body, size, groups)) return false;
  const auto level_of = [&](size_t g) { return levels[g]; };
  const auto bits_of = [](unsigned level) { return level < 2 ? 0 : level - 1; };
  uint64_t low_total = 0;
  for (size_t g = 0; g + 1 < groups; ++g) low_total += 32 * bits_of(level_of(g));
  low_total += bits_of(level_of(groups - 1)) * (n - (groups - 1) * group);
  const uint8_t* const lows = body + table;
  const size_t low_size = static_cast<size_t>(ceil_div(low_total, 8));
  if (low_size > size - table || !padding_is_zero(lows, low_total)) return false;
  const uint8_t* const unary = lows + low_size;
  const size_t unary_max = size - table - low_size;

  alignas(64) uint16_t positions[block_max + 2 * group];
  const size_t unary_bits = select_ones(unary, unary_max < 4095 ? unary_max : 4095, n, positions);
  if (!unary_bits)
    return unary_max > 4095 && golomb_get_adaptive(body, size, n, base, end, x);  // 16-bit lanes have a sign
  if (!padding_is_zero(unary, unary_bits)) return false;
  const size_t unary_size = ceil_div(unary_bits, 8), extra_max = unary_max - unary_size;
  const uint8_t* const extra = unary + unary_size;

  const summer sums_of;
  const __m512i one = pinned(_mm512_set1_epi16(1)), last = pinned(all32(15));
  const __m512i low_pairs = pinned(_mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                                    38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0));
  const __m512i high_pairs = pinned(_mm512_add_epi16(low_pairs, _mm512_set1_epi16(16)));
  __m512i start = all32(base);  // in every lane
  uint64_t extra_bits = 0, unaries = 0, previous = 0, low_at = 0;
  for (size_t i = 0; i < n; i += group) {
    const uint32_t valid = golomb_valid_lanes(i, n);
    const unsigned level = level_of(i / group), bits = bits_of(level);
    const unpacker& low_bits = unpackers.of[bits];
    const uint32_t m = golomb_lanes_of.divisor[level];
    const __m512i short_low = _mm512_set1_epi16(static_cast<short>(golomb_lanes_of.short_low[level]));
    const __m512i packed = load_tail(lows + low_at, static_cast<size_t>(size - table - low_at));
    low_at += 4 * bits;
    const __m512i v = _mm512_and_si512(
        _mm512_multishift_epi64_epi8(_mm512_load_si512(low_bits.shift),
                                     _mm512_permutexvar_epi8(_mm512_load_si512(low_bits.spread), packed)),
        _mm512_set1_epi16(static_cast<short>(low_bits.mask)));
    const uint32_t longer = _mm512_mask_cmpge_epu16_mask(valid, v, short_low);
    const uint32_t odd = _pdep_u32(static_cast<uint32_t>(bits_from(extra, extra_bits, extra_max, body)), longer);
    extra_bits += static_cast<unsigned>(_mm_popcnt_u32(longer));
    __m512i r = _mm512_add_epi16(v, _mm512_max_epu16(v, short_low));
    r = _mm512_mask_add_epi16(r, odd, r, one);
    const __m512i at =
        _mm512_sub_epi16(_mm512_loadu_si512(positions + i), _mm512_set1_epi16(static_cast<short>(previous)));
    const uint64_t behind = positions[i + group <= n ? i + group - 1 : n - 1] + uint64_t{1};
    unaries += m * (behind - previous - (i + group <= n ? group : n - i));
    previous = behind;
    __m512i low, high;
    if (level <= 10) {  // 32 · (2^10 − 1) < 2^15
      const __m512i sums = sums_of(r), weights = all32(m << 16 | 1);
      low = _mm512_madd_epi16(_mm512_permutex2var_epi16(sums, low_pairs, at), weights);
      high = _mm512_madd_epi16(_mm512_permutex2var_epi16(sums, high_pairs, at), weights);
    } else {
      const __m512i sums = sums_of32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(r)));
      const __m512i more = sums_of32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(r, 1)));
      const __m512i low_at32 = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(at));
      const __m512i high_at32 = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(at, 1));
      low = _mm512_add_epi32(sums, _mm512_mullo_epi32(low_at32, all32(m)));
      high = _mm512_add_epi32(_mm512_add_epi32(more, _mm512_permutexvar_epi32(last, sums)),
                              _mm512_mullo_epi32(high_at32, all32(m)));
    }
    const uint32_t* const offset = adaptive_offsets.of[level].offset;
    low = _mm512_add_epi32(_mm512_add_epi32(low, _mm512_load_si512(offset)), start);
    high = _mm512_add_epi32(_mm512_add_epi32(high, _mm512_load_si512(offset + 16)), start);
    if (valid == ~0u) {
      _mm512_storeu_si512(x + i, low);
      _mm512_storeu_si512(x + i + 16, high);
    } else {
      _mm512_mask_storeu_epi32(x + i, static_cast<__mmask16>(valid), low);
      _mm512_mask_storeu_epi32(x + i + 16, static_cast<__mmask16>(valid >> 16), high);
    }
    start = _mm512_add_epi32(_mm512_permutexvar_epi32(last, high), all32(1));
  }
  if (extra_max != ceil_div(extra_bits, 8) || !padding_is_zero(extra, extra_bits)) return false;
  const uint64_t without = base + unaries + n - 1;  // and the remainders' sum, below 2^13 · 2^15, as in get_block
  return without + static_cast<uint32_t>(x[n - 1] - static_cast<uint32_t>(without)) + 1 == end;
}

}  // namespace

bool golomb_get_avx512(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, divisor_rule rule,
                       bool flagged, uint32_t* x) {
  if (flagged && rule.adaptive) return get_adaptive(body, size, n, base, end, x);
  const golomb_code code = rule.code(end - base, n, flagged);
  if (code.divisor > 65536) return golomb_decode_block(body, size, n, base, end, code, x);
  return code.divisor <= 1024 ? get_block<false>(body, size, n, base, end, code, x)  // 32 · 1023 < 2^15
                              : get_block<true>(body, size, n, base, end, code, x);
}

}  // namespace dr
DR_ISA_END
#endif
