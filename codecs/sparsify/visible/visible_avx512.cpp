#include "codecs/sparsify/visible/visible_kernel.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {

void keep_visible_avx512(uint32_t dtype, visible_rule rule, const void* values, const void* weights, uint32_t n,
                         void* out) {
  keep_visible_any(dtype, rule, values, weights, n, out);
}

}  // namespace dr
DR_ISA_END
#endif
