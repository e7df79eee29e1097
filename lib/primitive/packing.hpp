// Numbers of k bits each, one behind the other in a bit string (low bit of a byte first), and back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr {

constexpr uint64_t packed_size(uint64_t n, unsigned bits) { return ceil_div(n * bits, 8); }

// v [n], each < 2^bits, bits <= 32     out: packed_size, padded with zero bits. Returns its end.
inline uint8_t* pack_scalar(const uint32_t* v, size_t n, unsigned bits, uint8_t* out) {
  bit_writer writer(out);
  for (size_t i = 0; i < n; ++i) writer.put(v[i], bits);
  return writer.finish();
}

// in: packed_size(n, bits) bytes, in memory that may be read up to `end`
// v: their n, and room for whole vectors of 16: what is written behind the last is anything
inline void unpack_scalar(const uint8_t* in, const uint8_t*, size_t n, unsigned bits, uint32_t* v) {
  bit_reader reader(in, n * bits);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<uint32_t>(reader.get(bits));
}

// A vector takes each number from the four bytes that hold it: bits + 7 <= 32.
inline constexpr unsigned fast_bits_max = 25;

#if DR_X86
// Where the four bytes of each of `n` numbers of so many bits lie, and by how much to shift them. Of 8 numbers, the second four
// count from the byte in which they begin.
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

DR_AVX2_BEGIN
// Eight numbers are as many bytes as one has bits, so each eight begin on a byte and none waits for those before.
inline uint8_t* pack_avx2(const uint32_t* v, size_t n, unsigned bits, uint8_t* out) {
  uint8_t* const end = out + (n * bits + 7) / 8;
  size_t i = 0;
  if (bits <= 15 && bits > 0) {
    const __m128i one = _mm_cvtsi32_si128(static_cast<int>(bits)), two = _mm_cvtsi32_si128(static_cast<int>(2 * bits));
    const unsigned shift = 4 * bits & 7, carry = 4 * bits - shift;
    // Writes 8 bytes from the byte in which its second half begins.
    for (; i + 8 <= n && static_cast<size_t>(end - out) >= bits / 2 + 8; i += 8, out += bits) {
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + i));
      // Pairs of 2 · bits in four words of 64; then two halves of 4 · bits.
      const __m256i pairs = _mm256_or_si256(_mm256_and_si256(x, _mm256_set1_epi64x(0xffffffff)),
                                            _mm256_sll_epi64(_mm256_srli_epi64(x, 32), one));
      const __m256i halves = _mm256_or_si256(pairs, _mm256_sll_epi64(_mm256_srli_si256(pairs, 8), two));
      const auto low = static_cast<uint64_t>(_mm256_extract_epi64(halves, 0)),
                 high = static_cast<uint64_t>(_mm256_extract_epi64(halves, 2));
      const uint64_t second = high << shift | (shift ? low >> carry : 0);
      std::memcpy(out, &low, 8);
      std::memcpy(out + bits / 2, &second, 8);
    }
  } else if (bits <= 28 && bits > 0) {
    // Two numbers a step through one word; at most 7 bits of it wait.
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
  }
  return pack_scalar(v + i, n - i, bits, out);
}

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

inline void unpack_avx2(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint32_t* v) {
  size_t i = 0;
  if (bits <= fast_bits_max) {
    const unpack_8 unpack(bits);
    for (; i < n && static_cast<size_t>(end - in) >= unpack_8::reach(bits); i += 8, in += bits)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(v + i), unpack(in));
  }
  if (i < n) unpack_scalar(in, end, n - i, bits, v + i);
}
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

inline void unpack_avx512(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint32_t* v) {
  if (bits > fast_bits_max) return unpack_scalar(in, end, n, bits, v);
  unpack_16 unpack(bits);
  for (size_t i = 0; i < n; i += 16, in += 2 * bits) {
    if (n - i < 16) unpack.bytes = low_mask(static_cast<unsigned>(packed_size(n - i, bits)));
    _mm512_storeu_si512(v + i, unpack(in));
  }
}
DR_ISA_END
#endif

using pack_fn = uint8_t* (*)(const uint32_t* v, size_t n, unsigned bits, uint8_t* out);
using unpack_fn = void (*)(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint32_t* v);
#if DR_X86
inline constexpr cpu_table<pack_fn> pack_bits{pack_scalar, pack_avx2};
inline constexpr cpu_table<unpack_fn> unpack_bits{unpack_scalar, unpack_avx2, unpack_avx512};
#else
inline constexpr cpu_table<pack_fn> pack_bits{pack_scalar};
inline constexpr cpu_table<unpack_fn> unpack_bits{unpack_scalar};
#endif

}  // namespace dr
