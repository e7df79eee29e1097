// Sixteen numbers at a time.
#include "primitive/packing_vectors.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

// Numbers of 8 bits; AVX2 packs all others.
uint8_t* pack_avx512(const uint32_t* v, size_t n, unsigned bits, uint8_t* out) {
  if (bits != 8) return pack_avx2(v, n, bits, out);
  for (size_t i = 0; i < n; i += 16) {
    const auto some = static_cast<__mmask16>(n - i >= 16 ? 0xffff : (1u << (n - i)) - 1);
    _mm_mask_storeu_epi8(out + i, some, _mm512_cvtepi32_epi8(_mm512_maskz_loadu_epi32(some, v + i)));
  }
  return out + n;
}

void unpack_avx512(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint32_t* v) {
  if (bits > fast_bits_max) return unpack_scalar(in, end, n, bits, v);
  unpack_16 unpack(bits);
  for (size_t i = 0; i < n; i += 16, in += 2 * bits) {
    if (n - i < 16) unpack.bytes = low_mask(static_cast<unsigned>(packed_size(n - i, bits)));
    _mm512_storeu_si512(v + i, unpack(in));
  }
}

}  // namespace dr
DR_ISA_END
#endif
