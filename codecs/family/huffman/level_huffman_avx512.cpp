// Huffman codes of levels, 32 at a time: words by vpermi2w, joined in pairs, fours and, where they fit 64 bits, eights.
#include "codecs/family/huffman/level_huffman.hpp"

#if DR_X86

namespace dr {

DR_AVX512_BEGIN

namespace {

template <bool a_bit>
void follow(uint64_t* some, size_t end, const uint8_t* lengths) {
  level_huffman_follow_with(some, end < 16 ? end : 16, lengths, a_bit);
  const __m512i of = _mm512_loadu_si512(lengths), one_more = _mm512_set1_epi64(1LL << 56);
  const __m512i levels_but_one = _mm512_set1_epi64(0xffffffffff00), numbers = _mm512_set1_epi64(-0xffffffffffff01);
  __m512i i = _mm512_add_epi64(_mm512_set1_epi64(16), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
  for (uint64_t* at = some + 16; at < some + end; at += 8) {
    const __m512i one = _mm512_loadu_si512(at);
    __m512i more = _mm512_i64gather_epi64(_mm512_srlv_epi64(i, _mm512_and_si512(one, _mm512_set1_epi64(63))), some, 8);
    if constexpr (a_bit) {
      const __mmask8 full = _mm512_cmpeq_epi64_mask(_mm512_srli_epi64(more, 56), _mm512_set1_epi64(6));
      const __m512i last = _mm512_maskz_permutexvar_epi8(0x0101010101010101, _mm512_srli_epi64(more, 48), of);
      more = _mm512_mask_sub_epi64(more, full, more, _mm512_or_si512(last, one_more));
    }
    const __m512i behind =
        _mm512_add_epi64(_mm512_slli_epi64(_mm512_and_si512(more, levels_but_one), 8), _mm512_and_si512(more, numbers));
    _mm512_storeu_si512(at, _mm512_add_epi64(one, behind));
    i = _mm512_add_epi64(i, _mm512_set1_epi64(8));
  }
}

}  // namespace

void level_huffman_follow_avx512(uint64_t* some, size_t end, const uint8_t* lengths, bool a_bit) {
  a_bit ? follow<true>(some, end, lengths) : follow<false>(some, end, lengths);
}

uint8_t* level_huffman_encode_avx512(const uint8_t* levels, size_t n, const level_huffman_code& code, uint8_t* out) {
  const __m512i words0 = _mm512_loadu_si512(code.words), words1 = _mm512_loadu_si512(code.words + 32);
  const __m512i word_mask = _mm512_set1_epi16(0xfff), low16 = _mm512_set1_epi32(0xffff),
                low32 = _mm512_set1_epi64(0xffffffff);
  const size_t strings = (n + level_huffman_string - 1) / level_huffman_string;
  uint8_t* size = out;
  out += 2 * (strings - 1);
  for (size_t begin = 0; begin < n; begin += level_huffman_string) {
    const size_t end = n - begin < level_huffman_string ? n : begin + level_huffman_string;
    word_writer bits(out);
    size_t i = begin;
    for (; i + 32 <= end; i += 32) {
      const __m512i index = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(levels + i)));
      const __m512i entry = _mm512_permutex2var_epi16(words0, index, words1);
      const __m512i one = _mm512_and_si512(entry, word_mask), one_length = _mm512_srli_epi16(entry, 12);
      const __m512i length0 = _mm512_and_si512(one_length, low16);
      const __m512i two =
          _mm512_or_si512(_mm512_and_si512(one, low16), _mm512_sllv_epi32(_mm512_srli_epi32(one, 16), length0));
      const __m512i two_length = _mm512_add_epi32(length0, _mm512_srli_epi32(one_length, 16));
      const __m512i length1 = _mm512_and_si512(two_length, low32);
      const __m512i four =
          _mm512_or_si512(_mm512_and_si512(two, low32), _mm512_sllv_epi64(_mm512_srli_epi64(two, 32), length1));
      const __m512i four_length = _mm512_add_epi64(length1, _mm512_srli_epi64(two_length, 32));
      const __m512i eight_length = _mm512_add_epi64(four_length, _mm512_bsrli_epi128(four_length, 8));
      alignas(64) uint64_t word[8], length[8];
      if (_mm512_mask_cmpgt_epu64_mask(0x55, eight_length, _mm512_set1_epi64(64)) == 0) {
        _mm512_store_si512(word, _mm512_or_si512(four, _mm512_sllv_epi64(_mm512_bsrli_epi128(four, 8), four_length)));
        _mm512_store_si512(length, eight_length);
        for (int j = 0; j < 8; j += 2) bits.put(word[j], static_cast<unsigned>(length[j]));
      } else {
        _mm512_store_si512(word, four);
        _mm512_store_si512(length, four_length);
        for (int j = 0; j < 8; ++j) bits.put(word[j], static_cast<unsigned>(length[j]));
      }
    }
    for (; i < end; ++i) bits.put(code.words[levels[i]] & 0xfffu, code.words[levels[i]] >> 12);
    uint8_t* const behind = bits.finish();
    if (end < n) {
      const auto length = static_cast<uint16_t>(behind - out);
      std::memcpy(size, &length, 2);
      size += 2;
    }
    out = behind;
  }
  return out;
}

DR_ISA_END

}  // namespace dr

#endif
