// Gaps of index sets, 16 and 64 at a time: a symbol is a count of leading zeros and a shift; extras are joined in
// pairs, fours and eights to be written, and taken by byte permutation from the 32 bytes that hold those of eight.
#include "codecs/index/gap_huffman/gap_symbols_kernel.hpp"

#if DR_X86

namespace dr {

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
    // Moves the upper four to the lower in every 256 bits.
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

// 64 symbols are four vectors: lane i of the q-th has symbol 16 · (i mod 4) + i / 4 · 4 + q, so that what leaves four
// steps of unpacking is in order, and sums of four neighbours are sums of lanes.
struct byte_tables {
  alignas(64) uint8_t width[64], top[64];
  alignas(64) uint8_t repeat[4][64];  // byte q of four, to all four
  alignas(64) uint8_t offset[64];     // 0 1 2 3
  alignas(64) uint32_t across[16];    // fours of a 4 by 4 matrix

  constexpr byte_tables() : width(), top(), repeat(), offset(), across() {
    for (unsigned i = 0; i < 64; ++i) {
      width[i] = static_cast<uint8_t>(gap_width(i));
      top[i] = static_cast<uint8_t>(~gap_top(i));
      for (unsigned q = 0; q < 4; ++q) repeat[q][i] = static_cast<uint8_t>(i % 16 / 4 * 4 + q);
      offset[i] = i % 4;
    }
    for (unsigned i = 0; i < 16; ++i) across[i] = i % 4 * 4 + i / 4;
  }
};
constexpr byte_tables tables;

inline __m512i prefix_sum(__m512i v) {
  const __m512i zero = _mm512_setzero_si512();
  v = _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 15));
  v = _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 14));
  v = _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 12));
  return _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 8));
}

}  // namespace

bool gap_join_avx512(const uint8_t* symbols, size_t n, const uint8_t* extras, size_t size, uint64_t base, uint64_t end,
                     uint32_t* x) {
  const __m512i zero = _mm512_setzero_si512(), widths = _mm512_load_si512(tables.width),
                tops = _mm512_load_si512(tables.top);
  // 64 symbols of a string; zeros past its end, which have no bits.
  const auto symbols_at = [&](size_t i) {
    const __mmask64 some = n - i >= 64 ? ~__mmask64{0} : (__mmask64{1} << (n - i)) - 1;
    return _mm512_maskz_loadu_epi8(
        some, symbols + i / level_huffman_string * level_huffman_stride + i % level_huffman_string);
  };
  const __m512i ones = _mm512_set1_epi32(-1), last = _mm512_set1_epi32(15);
  const __m512i offset = _mm512_load_si512(tables.offset), across = _mm512_load_si512(tables.across);
  const __m512i lowest = _mm512_set4_epi32(0x08080808, 0x08080808, 0, 0);  // a byte of eight, to all eight
  __m512i next = _mm512_set1_epi32(static_cast<int>(base - 1)), high_sums = zero;
  uint64_t bit = 0;
  __mmask64 wide = 0;
  for (size_t i = 0; i < n; i += 64) {
    if (bit / 8 > size) return false;
    const __m512i s = symbols_at(i), width = _mm512_permutexvar_epi8(s, widths);
    wide |= _mm512_cmpgt_epu8_mask(s, _mm512_set1_epi8(53));
    __m512i behind = _mm512_add_epi8(width, _mm512_slli_epi64(width, 8));  // at most 8 · 25
    behind = _mm512_add_epi8(behind, _mm512_slli_epi64(behind, 16));
    behind = _mm512_add_epi8(behind, _mm512_slli_epi64(behind, 32));
    __m512i total = _mm512_srli_epi64(behind, 56);
    total = _mm512_add_epi64(total, _mm512_alignr_epi64(total, zero, 7));
    total = _mm512_add_epi64(total, _mm512_alignr_epi64(total, zero, 6));
    total = _mm512_add_epi64(total, _mm512_alignr_epi64(total, zero, 4));
    const __m512i eights =
        _mm512_add_epi64(_mm512_alignr_epi64(total, zero, 7), _mm512_set1_epi64(static_cast<long long>(bit % 8)));
    const __m512i in_byte = _mm512_and_si512(_mm512_shuffle_epi8(eights, lowest), _mm512_set1_epi8(7)),
                  from_byte = _mm512_shuffle_epi8(_mm512_srli_epi64(eights, 3), lowest);
    const __m512i place = _mm512_add_epi8(_mm512_slli_epi64(behind, 8), in_byte);
    const __m512i bytes = _mm512_permutexvar_epi32(
        across, _mm512_add_epi8(from_byte, _mm512_and_si512(_mm512_srli_epi16(place, 3), _mm512_set1_epi8(31))));
    // Shifts that bring them to the top, modulo 32.
    const __m512i up = _mm512_permutexvar_epi32(
        across, _mm512_sub_epi8(_mm512_sub_epi8(zero, width), _mm512_and_si512(place, _mm512_set1_epi8(7))));
    const __m512i w = _mm512_permutexvar_epi32(across, width);
    const __m512i tops_here = _mm512_permutexvar_epi32(across, _mm512_permutexvar_epi8(s, tops));
    const uint8_t* const from = extras + bit / 8;
    const __m512i window0 = _mm512_xor_si512(_mm512_loadu_si512(from), ones);
    const auto here = static_cast<uint64_t>(
        _mm_cvtsi128_si64(_mm512_castsi512_si128(_mm512_permutexvar_epi64(_mm512_set1_epi64(7), total))));
    const bool two = bit % 8 + here > 512;
    if (bit % 8 + here > 1024) return gap_join_with(symbols, n, extras, size, base, end, x);
    const __m512i window1 = two ? _mm512_xor_si512(_mm512_loadu_si512(from + 64), ones) : zero;
    bit += here;
    __m512i sum[4];
    for (unsigned q = 0; q < 4; ++q) {
      const __m512i repeat = _mm512_load_si512(tables.repeat[q]);
      const __m512i at = _mm512_add_epi8(_mm512_shuffle_epi8(bytes, repeat), offset);
      const __m512i word = two ? _mm512_permutex2var_epi8(window0, at, window1) : _mm512_permutexvar_epi8(at, window0);
      // All bits are inverted, so that to subtract the gap's adds it and one.
      const __m512i top = _mm512_mask_shuffle_epi8(ones, 0x1111111111111111, tops_here, repeat);
      const __m512i gap =
          _mm512_shldv_epi32(top, _mm512_rolv_epi32(word, _mm512_srli_epi32(up, 8 * q)), _mm512_srli_epi32(w, 8 * q));
      sum[q] = _mm512_sub_epi32(q ? sum[q - 1] : zero, gap);
    }
    high_sums = _mm512_add_epi32(high_sums, _mm512_srli_epi32(sum[3], 14));
    const __m512i fours = prefix_sum(_mm512_permutexvar_epi32(across, sum[3]));
    const __m512i before =
        _mm512_permutexvar_epi32(across, _mm512_add_epi32(next, _mm512_alignr_epi32(fours, zero, 15)));
    next = _mm512_add_epi32(next, _mm512_permutexvar_epi32(last, fours));
    for (__m512i& of : sum) of = _mm512_add_epi32(of, before);
    const __m512i a0 = _mm512_unpacklo_epi32(sum[0], sum[1]), a1 = _mm512_unpackhi_epi32(sum[0], sum[1]),
                  b0 = _mm512_unpacklo_epi32(sum[2], sum[3]), b1 = _mm512_unpackhi_epi32(sum[2], sum[3]);
    const __m512i in_order[4] = {_mm512_unpacklo_epi64(a0, b0), _mm512_unpackhi_epi64(a0, b0),
                                 _mm512_unpacklo_epi64(a1, b1), _mm512_unpackhi_epi64(a1, b1)};
    if (n - i >= 64)
      for (unsigned m = 0; m < 4; ++m) _mm512_storeu_si512(x + i + 16 * m, in_order[m]);
    else
      for (size_t m = 0; i + 16 * m < n; ++m)
        _mm512_mask_storeu_epi32(x + i + 16 * m,
                                 static_cast<__mmask16>(n - i - 16 * m >= 16 ? 0xffff : (1u << (n - i - 16 * m)) - 1),
                                 in_order[m]);
  }
  if ((bit + 7) / 8 != size || (bit % 8 && extras[bit / 8] >> bit % 8)) return false;
  if (wide) return gap_join_with(symbols, n, extras, size, base, end, x);  // more than 25 bits and 7 of a byte
  // Sums are modulo 2^32. Where four gaps (below 2^29) with the bits that they lost may have reached that, all is done
  // once more.
  const __m512i low = _mm512_and_si512(high_sums, _mm512_set1_epi64(0xffffffff)),
                high = _mm512_srli_epi64(high_sums, 32);
  const uint64_t least = static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(low, high))) << 14;
  if (least + (uint64_t{(n + 63) / 64} << 18) > 0xffffffff)
    return gap_join_with(symbols, n, extras, size, base, end, x);
  return uint64_t{x[n - 1]} + 1 == end;
}

DR_ISA_END

}  // namespace dr

#endif
