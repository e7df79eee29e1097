// Blocks of 128 gaps, sixteen at a time.
#include "codecs/family/gaps/gaps_vectors.hpp"
#include "codecs/index/delta_pfor/delta_pfor_kernel.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

pfor_form pfor_form_avx512(const uint32_t* gaps, size_t n) {
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

// `upper` has room for 15 past its last.
void pfor_split_avx512(const uint32_t* gaps, size_t n, unsigned bits, uint32_t* low, uint64_t* which, uint32_t* upper) {
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

// The bytes of eight numbers of a width, and one more for the shift.
constexpr auto pfor_upper_bytes = [] {
  std::array<std::array<uint8_t, 64>, 8> from{};
  for (unsigned bits = 0; bits < 8; ++bits)
    for (unsigned i = 0; i < 64; ++i) from[bits][i] = static_cast<uint8_t>(i / 8 * bits + i % 8);
  return from;
}();

// Bitmaps whose numbers fit a byte, 64 at a time.
uint64_t pfor_above_avx512(const uint8_t* in, uint64_t size, const uint8_t* end, size_t n, pfor_head head,
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

uint64_t pfor_ungap_avx512(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next,
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

}  // namespace dr
DR_ISA_END
#endif
