// Vectors of numbers of k bits from a bit string, for vector code that unpacks while it decodes.
#pragma once

#include <array>

#include "primitive/neon_vectors.hpp"
#include "primitive/packing.hpp"

namespace dr {

// Packs eight numbers at a time, of at most 28 bits, to `out`, which moves on. Returns how many.
DR_EVERYWHERE size_t pack_words(const uint32_t* v, size_t n, unsigned bits, uint8_t*& out, const uint8_t* end) {
  size_t i = 0;
  // Two numbers a step through one word; at most 7 bits stay in it.
  uint64_t word = 0;
  unsigned fill = 0;
  for (; i + 8 <= n && static_cast<size_t>(end - out) >= bits + 8; i += 8)
    for (unsigned k = 0; k < 8; k += 2) {
      word |= (uint64_t{v[i + k]} | uint64_t{v[i + k + 1]} << bits) << fill;
      std::memcpy(out, &word, 8);
      fill += 2 * bits;
      out += fill / 8;
      word = fill / 8 == 8 ? 0 : word >> (fill & ~7u);
      fill &= 7;
    }
  return i;
}

// A vector reads a number from the four bytes that hold it: bits + 7 <= 32.
inline constexpr unsigned fast_bits_max = 25;

// Where the four bytes of each of `n` numbers of so many bits lie, and by how much to shift them. Of 8 numbers, the
// second four count from the byte in which they begin.
template <unsigned n>
struct unpack_places {
  alignas(64) uint8_t from[4 * n];
  alignas(64) uint32_t by[n];
};
template <unsigned n>
inline constexpr auto unpack_table = [] {
  std::array<unpack_places<n>, fast_bits_max + 1> table{};
  for (unsigned bits = 0; bits <= fast_bits_max; ++bits)
    for (unsigned j = 0; j < n; ++j) {
      const unsigned byte = bits * j / 8 - (n == 8 && j >= 4 ? 4 * bits / 8 : 0);
      for (unsigned k = 0; k < 4; ++k) table[bits].from[4 * j + k] = static_cast<uint8_t>(byte + k);
      table[bits].by[j] = bits * j % 8;
    }
  return table;
}();

#if DR_X86
DR_AVX2_BEGIN
// Eight numbers of up to 25 bits: of each half, 16 bytes.
struct unpack_8 {
  __m256i shuffle, shift, mask;
  size_t second;  // where the second half's 16 bytes begin

  explicit unpack_8(unsigned bits) : second(4 * bits / 8) {
    shuffle = _mm256_load_si256(reinterpret_cast<const __m256i*>(unpack_table<8>[bits].from));
    shift = _mm256_load_si256(reinterpret_cast<const __m256i*>(unpack_table<8>[bits].by));
    mask = _mm256_set1_epi32(static_cast<int>((uint32_t{1} << bits) - 1));
  }
  static size_t reach(unsigned bits) { return 4 * bits / 8 + 16; }  // bytes that a load touches
  __m256i operator()(const uint8_t* in) const {
    const __m256i bytes =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in))),
                                _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + second)), 1);
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(bytes, shuffle), shift), mask);
  }
};
DR_ISA_END

DR_AVX512_BEGIN
// Sixteen numbers of up to 25 bits; touches the 2 · bits bytes that hold them and no other.
struct unpack_16 {
  __m512i shuffle, shift, mask;
  __mmask64 bytes;

  explicit unpack_16(unsigned bits) : bytes((__mmask64{1} << 2 * bits) - 1) {
    shuffle = _mm512_load_si512(unpack_table<16>[bits].from);
    shift = _mm512_load_si512(unpack_table<16>[bits].by);
    mask = _mm512_set1_epi32(static_cast<int>((uint32_t{1} << bits) - 1));
  }
  __m512i operator()(const uint8_t* in) const {
    const __m512i words = _mm512_permutexvar_epi8(shuffle, _mm512_maskz_loadu_epi8(bytes, in));
    return _mm512_and_si512(_mm512_srlv_epi32(words, shift), mask);
  }
};
DR_ISA_END
#elif DR_NEON
// Eight numbers of up to 25 bits, in two vectors, each of 16 bytes.
struct unpack_4_and_4 {
  uint8x16_t shuffle[2];
  int32x4_t down[2];
  uint32x4_t mask;
  size_t second_half;  // where its 16 bytes begin

  explicit unpack_4_and_4(unsigned bits) : mask(vdupq_n_u32((uint32_t{1} << bits) - 1)), second_half(4 * bits / 8) {
    for (unsigned h = 0; h < 2; ++h) {
      shuffle[h] = vld1q_u8(unpack_table<8>[bits].from + 16 * h);
      down[h] = vnegq_s32(vreinterpretq_s32_u32(vld1q_u32(unpack_table<8>[bits].by + 4 * h)));
    }
  }
  static size_t reach(unsigned bits) { return 4 * bits / 8 + 16; }  // bytes that a load touches
  uint32x4_t first(const uint8_t* in) const { return four(in, 0); }
  uint32x4_t second(const uint8_t* in) const { return four(in + second_half, 1); }

 private:
  uint32x4_t four(const uint8_t* in, unsigned h) const {
    const uint32x4_t words = vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(in), shuffle[h]));
    return vandq_u32(vshlq_u32(words, down[h]), mask);
  }
};
#endif

}  // namespace dr
