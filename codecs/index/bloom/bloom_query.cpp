// The levels of bloom_query_kernel.hpp. Asking goes through a part of the universe hash by hash, and keeps those whose bit is set:
// about 2 hashes an element where half of the bits are, and nothing for a branch predictor to guess. (Lane by lane until all lanes of
// a vector have failed takes 5 hashes at 16 lanes; element by element a misprediction each.)
#include "codecs/index/bloom/bloom_query_kernel.hpp"

#include <array>
#include <cstring>

namespace dr {
namespace {

template <class Shape>
void bits_scalar(const Shape& shape, const uint32_t* elements, uint32_t n, uint32_t j, uint32_t* bits) {
  for (uint32_t i = 0; i < n; ++i) bits[i] = shape.bit(elements[i], j);
}

uint32_t ask_scalar(const bloom_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n, uint32_t* found) {
  for (uint32_t i = 0; i < n; ++i) found[i] = first + i;
  for (uint32_t j = 0; j < shape.hashes && n; ++j) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t element = found[i], bit = shape.bit(element, j);
      found[kept] = element;
      kept += filter[bit / 8] >> (bit % 8) & 1;
    }
    n = kept;
  }
  return n;
}

// Two words of each element first, without a branch; one element in seven is left for the others (k r / m = 0.5).
uint32_t ask_split_scalar(const split_block_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n,
                          uint32_t* found) {
  uint32_t block[bloom_part], mixed[bloom_part], maybe = 0;
  const auto has = [&](uint32_t of, uint32_t g, uint32_t j) {
    const uint32_t bit = g * shape.salt[j] >> 27;
    return filter[size_t{32} * of + 4 * j + bit / 8] >> (bit % 8) & 1;
  };
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t h = shape.hash(first + i), g = shape.mix(h), of = shape.block(h);
    found[maybe] = first + i;
    block[maybe] = of;
    mixed[maybe] = g;
    maybe += static_cast<uint32_t>(has(of, g, 0) & has(of, g, 1));
  }
  uint32_t kept = 0;
  for (uint32_t i = 0; i < maybe; ++i) {
    int all = 1;
    for (uint32_t j = 2; j < shape.hashes && all; ++j) all = has(block[i], mixed[i], j);
    found[kept] = found[i];
    kept += static_cast<uint32_t>(all);
  }
  return kept;
}

void insert_split_scalar(const split_block_shape& shape, uint8_t* filter, const uint32_t* elements, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t h = shape.hash(elements[i]), g = shape.mix(h);
    uint8_t* block = filter + size_t{32} * shape.block(h);
    for (uint32_t j = 0; j < shape.hashes; ++j) {
      const uint32_t bit = g * shape.salt[j] >> 27;
      block[4 * j + bit / 8] |= static_cast<uint8_t>(1u << (bit % 8));
    }
  }
}

#if DR_X86
// Lanes that are kept, moved to the front: for each mask of 8, bytes of positions.
constexpr auto front_of = [] {
  std::array<uint64_t, 256> table{};
  for (uint32_t mask = 0; mask < 256; ++mask)
    for (uint64_t lane = 0, at = 0; lane < 8; ++lane)
      if (mask >> lane & 1) table[mask] |= lane << 8 * at++;
  return table;
}();
#endif

}  // namespace

#if DR_X86
DR_AVX2_BEGIN
namespace {

inline __m256i rotl8(__m256i x, int by) {
  return _mm256_or_si256(_mm256_slli_epi32(x, by), _mm256_srli_epi32(x, 32 - by));
}
inline __m256i mul8(__m256i x, uint32_t by) { return _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(by))); }
inline __m256i xor_shift8(__m256i x, int by) { return _mm256_xor_si256(x, _mm256_srli_epi32(x, by)); }
// Words of x · by, two lanes at a time.
inline __m256i mul_high8(__m256i x, __m256i by) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, by), 32),
                odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), by);
  return _mm256_blend_epi32(even, odd, 0xaa);
}

inline __m256i murmur8(__m256i key, uint32_t seed) {
  const __m256i k = mul8(rotl8(mul8(key, 0xcc9e2d51), 15), 0x1b873593);
  __m256i h = rotl8(_mm256_xor_si256(_mm256_set1_epi32(static_cast<int>(seed)), k), 13);
  h = _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(h, 2), h), _mm256_set1_epi32(static_cast<int>(0xe6546b64)));
  h = _mm256_xor_si256(h, _mm256_set1_epi32(4));
  h = mul8(xor_shift8(h, 16), 0x85ebca6b);
  h = mul8(xor_shift8(h, 13), 0xc2b2ae35);
  return xor_shift8(h, 16);
}

// As divisor::remainder: below 2 m, and the smaller of itself and itself less m, where that wraps.
inline __m256i remainder8(__m256i x, const divisor& d) {
  const __m256i m = _mm256_set1_epi32(static_cast<int>(d.value));
  const __m256i near = mul_high8(x, _mm256_set1_epi32(static_cast<int>(d.reciprocal)));
  const __m256i rest = _mm256_sub_epi32(x, _mm256_mullo_epi32(near, m));
  return _mm256_min_epu32(rest, _mm256_sub_epi32(rest, m));
}

inline __m256i bit8(const bloom_shape& shape, __m256i elements, uint32_t j) {
  return remainder8(murmur8(elements, shape.seed + j), shape.bits);
}
inline __m256i bit8(const split_block_shape& shape, __m256i elements, uint32_t j) {
  const __m256i h = murmur8(elements, shape.seed);
  const __m256i block = mul_high8(h, _mm256_set1_epi32(static_cast<int>(shape.blocks)));
  const __m256i in_word = _mm256_srli_epi32(mul8(murmur8(h, shape.seed), shape.salt[j]), 27);
  return _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(block, 8), in_word),
                          _mm256_set1_epi32(static_cast<int>(32 * j)));
}

// A vector of elements: all of it, or with zeros behind its end.
inline __m256i load8(const uint32_t* from, uint32_t n) {
  if (n >= 8) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  alignas(32) uint32_t some[8] = {};
  std::memcpy(some, from, 4 * n);
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(some));
}
inline void store8(uint32_t* to, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }

template <class Shape>
void bits_avx2(const Shape& shape, const uint32_t* elements, uint32_t n, uint32_t j, uint32_t* bits) {
  for (uint32_t i = 0; i < n; i += 8) store8(bits + i, bit8(shape, load8(elements + i, n - i), j));
}

// Moves the elements whose bit j is set to found + kept; `in`: which there are.
inline uint32_t keep8(const bloom_shape& shape, const uint8_t* filter, __m256i elements, uint32_t in, uint32_t j,
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

inline uint32_t first_lanes(uint32_t n) { return n >= 8 ? 0xff : (1u << n) - 1; }

uint32_t ask_avx2(const bloom_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n, uint32_t* found) {
  uint32_t kept = 0;
  __m256i elements =
      _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  for (uint32_t i = 0; i < n; i += 8) {
    kept += keep8(shape, filter, elements, first_lanes(n - i), 0, found + kept);
    elements = _mm256_add_epi32(elements, _mm256_set1_epi32(8));
  }
  // A vector is read before what is kept of it is written, and never behind it.
  for (uint32_t j = 1; j < shape.hashes && kept; ++j) {
    n = kept;
    kept = 0;
    for (uint32_t i = 0; i < n; i += 8)
      kept += keep8(shape, filter, load8(found + i, n - i), first_lanes(n - i), j, found + kept);
  }
  return kept;
}

// Eight elements' blocks, and the hashes that choose bits there.
struct places8 {
  alignas(32) uint32_t block[8], mixed[8];

  places8(const split_block_shape& shape, __m256i elements) {
    const __m256i h = murmur8(elements, shape.seed);
    store8(block, mul_high8(h, _mm256_set1_epi32(static_cast<int>(shape.blocks))));
    store8(mixed, murmur8(h, shape.seed));
  }
};

inline __m256i load_salt8() { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(split_block_shape::salt)); }

// A bit in each word of a block.
inline __m256i mask8(uint32_t mixed, __m256i salt) {
  const __m256i in_word = _mm256_srli_epi32(_mm256_mullo_epi32(_mm256_set1_epi32(static_cast<int>(mixed)), salt), 27);
  return _mm256_sllv_epi32(_mm256_set1_epi32(1), in_word);
}
inline bool has8(const uint8_t* block, __m256i mask) {
  return _mm256_testc_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block)), mask);
}

void insert_split_avx2(const split_block_shape& shape, uint8_t* filter, const uint32_t* elements, uint64_t count) {
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

// A block is a vector: one load and one test an element, whatever it holds.
uint32_t ask_split_avx2(const split_block_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n,
                        uint32_t* found) {
  const __m256i salt = load_salt8();
  uint32_t kept = 0;
  __m256i elements =
      _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  for (uint32_t i = 0; i < n; i += 8) {
    const places8 p(shape, elements);
    for (uint32_t l = 0; l < 8 && l < n - i; ++l) {
      found[kept] = first + i + l;
      kept += has8(filter + size_t{32} * p.block[l], mask8(p.mixed[l], salt));
    }
    elements = _mm256_add_epi32(elements, _mm256_set1_epi32(8));
  }
  return kept;
}

}  // namespace
DR_ISA_END

DR_AVX512_BEGIN
namespace {

inline __m512i mul16(__m512i x, uint32_t by) { return _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(by))); }
inline __m512i xor_shift16(__m512i x, unsigned by) { return _mm512_xor_si512(x, _mm512_srli_epi32(x, by)); }
inline __m512i mul_high16(__m512i x, __m512i by) {
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(x, by), 32),
                odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), by);
  return _mm512_mask_blend_epi32(0xaaaa, even, odd);
}

inline __m512i murmur16(__m512i key, uint32_t seed) {
  const __m512i k = mul16(_mm512_rol_epi32(mul16(key, 0xcc9e2d51), 15), 0x1b873593);
  __m512i h = _mm512_rol_epi32(_mm512_xor_si512(_mm512_set1_epi32(static_cast<int>(seed)), k), 13);
  h = _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(h, 2), h), _mm512_set1_epi32(static_cast<int>(0xe6546b64)));
  h = _mm512_xor_si512(h, _mm512_set1_epi32(4));
  h = mul16(xor_shift16(h, 16), 0x85ebca6b);
  h = mul16(xor_shift16(h, 13), 0xc2b2ae35);
  return xor_shift16(h, 16);
}

inline __m512i remainder16(__m512i x, const divisor& d) {
  const __m512i m = _mm512_set1_epi32(static_cast<int>(d.value));
  const __m512i near = mul_high16(x, _mm512_set1_epi32(static_cast<int>(d.reciprocal)));
  const __m512i rest = _mm512_sub_epi32(x, _mm512_mullo_epi32(near, m));
  return _mm512_min_epu32(rest, _mm512_sub_epi32(rest, m));
}

inline __m512i bit16(const bloom_shape& shape, __m512i elements, uint32_t j) {
  return remainder16(murmur16(elements, shape.seed + j), shape.bits);
}
inline __m512i bit16(const split_block_shape& shape, __m512i elements, uint32_t j) {
  const __m512i h = murmur16(elements, shape.seed);
  const __m512i block = mul_high16(h, _mm512_set1_epi32(static_cast<int>(shape.blocks)));
  const __m512i in_word = _mm512_srli_epi32(mul16(murmur16(h, shape.seed), shape.salt[j]), 27);
  return _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(block, 8), in_word),
                          _mm512_set1_epi32(static_cast<int>(32 * j)));
}

inline __mmask16 first_lanes16(uint32_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }

template <class Shape>
void bits_avx512(const Shape& shape, const uint32_t* elements, uint32_t n, uint32_t j, uint32_t* bits) {
  for (uint32_t i = 0; i < n; i += 16)
    _mm512_storeu_si512(bits + i, bit16(shape, _mm512_maskz_loadu_epi32(first_lanes16(n - i), elements + i), j));
}

inline uint32_t keep16(const bloom_shape& shape, const uint8_t* filter, __m512i elements, __mmask16 in, uint32_t j,
                       uint32_t* to) {
  const __m512i bit = bit16(shape, elements, j);
  const __m512i words = _mm512_i32gather_epi32(_mm512_srli_epi32(bit, 5), filter, 4);
  const __m512i place = _mm512_sllv_epi32(_mm512_set1_epi32(1), _mm512_and_si512(bit, _mm512_set1_epi32(31)));
  const __mmask16 set = _mm512_mask_test_epi32_mask(in, words, place);
  // Compressed to a register: to memory takes 100 cycles on Zen 4.
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(set, elements));
  return static_cast<uint32_t>(__builtin_popcount(set));
}

uint32_t ask_avx512(const bloom_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n, uint32_t* found) {
  uint32_t kept = 0;
  __m512i elements = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)),
                                      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  for (uint32_t i = 0; i < n; i += 16) {
    kept += keep16(shape, filter, elements, first_lanes16(n - i), 0, found + kept);
    elements = _mm512_add_epi32(elements, _mm512_set1_epi32(16));
  }
  for (uint32_t j = 1; j < shape.hashes && kept; ++j) {
    n = kept;
    kept = 0;
    for (uint32_t i = 0; i < n; i += 16) {
      const __mmask16 in = first_lanes16(n - i);
      kept += keep16(shape, filter, _mm512_maskz_loadu_epi32(in, found + i), in, j, found + kept);
    }
  }
  return kept;
}

uint32_t ask_split_avx512(const split_block_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n,
                          uint32_t* found) {
  const __m256i salt = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(shape.salt));
  const __m512i blocks = _mm512_set1_epi32(static_cast<int>(shape.blocks));
  alignas(64) uint32_t block[16], mixed[16];
  uint32_t kept = 0;
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
      found[kept] = first + i + l;
      kept += static_cast<uint32_t>(_mm256_testc_si256(words, _mm256_sllv_epi32(_mm256_set1_epi32(1), in_word)));
    }
    elements = _mm512_add_epi32(elements, _mm512_set1_epi32(16));
  }
  return kept;
}

}  // namespace
DR_ISA_END

const cpu_table<bloom_bits_of<bloom_shape>> bloom_standard_bits{bits_scalar<bloom_shape>, bits_avx2<bloom_shape>,
                                                                bits_avx512<bloom_shape>};
const cpu_table<bloom_bits_of<split_block_shape>> bloom_split_bits{
    bits_scalar<split_block_shape>, bits_avx2<split_block_shape>, bits_avx512<split_block_shape>};
const cpu_table<bloom_ask<bloom_shape>> bloom_standard_ask{ask_scalar, ask_avx2, ask_avx512};
const cpu_table<bloom_ask<split_block_shape>> bloom_split_ask{ask_split_scalar, ask_split_avx2, ask_split_avx512};
const cpu_table<split_insert> bloom_split_insert{insert_split_scalar, insert_split_avx2};
#else
const cpu_table<bloom_bits_of<bloom_shape>> bloom_standard_bits{bits_scalar<bloom_shape>};
const cpu_table<bloom_bits_of<split_block_shape>> bloom_split_bits{bits_scalar<split_block_shape>};
const cpu_table<bloom_ask<bloom_shape>> bloom_standard_ask{ask_scalar};
const cpu_table<bloom_ask<split_block_shape>> bloom_split_ask{ask_split_scalar};
const cpu_table<split_insert> bloom_split_insert{insert_split_scalar};
#endif

}  // namespace dr
