// Gaps of index sets, 16 and 64 at a time: a symbol is a count of leading zeros and a shift; extras are joined in pairs, fours and
// eights to be written, and taken by byte permutation from the 32 bytes that hold those of eight.
#include "codecs/index/gap_huffman/gap_huffman_kernel.hpp"

#if DR_X86

namespace dr {

// gcc 12 warns of its own headers (PR 105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

DR_AVX512_BEGIN

void gap_split_avx512(const uint32_t* x, size_t n, uint32_t base, uint8_t* symbols, uint32_t* gaps) {
  const __m512i one = _mm512_set1_epi32(1);
  __m512i before = _mm512_set1_epi32(static_cast<int>(base - 1));
  for (size_t i = 0; i < n; i += 16) {
    const auto some = static_cast<__mmask16>(n - i >= 16 ? 0xffff : (1u << (n - i)) - 1);
    const __m512i at = _mm512_maskz_loadu_epi32(some, x + i);
    const __m512i gap = _mm512_sub_epi32(_mm512_sub_epi32(at, _mm512_alignr_epi32(at, before, 15)), one);
    const __m512i width =
        _mm512_max_epi32(_mm512_sub_epi32(_mm512_set1_epi32(30), _mm512_lzcnt_epi32(gap)), _mm512_setzero_si512());
    const __m512i symbol = _mm512_add_epi32(_mm512_add_epi32(width, width), _mm512_srlv_epi32(gap, width));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(symbols + i), _mm512_cvtepi32_epi8(symbol));
    _mm512_storeu_si512(gaps + i, gap);
    before = at;
  }
}

uint8_t* gap_extras_avx512(const uint8_t* symbols, const uint32_t* gaps, size_t n, uint8_t* out) {
  const __m512i one = _mm512_set1_epi32(1), ones = _mm512_set1_epi32(-1), low32 = _mm512_set1_epi64(0xffffffff),
                limit = _mm512_set1_epi64(64);
  word_writer bits(out);
  for (size_t i = 0; i < n; i += 16) {
    const auto some = static_cast<__mmask16>(n - i >= 16 ? 0xffff : (1u << (n - i)) - 1);
    const __m512i symbol =
        _mm512_maskz_cvtepu8_epi32(some, _mm_loadu_si128(reinterpret_cast<const __m128i*>(symbols + i)));
    const __m512i width = _mm512_max_epi32(_mm512_sub_epi32(_mm512_srli_epi32(symbol, 1), one), _mm512_setzero_si512());
    const __m512i extra = _mm512_andnot_si512(_mm512_sllv_epi32(ones, width), _mm512_loadu_si512(gaps + i));
    const __m512i width0 = _mm512_and_si512(width, low32);
    const __m512i two =
        _mm512_or_si512(_mm512_and_si512(extra, low32), _mm512_sllv_epi64(_mm512_srli_epi64(extra, 32), width0));
    const __m512i two_width = _mm512_add_epi64(width0, _mm512_srli_epi64(width, 32));
    const __m512i four_width = _mm512_add_epi64(two_width, _mm512_bsrli_epi128(two_width, 8));
    alignas(64) uint64_t word[8], length[8];
    if (_mm512_mask_cmpgt_epu64_mask(0x55, four_width, limit)) {
      _mm512_store_si512(word, two);
      _mm512_store_si512(length, two_width);
      for (int j = 0; j < 8; ++j) bits.put(word[j], static_cast<unsigned>(length[j]));
      continue;
    }
    const __m512i four = _mm512_or_si512(two, _mm512_sllv_epi64(_mm512_bsrli_epi128(two, 8), two_width));
    // Of each 256 bits the upper four to the lower.
    const __m512i eight_width = _mm512_add_epi64(four_width, _mm512_permutex_epi64(four_width, 0xee));
    if (_mm512_mask_cmpgt_epu64_mask(0x11, eight_width, limit)) {
      _mm512_store_si512(word, four);
      _mm512_store_si512(length, four_width);
      for (int j = 0; j < 8; j += 2) bits.put(word[j], static_cast<unsigned>(length[j]));
      continue;
    }
    const __m512i eight = _mm512_or_si512(four, _mm512_sllv_epi64(_mm512_permutex_epi64(four, 0xee), four_width));
    _mm512_store_si512(word, eight);
    _mm512_store_si512(length, eight_width);
    for (int j = 0; j < 8; j += 4) bits.put(word[j], static_cast<unsigned>(length[j]));
  }
  return bits.finish();
}

namespace {

struct byte_tables {
  alignas(64) uint8_t width[64], top[64];
  alignas(64) uint8_t four[4][64], one[4][64];  // of quarter q, byte i to four bytes, and to the lowest of four
  alignas(64) uint8_t offset[64];               // bytes of the four; the second eight's window is at 32

  constexpr byte_tables() : width(), top(), four(), one(), offset() {
    for (unsigned i = 0; i < 64; ++i) {
      width[i] = static_cast<uint8_t>(gap_width(i));
      top[i] = static_cast<uint8_t>(gap_top(i));
      for (unsigned q = 0; q < 4; ++q) one[q][i] = four[q][i] = static_cast<uint8_t>(16 * q + i / 4);
      offset[i] = static_cast<uint8_t>(i % 4 + i / 32 * 32);
    }
  }
};
constexpr byte_tables tables;

}  // namespace

bool gap_join_avx512(const uint8_t* symbols, size_t n, const uint8_t* extras, size_t size, uint64_t base, uint64_t end,
                     uint32_t* x) {
  const __m512i zero = _mm512_setzero_si512(), widths = _mm512_load_si512(tables.width),
                tops = _mm512_load_si512(tables.top);
  const auto first_bytes = [](size_t count) { return count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1; };
  // 64 symbols of a string; beyond its end zeros, which are no bits.
  const auto symbols_at = [&](size_t i) {
    return _mm512_maskz_loadu_epi8(
        first_bytes(n - i), symbols + i / level_huffman_string * level_huffman_stride + i % level_huffman_string);
  };
  __m512i sums = zero;
  __mmask64 wide = 0;
  for (size_t i = 0; i < n; i += 64) {
    const __m512i s = symbols_at(i);
    sums = _mm512_add_epi64(sums, _mm512_sad_epu8(_mm512_permutexvar_epi8(s, widths), zero));
    wide |= _mm512_cmpgt_epu8_mask(s, _mm512_set1_epi8(53));
  }
  const auto bits = static_cast<uint64_t>(_mm512_reduce_add_epi64(sums));
  if ((bits + 7) / 8 != size || (bits % 8 && extras[bits / 8] >> bits % 8)) return false;
  if (wide) return gap_join_with(symbols, n, extras, size, base, end, x);  // more than 25 bits and 7 of a byte

  const __m512i one = _mm512_set1_epi32(1), ones = _mm512_set1_epi32(-1), last = _mm512_set1_epi32(15);
  const __m512i offset = _mm512_load_si512(tables.offset);
  const __m512i repeat = _mm512_set4_epi32(0x08080808, 0x08080808, 0, 0);  // the lowest byte of each eight
  __m512i from = zero;                                                     // bit, in each of eight lanes
  __m512i next = _mm512_set1_epi32(static_cast<int>(base - 1)), thousands = zero;
  for (size_t i = 0; i < n; i += 64) {
    const __m512i s = symbols_at(i), width = _mm512_permutexvar_epi8(s, widths), top = _mm512_permutexvar_epi8(s, tops);
    __m512i behind = _mm512_add_epi8(width, _mm512_slli_epi64(width, 8));  // at most 8 · 25
    behind = _mm512_add_epi8(behind, _mm512_slli_epi64(behind, 16));
    behind = _mm512_add_epi8(behind, _mm512_slli_epi64(behind, 32));
    __m512i total = _mm512_srli_epi64(behind, 56);
    total = _mm512_add_epi64(total, _mm512_alignr_epi64(total, zero, 7));
    total = _mm512_add_epi64(total, _mm512_alignr_epi64(total, zero, 6));
    total = _mm512_add_epi64(total, _mm512_alignr_epi64(total, zero, 4));
    const __m512i eights = _mm512_add_epi64(from, _mm512_alignr_epi64(total, zero, 7));
    from = _mm512_add_epi64(from, _mm512_permutexvar_epi64(_mm512_set1_epi64(7), total));
    alignas(64) uint64_t window[8];
    _mm512_store_si512(window, _mm512_srli_epi64(eights, 3));
    const __m512i phase = _mm512_and_si512(_mm512_shuffle_epi8(eights, repeat), _mm512_set1_epi8(7));
    const __m512i bit = _mm512_add_epi8(_mm512_slli_epi64(behind, 8), phase);  // in its window
    const __m512i byte = _mm512_and_si512(_mm512_srli_epi16(bit, 3), _mm512_set1_epi8(31)),
                  shift = _mm512_and_si512(bit, _mm512_set1_epi8(7));
    for (unsigned q = 0; q < 4 && i + 16 * q < n; ++q) {
      const __m512i bytes = _mm512_inserti64x4(
          _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(extras + window[2 * q]))),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(extras + window[2 * q + 1])), 1);
      const __m512i place = _mm512_add_epi8(_mm512_permutexvar_epi8(_mm512_load_si512(tables.four[q]), byte), offset);
      constexpr __mmask64 lowest = 0x1111111111111111;
      const __m512i pick = _mm512_load_si512(tables.one[q]);
      const __m512i by = _mm512_maskz_permutexvar_epi8(lowest, pick, shift),
                    w = _mm512_maskz_permutexvar_epi8(lowest, pick, width),
                    high = _mm512_maskz_permutexvar_epi8(lowest, pick, top);
      const __m512i extra = _mm512_srlv_epi32(_mm512_permutexvar_epi8(place, bytes), by);
      // bits of `high` above the width, of `extra` below
      const __m512i gap =
          _mm512_ternarylogic_epi32(_mm512_sllv_epi32(ones, w), _mm512_sllv_epi32(high, w), extra, 0xca);
      thousands = _mm512_add_epi32(thousands, _mm512_srli_epi32(gap, 12));
      __m512i sum = _mm512_add_epi32(gap, one);
      sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 15));
      sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 14));
      sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 12));
      sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 8));
      const __m512i at = _mm512_add_epi32(next, sum);
      if (i + 16 * q + 16 <= n)
        _mm512_storeu_si512(x + i + 16 * q, at);
      else
        _mm512_mask_storeu_epi32(x + i + 16 * q, static_cast<__mmask16>((1u << (n - i - 16 * q)) - 1), at);
      next = _mm512_permutexvar_epi32(last, at);
    }
  }
  // Sums are modulo 2^32. Gaps of which each may have lost 4095 in `thousands` do not reach that, or all is done once more.
  const __m512i low = _mm512_and_si512(thousands, _mm512_set1_epi64(0xffffffff)),
                high = _mm512_srli_epi64(thousands, 32);
  const uint64_t least = static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(low, high))) << 12;
  if (least + (uint64_t{n} << 12) > 0xffffffff) return gap_join_with(symbols, n, extras, size, base, end, x);
  return uint64_t{x[n - 1]} + 1 == end;
}

DR_ISA_END

}  // namespace dr

#endif
