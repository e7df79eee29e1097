// Huffman codes of levels: the tables of levels of instructions, and decoding with BMI2's shifts.
#include "codecs/family/huffman/level_huffman.hpp"

namespace dr {

#if DR_X86
DR_AVX2_BEGIN

size_t level_huffman_decode_avx2(const uint8_t* body, size_t size, size_t n, const level_huffman_table& table,
                                 uint8_t* levels) {
  return level_huffman_decode_with(body, size, n, table, levels);
}

DR_ISA_END

constinit const cpu_table<decltype(&level_huffman_follow_scalar)> level_huffman_follow{
    level_huffman_follow_scalar, nullptr, level_huffman_follow_avx512};
constinit const cpu_table<decltype(&level_huffman_encode_scalar)> level_huffman_encode{
    level_huffman_encode_scalar, nullptr, level_huffman_encode_avx512};
constinit const cpu_table<decltype(&level_huffman_decode_scalar)> level_huffman_decode{level_huffman_decode_scalar,
                                                                                       level_huffman_decode_avx2};
#else
constinit const cpu_table<decltype(&level_huffman_follow_scalar)> level_huffman_follow{level_huffman_follow_scalar};
constinit const cpu_table<decltype(&level_huffman_encode_scalar)> level_huffman_encode{level_huffman_encode_scalar};
constinit const cpu_table<decltype(&level_huffman_decode_scalar)> level_huffman_decode{level_huffman_decode_scalar};
#endif

}  // namespace dr
