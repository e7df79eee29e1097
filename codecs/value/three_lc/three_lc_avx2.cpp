// The loops again, which the compiler makes vectors of.
#include "codecs/value/three_lc/three_lc_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

template <class T>
void three_lc_digits_avx2(const typename T::bits* values, size_t n, uint32_t least, uint8_t* digits) {
  three_lc_digits_with<T>(values, n, least, digits);
}

template void three_lc_digits_avx2<f32_type>(const f32_type::bits*, size_t, uint32_t, uint8_t*);
template void three_lc_digits_avx2<f16_type>(const f16_type::bits*, size_t, uint32_t, uint8_t*);
template void three_lc_digits_avx2<bf16_type>(const bf16_type::bits*, size_t, uint32_t, uint8_t*);

}  // namespace dr
DR_ISA_END
#endif
