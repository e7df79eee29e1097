// Gaps of index sets, eight at a time: a symbol is an exponent and the highest bit of a mantissa; extras are joined in
// fours and eights to be written, and taken by byte permutation from the 16 bytes that hold those of four.
#include "codecs/index/gap_huffman/gap_symbols_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

__m256i load256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
__m128i load128(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
__m256i eight_bytes(const void* from) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
}
void store256(void* to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
__m256i all32(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }

}  // namespace

void gap_split_avx2(const uint32_t* x, size_t n, uint32_t base, uint8_t* symbols, uint32_t* gaps) {
  __m256i all = _mm256_setzero_si256();
  const auto eight = [&](const uint32_t* before, uint32_t* to) {
    // after - before - 1
    const __m256i gap = _mm256_add_epi32(load256(before + 1), _mm256_xor_si256(load256(before), all32(~0u)));
    store256(to, gap);
    all = _mm256_or_si256(all, gap);
    // A float's bits from the exponent to the mantissa's highest, which no rounding changes: of the bits below the two
    // highest the first is cleared.
    const __m256i number = _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_andnot_si256(_mm256_srli_epi32(gap, 2), gap)));
    return _mm256_max_epi32(_mm256_sub_epi32(_mm256_srli_epi32(number, 22), all32(2 * 127)),
                            _mm256_min_epu32(gap, all32(1)));
  };
  for (size_t i = 0; i < n; i += 32) {
    const uint32_t* before = x + i - 1;
    uint32_t copy[33];
    if (i == 0 || n - i < 32) {
      copy[0] = i ? x[i - 1] : base - 1;
      for (size_t j = 0; j < 32; ++j) copy[j + 1] = i + j < n ? x[i + j] : copy[j] + 1;
      before = copy;
    }
    const __m256i a = eight(before, gaps + i), b = eight(before + 8, gaps + i + 8),
                  c = eight(before + 16, gaps + i + 16), d = eight(before + 24, gaps + i + 24);
    const __m256i fours = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    store256(symbols + i, _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  }
  if (_mm256_movemask_ps(_mm256_castsi256_ps(all)))
    gap_split_with(x, n, base, symbols, gaps);  // 2^31 is a negative float
}

uint8_t* gap_extras_avx2(const uint8_t* symbols, const uint32_t* gaps, size_t n, uint8_t* out) {
  constexpr uint64_t put_max = 56;
  const __m256i low32 = _mm256_set1_epi64x(0xffffffff);
  bit_appender bits{out};
  size_t i = 0;
  const auto put_each = [&](size_t end) {
    for (size_t j = i; j < end; ++j) {
      const unsigned width = gap_width(symbols[j]);
      bits.put(gaps[j] & low_mask(width), width);
    }
  };
  for (; i + 8 <= n; i += 8) {
    const __m256i width = _mm256_subs_epu16(_mm256_srli_epi32(eight_bytes(symbols + i), 1), all32(1));
    const __m256i extra = _mm256_andnot_si256(_mm256_sllv_epi32(all32(~0u), width), load256(gaps + i));
    const __m256i width0 = _mm256_and_si256(width, low32);
    const __m256i two =
        _mm256_or_si256(_mm256_and_si256(extra, low32), _mm256_sllv_epi64(_mm256_srli_epi64(extra, 32), width0));
    const __m256i two_width = _mm256_add_epi64(width0, _mm256_srli_epi64(width, 32));
    const __m256i four = _mm256_or_si256(two, _mm256_sllv_epi64(_mm256_bsrli_epi128(two, 8), two_width));
    const __m256i four_width = _mm256_add_epi64(two_width, _mm256_bsrli_epi128(two_width, 8));
    const auto first = [](__m128i v) { return static_cast<uint64_t>(_mm_cvtsi128_si64(v)); };
    const uint64_t low = first(_mm256_castsi256_si128(four)), high = first(_mm256_extracti128_si256(four, 1)),
                   low_width = first(_mm256_castsi256_si128(four_width)),
                   high_width = first(_mm256_extracti128_si256(four_width, 1));
    if (low_width + high_width <= put_max) {
      bits.put(low | high << low_width, static_cast<unsigned>(low_width + high_width));
    } else if (low_width <= put_max && high_width <= put_max) {
      bits.put(low, static_cast<unsigned>(low_width));
      bits.put(high, static_cast<unsigned>(high_width));
    } else {
      put_each(i + 8);
    }
  }
  put_each(n);
  return bits.finish();
}

bool gap_join_avx2(const uint8_t* symbols, size_t n, const uint8_t* extras, size_t size, uint64_t base, uint64_t end,
                   uint32_t* x) {
  constexpr uint64_t each_byte = 0x0101010101010101;
  // Widths and the bits before the extras, as bytes.
  alignas(32) uint8_t widths[gap_huffman_block + 32], tops[gap_huffman_block + 32];
  const auto string_at = [&](size_t i) {
    return symbols + i / level_huffman_string * level_huffman_stride + i % level_huffman_string;
  };
  __m256i sums = _mm256_setzero_si256(), widest = sums;
  for (size_t i = 0; i < n; i += 32) {
    __m256i s = load256(string_at(i));
    if (n - i < 32) {  // zeros after it, which have no bits
      alignas(32) uint8_t some[32] = {};
      std::memcpy(some, string_at(i), n - i);
      s = load256(some);
    }
    const __m256i half = _mm256_and_si256(_mm256_srli_epi16(s, 1), _mm256_set1_epi8(127));
    const __m256i width = _mm256_subs_epu8(half, _mm256_set1_epi8(1));
    store256(widths + i, width);
    store256(tops + i, _mm256_sub_epi8(s, _mm256_add_epi8(width, width)));
    sums = _mm256_add_epi64(sums, _mm256_sad_epu8(width, _mm256_setzero_si256()));
    widest = _mm256_max_epu8(widest, width);
  }
  alignas(32) uint64_t lanes[4];
  store256(lanes, sums);
  const uint64_t all = lanes[0] + lanes[1] + lanes[2] + lanes[3];
  if ((all + 7) / 8 != size || (all % 8 && extras[all / 8] >> all % 8)) return false;
  // An extra is taken from 4 bytes, 7 bits of which may be before it.
  const __m256i fits = _mm256_set1_epi8(25);
  if (_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(widest, fits), fits)) != -1)
    return gap_join_with(symbols, n, extras, size, base, end, x);

  const __m256i repeat = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4, 8,
                                          8, 8, 8, 12, 12, 12, 12);
  const __m256i offset = all32(0x03020100), seven = all32(7), ones = all32(~0u), last = seven, last_of_low = all32(3),
                high_half = _mm256_setr_epi32(0, 0, 0, 0, -1, -1, -1, -1);
  __m256i next = _mm256_add_epi32(all32(static_cast<uint32_t>(base)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  __m256i wrapped = _mm256_setzero_si256();
  uint64_t bit = 0;
  const auto eight = [&](size_t i) {
    // Bits before eight extras. Four extras and 7 bits of a byte are at most 127 bits: so each four has 16 bytes.
    const uint64_t each_width = load<uint64_t>(widths + i), behind = each_width * each_byte;
    const uint64_t low = behind >> 24 & 255, bit1 = bit + low;
    const uint64_t places = (behind << 8) + (bit % 8 + ((bit1 % 8 - low) << 32)) * 0x01010101;
    const __m256i place = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(places)));
    const __m256i window =
        _mm256_inserti128_si256(_mm256_castsi128_si256(load128(extras + bit / 8)), load128(extras + bit1 / 8), 1);
    bit += behind >> 56;
    const __m256i bytes = _mm256_add_epi8(_mm256_shuffle_epi8(_mm256_srli_epi32(place, 3), repeat), offset);
    const __m256i word = _mm256_srlv_epi32(_mm256_shuffle_epi8(window, bytes), _mm256_and_si256(place, seven));
    const __m256i width = eight_bytes(widths + i);
    const __m256i gap = _mm256_or_si256(_mm256_andnot_si256(_mm256_sllv_epi32(ones, width), word),
                                        _mm256_sllv_epi32(eight_bytes(tops + i), width));
    __m256i sum = _mm256_add_epi32(gap, _mm256_slli_si256(gap, 4));
    sum = _mm256_add_epi32(sum, _mm256_slli_si256(sum, 8));
    sum = _mm256_add_epi32(sum, _mm256_and_si256(_mm256_permutevar8x32_epi32(sum, last_of_low), high_half));
    const __m256i index = _mm256_add_epi32(sum, next);
    // Eight gaps are below 2^30: where all together pass 2^32, the next index falls once.
    const __m256i behind_all =
        _mm256_add_epi32(_mm256_add_epi32(next, all32(8)), _mm256_permutevar8x32_epi32(sum, last));
    wrapped = _mm256_or_si256(wrapped, _mm256_cmpeq_epi32(_mm256_min_epu32(behind_all, next), behind_all));
    next = behind_all;
    return index;
  };
  size_t i = 0;
  for (; i + 8 <= n; i += 8) store256(x + i, eight(i));
  uint64_t reached = static_cast<uint32_t>(_mm256_cvtsi256_si32(next));
  bool beyond = _mm256_cvtsi256_si32(wrapped) != 0;
  if (i < n) {
    alignas(32) uint32_t index[8];
    store256(index, eight(i));
    std::memcpy(x + i, index, 4 * (n - i));
    beyond |= x[n - 1] < reached;
    reached = uint64_t{x[n - 1]} + 1;
  }
  return beyond ? gap_join_with(symbols, n, extras, size, base, end, x) : reached == end;
}

}  // namespace dr
DR_ISA_END
#endif
