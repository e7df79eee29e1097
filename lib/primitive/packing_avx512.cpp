// Sixteen numbers at a time.
#include "primitive/packing_vectors.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

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
