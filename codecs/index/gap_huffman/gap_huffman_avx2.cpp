// The scalar loops with BMI2's shifts.
#include "codecs/index/gap_huffman/gap_symbols_kernel.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

void gap_split_avx2(const uint32_t* x, size_t n, uint32_t base, uint8_t* symbols, uint32_t* gaps) {
  gap_split_with(x, n, base, symbols, gaps);
}
uint8_t* gap_extras_avx2(const uint8_t* symbols, const uint32_t* gaps, size_t n, uint8_t* out) {
  return gap_extras_with(symbols, gaps, n, out);
}
bool gap_join_avx2(const uint8_t* symbols, size_t n, const uint8_t* extras, size_t size, uint64_t base, uint64_t end,
                   uint32_t* x) {
  return gap_join_with(symbols, n, extras, size, base, end, x);
}

}  // namespace dr
DR_ISA_END
#endif
