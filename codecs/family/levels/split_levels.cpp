#include "codecs/family/levels/split_levels.hpp"

namespace dr {

#if DR_X86
constinit const cpu_table<decltype(&split_levels_encode_scalar)> split_levels_encode{
    split_levels_encode_scalar, split_levels_encode_avx2, split_levels_encode_avx512};
constinit const cpu_table<decltype(&split_levels_decode_scalar)> split_levels_decode{
    split_levels_decode_scalar, split_levels_decode_avx2, split_levels_decode_avx512};
#else
constinit const cpu_table<decltype(&split_levels_encode_scalar)> split_levels_encode{split_levels_encode_scalar};
constinit const cpu_table<decltype(&split_levels_decode_scalar)> split_levels_decode{split_levels_decode_scalar};
#endif

}  // namespace dr
