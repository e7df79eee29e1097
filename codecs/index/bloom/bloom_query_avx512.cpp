// Elements to bits, and a filter asked, sixteen elements at a time.
#include "codecs/index/bloom/bloom_query_kernel.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

namespace {

__m512i mul16(__m512i x, uint32_t by) { return _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(by))); }
__m512i xor_shift16(__m512i x, unsigned by) { return _mm512_xor_si512(x, _mm512_srli_epi32(x, by)); }
__m512i mul_high16(__m512i x, __m512i by) {
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(x, by), 32),
                odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), by);
  return _mm512_mask_blend_epi32(0xaaaa, even, odd);
}

__m512i murmur16(__m512i key, uint32_t seed) {
  const __m512i k = mul16(_mm512_rol_epi32(mul16(key, 0xcc9e2d51), 15), 0x1b873593);
  __m512i h = _mm512_rol_epi32(_mm512_xor_si512(_mm512_set1_epi32(static_cast<int>(seed)), k), 13);
  h = _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(h, 2), h), _mm512_set1_epi32(static_cast<int>(0xe6546b64)));
  h = _mm512_xor_si512(h, _mm512_set1_epi32(4));
  h = mul16(xor_shift16(h, 16), 0x85ebca6b);
  h = mul16(xor_shift16(h, 13), 0xc2b2ae35);
  return xor_shift16(h, 16);
}

__m512i remainder16(__m512i x, const divisor& d) {
  const __m512i m = _mm512_set1_epi32(static_cast<int>(d.value));
  const __m512i near = mul_high16(x, _mm512_set1_epi32(static_cast<int>(d.reciprocal)));
  const __m512i rest = _mm512_sub_epi32(x, _mm512_mullo_epi32(near, m));
  return _mm512_min_epu32(rest, _mm512_sub_epi32(rest, m));
}

__m512i bit16(const bloom_shape& shape, __m512i elements, uint32_t j) {
  return remainder16(murmur16(elements, shape.seed + j), shape.bits);
}
__m512i bit16(const split_block_shape& shape, __m512i elements, uint32_t j) {
  const __m512i h = murmur16(elements, shape.seed);
  const __m512i block = mul_high16(h, _mm512_set1_epi32(static_cast<int>(shape.blocks)));
  const __m512i in_word = _mm512_srli_epi32(mul16(murmur16(h, shape.seed), shape.salt[j]), 27);
  return _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(block, 8), in_word),
                          _mm512_set1_epi32(static_cast<int>(32 * j)));
}

__mmask16 first_lanes16(uint32_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }

uint32_t keep16(const bloom_shape& shape, const uint8_t* filter, __m512i elements, __mmask16 in, uint32_t j,
                uint32_t* to) {
  const __m512i bit = bit16(shape, elements, j);
  const __m512i words = _mm512_i32gather_epi32(_mm512_srli_epi32(bit, 5), filter, 4);
  const __m512i place = _mm512_sllv_epi32(_mm512_set1_epi32(1), _mm512_and_si512(bit, _mm512_set1_epi32(31)));
  const __mmask16 set = _mm512_mask_test_epi32_mask(in, words, place);
  // Compresses to a register: to memory costs 100 cycles on Zen 4.
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(set, elements));
  return static_cast<uint32_t>(__builtin_popcount(set));
}

}  // namespace

template <class Shape>
void bloom_bits_avx512(const Shape& shape, const uint32_t* elements, uint32_t n, uint32_t j, uint32_t* bits) {
  for (uint32_t i = 0; i < n; i += 16)
    _mm512_storeu_si512(bits + i, bit16(shape, _mm512_maskz_loadu_epi32(first_lanes16(n - i), elements + i), j));
}

uint32_t bloom_ask_avx512(const bloom_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n,
                          uint32_t* found) {
  uint32_t hits = 0;
  __m512i elements = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)),
                                      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  for (uint32_t i = 0; i < n; i += 16) {
    hits += keep16(shape, filter, elements, first_lanes16(n - i), 0, found + hits);
    elements = _mm512_add_epi32(elements, _mm512_set1_epi32(16));
  }
  for (uint32_t j = 1; j < shape.hashes && hits; ++j) {
    n = hits;
    hits = 0;
    for (uint32_t i = 0; i < n; i += 16) {
      const __mmask16 in = first_lanes16(n - i);
      hits += keep16(shape, filter, _mm512_maskz_loadu_epi32(in, found + i), in, j, found + hits);
    }
  }
  return hits;
}

uint32_t bloom_ask_split_avx512(const split_block_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n,
                                uint32_t* found) {
  const __m256i salt = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(shape.salt));
  const __m512i blocks = _mm512_set1_epi32(static_cast<int>(shape.blocks));
  alignas(64) uint32_t block[16], mixed[16];
  uint32_t hits = 0;
  __m512i elements = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)),
                                      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  for (uint32_t i = 0; i < n; i += 16) {
    const __m512i h = murmur16(elements, shape.seed);
    _mm512_store_si512(block, mul_high16(h, blocks));
    _mm512_store_si512(mixed, murmur16(h, shape.seed));
    for (uint32_t l = 0; l < 16 && l < n - i; ++l) {
      const __m256i in_word =
          _mm256_srli_epi32(_mm256_mullo_epi32(_mm256_set1_epi32(static_cast<int>(mixed[l])), salt), 27);
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(filter + size_t{32} * block[l]));
      found[hits] = first + i + l;
      hits += static_cast<uint32_t>(_mm256_testc_si256(words, _mm256_sllv_epi32(_mm256_set1_epi32(1), in_word)));
    }
    elements = _mm512_add_epi32(elements, _mm512_set1_epi32(16));
  }
  return hits;
}

template void bloom_bits_avx512<bloom_shape>(const bloom_shape&, const uint32_t*, uint32_t, uint32_t, uint32_t*);
template void bloom_bits_avx512<split_block_shape>(const split_block_shape&, const uint32_t*, uint32_t, uint32_t,
                                                   uint32_t*);

}  // namespace dr
DR_ISA_END
#endif
