// Blocks of 128 gaps, eight at a time.
#include "codecs/family/gaps/gaps_vectors.hpp"
#include "codecs/index/delta_pfor/delta_pfor_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

pfor_form pfor_form_avx2(const uint32_t* gaps, size_t n) {
  if (n != gap_block) return pfor_form_scalar(gaps, n);
  const auto* const from = reinterpret_cast<const __m256i*>(gaps);
  __m256i widest = _mm256_setzero_si256(), widths[4];  // as bytes, in any order
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

void pfor_split_avx2(const uint32_t* gaps, size_t n, unsigned bits, uint32_t* low, uint64_t* which, uint32_t* upper) {
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
uint64_t pfor_above_avx2(const uint8_t* in, uint64_t size, const uint8_t* end, size_t n, pfor_head head,
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
    // One by one: gcc turns a loop into `rep stos`, which costs half of this function's time.
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
      // Lanes without an entry write past the block.
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
      // Eight bytes from the next bits of the string.
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
uint64_t pfor_ungap_avx2(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next,
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

}  // namespace dr
DR_ISA_END
#endif
