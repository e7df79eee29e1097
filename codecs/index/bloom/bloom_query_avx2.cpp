// Elements to bits, and a filter asked, eight elements at a time.
#include <array>
#include <cstring>

#include "codecs/index/bloom/bloom_query_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

namespace {

// Compresses selected lanes to the front: byte positions per mask of 8.
constexpr auto front_of = [] {
  std::array<uint64_t, 256> table{};
  for (uint32_t mask = 0; mask < 256; ++mask)
    for (uint64_t lane = 0, at = 0; lane < 8; ++lane)
      if (mask >> lane & 1) table[mask] |= lane << 8 * at++;
  return table;
}();

__m256i rotl8(__m256i x, int by) { return _mm256_or_si256(_mm256_slli_epi32(x, by), _mm256_srli_epi32(x, 32 - by)); }
__m256i mul8(__m256i x, uint32_t by) { return _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(by))); }
__m256i xor_shift8(__m256i x, int by) { return _mm256_xor_si256(x, _mm256_srli_epi32(x, by)); }
// Words of x · by, two lanes at a time.
__m256i mul_high8(__m256i x, __m256i by) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, by), 32),
                odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), by);
  return _mm256_blend_epi32(even, odd, 0xaa);
}

__m256i murmur8(__m256i key, uint32_t seed) {
  const __m256i k = mul8(rotl8(mul8(key, 0xcc9e2d51), 15), 0x1b873593);
  __m256i h = rotl8(_mm256_xor_si256(_mm256_set1_epi32(static_cast<int>(seed)), k), 13);
  h = _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(h, 2), h), _mm256_set1_epi32(static_cast<int>(0xe6546b64)));
  h = _mm256_xor_si256(h, _mm256_set1_epi32(4));
  h = mul8(xor_shift8(h, 16), 0x85ebca6b);
  h = mul8(xor_shift8(h, 13), 0xc2b2ae35);
  return xor_shift8(h, 16);
}

// As divisor::remainder: below 2 m, and the smaller of itself and itself less m, where that wraps.
__m256i remainder8(__m256i x, const divisor& d) {
  const __m256i m = _mm256_set1_epi32(static_cast<int>(d.value));
  const __m256i near = mul_high8(x, _mm256_set1_epi32(static_cast<int>(d.reciprocal)));
  const __m256i rest = _mm256_sub_epi32(x, _mm256_mullo_epi32(near, m));
  return _mm256_min_epu32(rest, _mm256_sub_epi32(rest, m));
}

__m256i bit8(const bloom_shape& shape, __m256i elements, uint32_t j) {
  return remainder8(murmur8(elements, shape.seed + j), shape.bits);
}
__m256i bit8(const split_block_shape& shape, __m256i elements, uint32_t j) {
  const __m256i h = murmur8(elements, shape.seed);
  const __m256i block = mul_high8(h, _mm256_set1_epi32(static_cast<int>(shape.blocks)));
  const __m256i in_word = _mm256_srli_epi32(mul8(murmur8(h, shape.seed), shape.salt[j]), 27);
  return _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(block, 8), in_word),
                          _mm256_set1_epi32(static_cast<int>(32 * j)));
}

// A vector of elements: all of it, or with zeros past its end.
__m256i load8(const uint32_t* from, uint32_t n) {
  if (n >= 8) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  alignas(32) uint32_t some[8] = {};
  std::memcpy(some, from, 4 * n);
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(some));
}
void store8(uint32_t* to, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }

// Moves the elements whose bit j is set to found + count; `in`: mask of valid lanes.
uint32_t keep8(const bloom_shape& shape, const uint8_t* filter, __m256i elements, uint32_t in, uint32_t j,
               uint32_t* to) {
  const __m256i bit = bit8(shape, elements, j);
  const __m256i words = _mm256_i32gather_epi32(reinterpret_cast<const int*>(filter), _mm256_srli_epi32(bit, 5), 4);
  // The bit's place from the top is 31 - bit % 32: shifted there, it is the sign.
  const __m256i sign = _mm256_sllv_epi32(words, _mm256_andnot_si256(bit, _mm256_set1_epi32(31)));
  const uint32_t set = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(sign))) & in;
  const __m256i front = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(front_of[set])));
  store8(to, _mm256_permutevar8x32_epi32(elements, front));
  return static_cast<uint32_t>(__builtin_popcount(set));
}

uint32_t first_lanes(uint32_t n) { return n >= 8 ? 0xff : (1u << n) - 1; }

// Eight elements' blocks, and the hashes that choose bits there.
struct places8 {
  alignas(32) uint32_t block[8], mixed[8];

  places8(const split_block_shape& shape, __m256i elements) {
    const __m256i h = murmur8(elements, shape.seed);
    store8(block, mul_high8(h, _mm256_set1_epi32(static_cast<int>(shape.blocks))));
    store8(mixed, murmur8(h, shape.seed));
  }
};

__m256i load_salt8() { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(split_block_shape::salt)); }

// A bit in every word of a block.
__m256i mask8(uint32_t mixed, __m256i salt) {
  const __m256i in_word = _mm256_srli_epi32(_mm256_mullo_epi32(_mm256_set1_epi32(static_cast<int>(mixed)), salt), 27);
  return _mm256_sllv_epi32(_mm256_set1_epi32(1), in_word);
}
bool has8(const uint8_t* block, __m256i mask) {
  return _mm256_testc_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block)), mask);
}

}  // namespace

template <class Shape>
void bloom_bits_avx2(const Shape& shape, const uint32_t* elements, uint32_t n, uint32_t j, uint32_t* bits) {
  for (uint32_t i = 0; i < n; i += 8) store8(bits + i, bit8(shape, load8(elements + i, n - i), j));
}

uint32_t bloom_ask_avx2(const bloom_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n, uint32_t* found) {
  uint32_t hits = 0;
  __m256i elements =
      _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  for (uint32_t i = 0; i < n; i += 8) {
    hits += keep8(shape, filter, elements, first_lanes(n - i), 0, found + hits);
    elements = _mm256_add_epi32(elements, _mm256_set1_epi32(8));
  }
  // A vector is read before its selected part is written, which never overtakes it.
  for (uint32_t j = 1; j < shape.hashes && hits; ++j) {
    n = hits;
    hits = 0;
    for (uint32_t i = 0; i < n; i += 8)
      hits += keep8(shape, filter, load8(found + i, n - i), first_lanes(n - i), j, found + hits);
  }
  return hits;
}

void bloom_insert_split_avx2(const split_block_shape& shape, uint8_t* filter, const uint32_t* elements,
                             uint64_t count) {
  const __m256i salt = load_salt8();
  for (uint64_t i = 0; i < count; i += 8) {
    const auto n = static_cast<uint32_t>(count - i < 8 ? count - i : 8);
    const places8 p(shape, load8(elements + i, n));
    for (uint32_t l = 0; l < n; ++l) {
      auto* const block = reinterpret_cast<__m256i*>(filter + size_t{32} * p.block[l]);
      _mm256_storeu_si256(block, _mm256_or_si256(_mm256_loadu_si256(block), mask8(p.mixed[l], salt)));
    }
  }
}

// A block is a vector: one load and one test per element.
uint32_t bloom_ask_split_avx2(const split_block_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n,
                              uint32_t* found) {
  const __m256i salt = load_salt8();
  uint32_t hits = 0;
  __m256i elements =
      _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  for (uint32_t i = 0; i < n; i += 8) {
    const places8 p(shape, elements);
    for (uint32_t l = 0; l < 8 && l < n - i; ++l) {
      found[hits] = first + i + l;
      hits += has8(filter + size_t{32} * p.block[l], mask8(p.mixed[l], salt));
    }
    elements = _mm256_add_epi32(elements, _mm256_set1_epi32(8));
  }
  return hits;
}

template void bloom_bits_avx2<bloom_shape>(const bloom_shape&, const uint32_t*, uint32_t, uint32_t, uint32_t*);
template void bloom_bits_avx2<split_block_shape>(const split_block_shape&, const uint32_t*, uint32_t, uint32_t,
                                                 uint32_t*);

}  // namespace dr
DR_ISA_END
#endif
