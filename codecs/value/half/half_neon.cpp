// f32 to f16 and bf16 and back, eight numbers at a time.
#include "codecs/value/half/half_kernel.hpp"
#include "primitive/neon_vectors.hpp"

#if DR_NEON
namespace dr {
namespace {

// Nearest in integers, as in half_avx2.cpp.
uint16x4_t half_round_bf16_neon(uint32x4_t v) {
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(v, 16), vdupq_n_u32(1));
  const uint32x4_t m = vaddq_u32(vandq_u32(v, vdupq_n_u32(0x7fffffff)), vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint16x4_t rounded = vmin_u16(vshrn_n_u32(m, 16), vdup_n_u16(0x7f7f));
  return vorr_u16(rounded, vand_u16(vshrn_n_u32(v, 16), vdup_n_u16(0x8000)));
}
uint16x4_t half_round_f16_neon(uint32x4_t v) {
  const float32x4_t most = vdupq_n_f32(65504), least = vdupq_n_f32(-65504);
  return vreinterpret_u16_f16(vcvt_f16_f32(vmaxq_f32(vminq_f32(vreinterpretq_f32_u32(v), most), least)));
}

template <class T, uint16x4_t (*round)(uint32x4_t)>
void half_narrow_neon(const uint8_t* in, uint64_t n, uint8_t* out) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint16x8_t both = vcombine_u16(round(load_4(in + 4 * i)), round(load_4(in + 4 * i + 16)));
    vst1q_u8(out + 2 * i, vreinterpretq_u8_u16(both));
  }
  half_convert<f32_type, T>(in + 4 * i, n - i, out + 2 * i);
}

float32x4_t half_to_f32_neon(f16_type, uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
float32x4_t half_to_f32_neon(bf16_type, uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }

}  // namespace

void half_f32_to_f16_neon(const uint8_t* in, uint64_t n, uint8_t* out) {
  half_narrow_neon<f16_type, half_round_f16_neon>(in, n, out);
}
void half_f32_to_bf16_neon(const uint8_t* in, uint64_t n, uint8_t* out) {
  half_narrow_neon<bf16_type, half_round_bf16_neon>(in, n, out);
}

template <class From>
uint32_t half_widen_neon(const uint8_t* in, uint64_t n, float* out) {
  const uint16x8_t magnitudes = vdupq_n_u16(From::magnitude_mask);
  uint16x8_t maxima = vdupq_n_u16(0);
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(in + 2 * i));
    maxima = vmaxq_u16(maxima, vandq_u16(h, magnitudes));
    vst1q_f32(out + i, half_to_f32_neon(From{}, vget_low_u16(h)));
    vst1q_f32(out + i + 4, half_to_f32_neon(From{}, vget_high_u16(h)));
  }
  const uint32_t most = vmaxvq_u16(maxima), last = half_widen_scalar<From>(in + 2 * i, n - i, out + i);
  return most > last ? most : last;
}

template uint32_t half_widen_neon<f16_type>(const uint8_t*, uint64_t, float*);
template uint32_t half_widen_neon<bf16_type>(const uint8_t*, uint64_t, float*);

}  // namespace dr
#endif
