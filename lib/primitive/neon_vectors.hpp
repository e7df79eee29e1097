// NEON's instructions, and what its twins share. Included by them alone (a header that nvcc reads has none of it).
#pragma once

#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

#if DR_NEON
#include <arm_neon.h>

namespace dr {

// Words at any address.
inline uint32x4_t load_4(const void* from) { return vreinterpretq_u32_u8(vld1q_u8(static_cast<const uint8_t*>(from))); }
inline void store_4(void* to, uint32x4_t x) { vst1q_u8(static_cast<uint8_t*>(to), vreinterpretq_u8_u32(x)); }

// 0, 1, 2, 3, and the bits of so many.
inline uint32x4_t ascending_4() {
  return vreinterpretq_u32_u64(vcombine_u64(vcreate_u64(0x100000000), vcreate_u64(0x300000002)));
}
inline uint32x4_t bit_of_4() {
  return vreinterpretq_u32_u64(vcombine_u64(vcreate_u64(0x200000001), vcreate_u64(0x800000004)));
}
// Bit i % 8 in byte i.
inline uint8x16_t bit_of_16() { return vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201)); }

// One bit for every lane, each of which is 0 or all ones.
inline uint32_t mask_of_4(uint32x4_t lanes) { return vaddvq_u32(vandq_u32(lanes, bit_of_4())); }
inline uint32_t mask_of_16(uint8x16_t lanes) {
  const uint8x16_t bits = vandq_u8(lanes, bit_of_16());
  return vaddv_u8(vget_low_u8(bits)) | uint32_t{vaddv_u8(vget_high_u8(bits))} << 8;
}
// One bit for every one of 64 bytes, each of which is 0 or 255.
inline uint64_t mask_of_64(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d) {
  const uint8x16_t bit = bit_of_16();
  const uint8x16_t pairs = vpaddq_u8(vandq_u8(a, bit), vandq_u8(b, bit)),
                   others = vpaddq_u8(vandq_u8(c, bit), vandq_u8(d, bit)), fours = vpaddq_u8(pairs, others);
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(fours, fours)), 0);
}
// The lower halves of the lanes of two vectors.
inline uint16x8_t lower_halves(uint32x4_t a, uint32x4_t b) {
  return vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
}
inline uint8x16_t lower_halves(uint16x8_t a, uint16x8_t b) {
  return vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
}

// Sums of each lane and those before it.
inline uint32x4_t running_sums(uint32x4_t v) {
  const uint32x4_t none = vdupq_n_u32(0);
  v = vaddq_u32(v, vextq_u32(none, v, 3));
  return vaddq_u32(v, vextq_u32(none, v, 2));
}

// Four values of a type as f32. (f16's NaN become quiet.)
template <class T>
inline float32x4_t floats_of_4(const typename T::bits* v) {
  if constexpr (std::is_same_v<T, f32_type>)
    return vreinterpretq_f32_u32(vld1q_u32(v));
  else if constexpr (std::is_same_v<T, f16_type>)
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(v)));
  else
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(v), 16));
}
// Stores four floats, rounded once as by T::from_f32. Their NaN are computed_nan.
template <class T>
inline void store_floats_4(float32x4_t v, typename T::bits* to) {
  if constexpr (std::is_same_v<T, f32_type>) {
    vst1q_u32(to, vreinterpretq_u32_f32(v));
  } else if constexpr (std::is_same_v<T, f16_type>) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(v)));
  } else {  // half a unit is added, less one if the result is even; a carry is the next exponent
    const uint32x4_t b = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(b, 16), vdupq_n_u32(1));
    vst1_u16(to, vshrn_n_u32(vaddq_u32(b, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16));
  }
}
// Whether all lanes are all ones.
inline bool is_everywhere(uint32x4_t lanes) { return vminvq_u32(lanes) == ~uint32_t{0}; }
inline float32x4_t computed_4(float32x4_t v) {  // as `computed`
  return vbslq_f32(vceqq_f32(v, v), v, vreinterpretq_f32_u32(vdupq_n_u32(computed_nan)));
}
// As floats_4 and others of float_vectors.hpp.
struct floats_neon {
  using vector = float32x4_t;
  static constexpr uint32_t lanes = 4;

  DR_EVERYWHERE static vector all(float x) { return vdupq_n_f32(x); }
  DR_EVERYWHERE static vector load(const float* from) { return vld1q_f32(from); }
  DR_EVERYWHERE static void store(float* to, vector x) { vst1q_f32(to, x); }
  DR_EVERYWHERE static vector add(vector x, vector y) { return vaddq_f32(x, y); }
  DR_EVERYWHERE static vector sub(vector x, vector y) { return vsubq_f32(x, y); }
  DR_EVERYWHERE static vector mul(vector x, vector y) { return vmulq_f32(x, y); }
  DR_EVERYWHERE static vector clean(vector x) { return computed_4(x); }
  // (Four quarters of four by four.)
  static void transpose_8(const float* from, uint64_t from_stride, float* to, uint64_t to_stride) {
    for (unsigned row = 0; row < 8; row += 4)
      for (unsigned column = 0; column < 8; column += 4) {
        float64x2_t pairs[4];
        for (unsigned i = 0; i < 4; i += 2) {
          const float* const at = from + (row + i) * from_stride + column;
          const vector a = load(at), b = load(at + from_stride);
          pairs[i] = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
          pairs[i + 1] = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
        }
        float* const out = to + column * to_stride + row;
        for (unsigned i = 0; i < 2; ++i) {
          store(out + i * to_stride, vreinterpretq_f32_f64(vzip1q_f64(pairs[i], pairs[i + 2])));
          store(out + (i + 2) * to_stride, vreinterpretq_f32_f64(vzip2q_f64(pairs[i], pairs[i + 2])));
        }
      }
  }
};
inline float64x2_t lower_2(float32x4_t v) { return vcvt_f64_f32(vget_low_f32(v)); }
inline float64x2_t upper_2(float32x4_t v) { return vcvt_high_f64_f32(v); }

}  // namespace dr
#endif
