// Decoding with BMI2's shifts.
#include "codecs/family/huffman/level_huffman.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

size_t level_huffman_decode_avx2(const uint8_t* body, size_t size, size_t n, const level_huffman_table& table,
                                 uint8_t* levels) {
  return level_huffman_decode_with(body, size, n, table, levels);
}

}  // namespace dr
DR_ISA_END
#endif
