// Split Golomb of levels, 64 at a time, by AVX-512 with VBMI and VBMI2. Divisors above 256 and quotients that are long
// are scalar's.
#include "codecs/family/levels/split_levels.hpp"

#if DR_X86

#include <array>
#include <bit>

namespace dr {
namespace {

// For k bits per value: byte j of eight groups of k bytes is byte j % k of the 64-bit word j / k; and back.
struct pack_tables {
  alignas(64) uint8_t pack[8][64] = {}, spread[8][64] = {}, shift[8][64] = {};
};
constexpr pack_tables tables = [] {
  pack_tables t;
  for (unsigned k = 1; k < 8; ++k)
    for (unsigned j = 0; j < 64; ++j) {
      if (j < 8 * k) t.pack[k][j] = static_cast<uint8_t>(j / k * 8 + j % k);
      t.spread[k][j] = static_cast<uint8_t>(j / 8 * k + j % 8);
      t.shift[k][j] = static_cast<uint8_t>(j % 8 * k);
    }
  return t;
}();
constexpr uint32_t divisor_max = 256;  // remainders are bytes

}  // namespace

DR_AVX512_BEGIN

namespace {

// As word_writer, which is compiled for any CPU.
struct words_out {
  uint8_t* out;
  uint64_t word = 0;
  unsigned fill = 0;

  void put(uint64_t bits, unsigned length) {
    const uint64_t joined = word | bits << fill, carry = bits >> 1 >> (63 - fill);
    std::memcpy(out, &joined, 8);
    const unsigned total = fill + length;
    const uint64_t full = total / 64;
    out += full * 8;
    word = joined ^ ((joined ^ carry) & (0 - full));  // a branch would be as good as random
    fill = total % 64;
  }
  uint8_t* finish() {
    std::memcpy(out, &word, 8);
    return out + (fill + 7) / 8;
  }
};

// A 64-bit word of q holds 8 quotients; returns their codes as one string per word. False if one is longer than 64 bits, or may
// be.
inline bool unary_words(__m512i q, __m512i& words, __m512i& lengths) {
  const __m512i ones = _mm512_set1_epi16(1);
  // Pairs in 16 bits: the second code begins q0 + 1 on.
  const __m512i q0 = _mm512_and_si512(q, _mm512_set1_epi16(255)), q1 = _mm512_srli_epi16(q, 8);
  const __m512i end = _mm512_add_epi16(_mm512_add_epi16(q0, q1), ones);
  if (_mm512_cmpgt_epu16_mask(end, _mm512_set1_epi16(15))) return false;
  const __m512i pair = _mm512_or_si512(_mm512_sllv_epi16(ones, q0), _mm512_sllv_epi16(ones, end));
  const __m512i pair_length = _mm512_add_epi16(end, ones);
  const __m512i low16 = _mm512_set1_epi32(0xffff);
  const __m512i length0 = _mm512_and_si512(pair_length, low16);
  const __m512i four =
      _mm512_or_si512(_mm512_and_si512(pair, low16), _mm512_sllv_epi32(_mm512_srli_epi32(pair, 16), length0));
  const __m512i four_length = _mm512_add_epi32(length0, _mm512_srli_epi32(pair_length, 16));
  const __m512i low32 = _mm512_set1_epi64(0xffffffff);
  const __m512i length1 = _mm512_and_si512(four_length, low32);
  words = _mm512_or_si512(_mm512_and_si512(four, low32), _mm512_sllv_epi64(_mm512_srli_epi64(four, 32), length1));
  lengths = _mm512_add_epi64(length1, _mm512_srli_epi64(four_length, 32));
  return true;
}

// 64 numbers below 2^k as 8·k bytes, of 64 written.
inline void pack(__m512i v, unsigned k, uint8_t* out) {
  const __m128i k1 = _mm_cvtsi32_si128(static_cast<int>(k)), k4 = _mm_cvtsi32_si128(static_cast<int>(4 * k));
  v = _mm512_or_si512(_mm512_and_si512(v, _mm512_set1_epi16(255)), _mm512_sll_epi16(_mm512_srli_epi16(v, 8), k1));
  v = _mm512_madd_epi16(v, _mm512_set1_epi32(1 | 1 << (16 + 2 * k)));
  v = _mm512_or_si512(_mm512_and_si512(v, _mm512_set1_epi64(0xffffffff)),
                      _mm512_sll_epi64(_mm512_srli_epi64(v, 32), k4));
  _mm512_storeu_si512(out, _mm512_permutexvar_epi8(_mm512_load_si512(tables.pack[k]), v));
}

}  // namespace

uint8_t* split_levels_encode_avx512(const uint16_t* levels, size_t n, level_code code, uint8_t* out) {
  if (code.divisor > divisor_max) return split_levels_encode_scalar(levels, n, code, out);
  uint8_t unary_bytes[level_string_max], extra_bytes[level_block / 8 + level_slack];
  words_out unary{unary_bytes}, extras{extra_bytes};
  const unsigned k = code.low_bits;
  const bool divides = code.divisor > 1;
  const __m512i m = _mm512_set1_epi16(static_cast<short>(code.divisor));
  const __m512i inverse = _mm512_set1_epi16(static_cast<short>(divides ? 65536 / code.divisor : 0));
  const __m512i s = _mm512_set1_epi8(static_cast<char>(code.short_low));
  __m512i even;  // of two vectors of 16-bit numbers, the low bytes
  {
    alignas(64) uint8_t index[64];
    for (unsigned j = 0; j < 64; ++j) index[j] = static_cast<uint8_t>(2 * j);
    even = _mm512_load_si512(index);
  }
  alignas(64) uint16_t last[64] = {};
  for (size_t i = 0; i < n; i += 64) {
    const uint16_t* from = levels + i;
    const size_t length = n - i < 64 ? n - i : 64;
    if (length < 64) {
      std::memcpy(last, from, 2 * length);
      from = last;
    }
    __m512i q[2], r[2];
    for (int h = 0; h < 2; ++h) {
      const __m512i level = _mm512_loadu_si512(from + 32 * h);
      if (!divides) {
        q[h] = level;
        continue;
      }
      // ⌊65536 / M⌋ / 65536 is less than 1 / M by less than 1 / 65536, so the product is the quotient or one less.
      q[h] = _mm512_mulhi_epu16(level, inverse);
      r[h] = _mm512_sub_epi16(level, _mm512_mullo_epi16(q[h], m));
      const __mmask32 less = _mm512_cmpge_epu16_mask(r[h], m);
      q[h] = _mm512_mask_sub_epi16(q[h], less, q[h], _mm512_set1_epi16(-1));
      r[h] = _mm512_mask_sub_epi16(r[h], less, r[h], m);
    }
    const uint64_t valid = ~uint64_t{0} >> (64 - length);
    if (divides) {
      const __m512i r8 = _mm512_permutex2var_epi8(r[0], even, r[1]);
      const __m512i sum = _mm512_add_epi8(r8, s);  // below 2^c
      const __mmask64 longer = _mm512_cmpge_epu8_mask(r8, s) & valid;
      if (k) {
        const __m512i half = _mm512_and_si512(_mm512_srli_epi16(sum, 1), _mm512_set1_epi8(127));
        pack(_mm512_mask_mov_epi8(r8, longer, half), k, out);
        out += length == 64 ? 8 * k : (length * k + 7) / 8;
      }
      extras.put(_pext_u64(_mm512_test_epi8_mask(sum, _mm512_set1_epi8(1)), longer),
                 static_cast<unsigned>(_mm_popcnt_u64(longer)));
    }
    const bool bytes = !_mm512_cmpgt_epu16_mask(_mm512_max_epu16(q[0], q[1]), _mm512_set1_epi16(255));
    __m512i words, lengths;
    if (length == 64 && bytes && unary_words(_mm512_permutex2var_epi8(q[0], even, q[1]), words, lengths)) {
      alignas(64) uint64_t word[8], size[8];
      // Two strings of 8 codes in one where they fit: the even lanes.
      const __m512i both = _mm512_add_epi64(lengths, _mm512_bsrli_epi128(lengths, 8));
      if (_mm512_mask_cmpgt_epu64_mask(0x55, both, _mm512_set1_epi64(64)) == 0) {
        const __m512i joined = _mm512_or_si512(words, _mm512_sllv_epi64(_mm512_bsrli_epi128(words, 8), lengths));
        _mm512_store_si512(word, joined);
        _mm512_store_si512(size, both);
        for (int j = 0; j < 8; j += 2) unary.put(word[j], static_cast<unsigned>(size[j]));
        continue;
      }
      _mm512_store_si512(word, words);
      _mm512_store_si512(size, lengths);
      for (int j = 0; j < 8; ++j) unary.put(word[j], static_cast<unsigned>(size[j]));
      continue;
    }
    alignas(64) uint16_t quotients[64];
    _mm512_store_si512(quotients, q[0]);
    _mm512_store_si512(quotients + 32, q[1]);
    for (size_t j = 0; j < length; ++j) {
      unsigned zeros = quotients[j];
      for (; zeros >= 63; zeros -= 63) unary.put(0, 63);
      unary.put(uint64_t{1} << zeros, zeros + 1);
    }
  }
  return put_level_strings(out, unary_bytes, unary.finish(), extra_bytes, extras.finish());
}

bool split_levels_decode_avx512(const uint8_t* body, size_t size, size_t n, level_code code, uint16_t* levels) {
  const auto scalar = [&] { return split_levels_decode_scalar(body, size, n, code, levels); };
  if (code.divisor > divisor_max) return scalar();
  const unsigned k = code.low_bits;
  const size_t low_total = k * n, low_size = (low_total + 7) / 8;
  if (low_size > size || (low_total % 8 && body[low_total / 8] >> low_total % 8)) return false;
  const uint8_t* const unary = body + low_size;
  const size_t unary_max = size - low_size;

  // Positions of the ones, their low bytes: a quotient is the difference of two, for it is below 256 unless three words
  // in sequence have none.
  alignas(64) uint8_t stored[64 + level_block + 64];
  uint8_t* const position = stored + 64;
  position[-1] = 0xff;
  alignas(64) uint8_t iota[64];
  for (unsigned j = 0; j < 64; ++j) iota[j] = static_cast<uint8_t>(j);
  __m512i here = _mm512_load_si512(iota);
  size_t at = 0, found = 0;
  unsigned empty = 0;
  do {
    if (at >= unary_max) return false;
    uint64_t word;
    std::memcpy(&word, unary + at, 8);
    at += 8;
    _mm512_storeu_si512(position + found, _mm512_maskz_compress_epi8(word, here));
    here = _mm512_add_epi8(here, _mm512_set1_epi8(64));
    found += static_cast<size_t>(_mm_popcnt_u64(word));
    empty = word ? 0 : empty + 1;
    if (empty == 3) return scalar();
  } while (found < n);
  const size_t unary_bits = 8 * (at - 8) + (position[n - 1] & 63u) + 1, unary_size = (unary_bits + 7) / 8;
  if (unary_size > unary_max || (unary_bits % 8 && unary[unary_bits / 8] >> unary_bits % 8)) return false;
  const uint8_t* const extra = unary + unary_size;
  const size_t extra_max = unary_max - unary_size;

  const __m512i one = _mm512_set1_epi8(1);
  if (code.divisor == 1) {
    if (extra_max != 0) return false;
    for (size_t i = 0; i < n; i += 64) {
      const __m512i q =
          _mm512_sub_epi8(_mm512_sub_epi8(_mm512_loadu_si512(position + i), _mm512_loadu_si512(position + i - 1)), one);
      _mm512_storeu_si512(levels + i, _mm512_cvtepu8_epi16(_mm512_castsi512_si256(q)));
      _mm512_storeu_si512(levels + i + 32, _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(q, 1)));
    }
    return true;
  }
  const __m512i m = _mm512_set1_epi16(static_cast<short>(code.divisor));
  const __m512i s = _mm512_set1_epi8(static_cast<char>(code.short_low));
  const __m512i mask = _mm512_set1_epi8(static_cast<char>((1u << k) - 1));
  const __m512i spread = _mm512_load_si512(tables.spread[k]), shift = _mm512_load_si512(tables.shift[k]);
  const uint8_t* low = body;
  size_t extra_bits = 0;
  for (size_t i = 0; i < n; i += 64) {
    const size_t length = n - i < 64 ? n - i : 64;
    const uint64_t valid = ~uint64_t{0} >> (64 - length);
    const __m512i q =
        _mm512_sub_epi8(_mm512_sub_epi8(_mm512_loadu_si512(position + i), _mm512_loadu_si512(position + i - 1)), one);
    const __m512i v = _mm512_and_si512(
        _mm512_multishift_epi64_epi8(shift, _mm512_permutexvar_epi8(spread, _mm512_loadu_si512(low))), mask);
    low += 8 * k;
    const __mmask64 longer = _mm512_cmpge_epu8_mask(v, s) & valid;
    // 64 bits of the extras. The body is followed by level_slack zeros, and reads do not go
    // beyond them.
    if (extra_bits / 8 > extra_max) return false;
    uint64_t next, top;
    std::memcpy(&next, extra + extra_bits / 8, 8);
    top = extra[extra_bits / 8 + 8];
    next = next >> extra_bits % 8 | top << 1 << (63 - extra_bits % 8);
    extra_bits += static_cast<size_t>(_mm_popcnt_u64(longer));
    const __mmask64 odd = _pdep_u64(next, longer);
    __m512i r = _mm512_mask_sub_epi8(v, longer, _mm512_add_epi8(v, v), s);
    r = _mm512_mask_add_epi8(r, odd, r, one);
    const auto level = [&](__m256i q8, __m256i r8) {
      return _mm512_add_epi16(_mm512_mullo_epi16(_mm512_cvtepu8_epi16(q8), m), _mm512_cvtepu8_epi16(r8));
    };
    _mm512_storeu_si512(levels + i, level(_mm512_castsi512_si256(q), _mm512_castsi512_si256(r)));
    _mm512_storeu_si512(levels + i + 32, level(_mm512_extracti64x4_epi64(q, 1), _mm512_extracti64x4_epi64(r, 1)));
  }
  return extra_max == (extra_bits + 7) / 8 && !(extra_bits % 8 && extra[extra_bits / 8] >> extra_bits % 8);
}

DR_ISA_END

}  // namespace dr

#endif
