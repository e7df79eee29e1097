// Eight numbers at a time.
#include "primitive/packing_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

// Eight numbers of k bits have k bytes, so eight numbers begin on a byte and do not depend on those before.
uint8_t* pack_avx2(const uint32_t* v, size_t n, unsigned bits, uint8_t* out) {
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
    i = pack_words(v, n, bits, out, end);
  }
  return pack_scalar(v + i, n - i, bits, out);
}

void unpack_avx2(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint32_t* v) {
  size_t i = 0;
  if (bits <= fast_bits_max) {
    const unpack_8 unpack(bits);
    for (; i < n && static_cast<size_t>(end - in) >= unpack_8::reach(bits); i += 8, in += bits)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(v + i), unpack(in));
  }
  if (i < n) unpack_scalar(in, end, n - i, bits, v + i);
}

}  // namespace dr
DR_ISA_END
#endif
