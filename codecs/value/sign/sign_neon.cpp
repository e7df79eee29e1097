// Signs 64 at a time: comparisons become bits, and bits choose between two numbers. (Sums are scalar's.)
#include "codecs/value/sign/sign_kernel.hpp"
#include "primitive/neon_vectors.hpp"

#if DR_NEON
namespace dr {
namespace {

// 255 for each of sixteen values that is below zero: its bits are above those of -0.
uint8x16_t sign_below_neon(const uint32_t* v) {
  const uint32x4_t zero = vdupq_n_u32(minus_zero<f32_type>);
  const auto four = [&](unsigned k) { return vcgtq_u32(vld1q_u32(v + 4 * k), zero); };
  return lower_halves(lower_halves(four(0), four(1)), lower_halves(four(2), four(3)));
}
uint8x16_t sign_below_neon(const uint16_t* v) {
  const uint16x8_t zero = vdupq_n_u16(minus_zero<f16_type>);
  return lower_halves(vcgtq_u16(vld1q_u16(v), zero), vcgtq_u16(vld1q_u16(v + 8), zero));
}

// Eight numbers by the bits of a byte.
void sign_choose_neon(uint8_t bits, uint32_t below, uint32_t other, uint32_t* out) {
  const uint32x4_t all = vdupq_n_u32(bits), ones = vdupq_n_u32(below), zeros = vdupq_n_u32(other);
  vst1q_u32(out, vbslq_u32(vtstq_u32(all, bit_of_4()), ones, zeros));
  vst1q_u32(out + 4, vbslq_u32(vtstq_u32(all, vshlq_n_u32(bit_of_4(), 4)), ones, zeros));
}
void sign_choose_neon(uint8_t bits, uint16_t below, uint16_t other, uint16_t* out) {
  const uint16x8_t bit = vmovl_u8(vget_low_u8(bit_of_16()));
  vst1q_u16(out, vbslq_u16(vtstq_u16(vdupq_n_u16(bits), bit), vdupq_n_u16(below), vdupq_n_u16(other)));
}

}  // namespace

template <class T>
void sign_pack_neon(const typename T::bits* values, uint64_t n, uint8_t* out) {
  uint64_t i = 0;
  for (; i + 64 <= n; i += 64)
    store(out + i / 8, mask_of_64(sign_below_neon(values + i), sign_below_neon(values + i + 16),
                                  sign_below_neon(values + i + 32), sign_below_neon(values + i + 48)));
  sign_pack_scalar<T>(values + i, n - i, out + i / 8);
}

template <class T>
void sign_unpack_neon(const uint8_t* bits, uint64_t n, typename T::bits below, typename T::bits other,
                      typename T::bits* out) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) sign_choose_neon(bits[i / 8], below, other, out + i);
  sign_unpack_scalar<T>(bits + i / 8, n - i, below, other, out + i);
}

template void sign_pack_neon<f32_type>(const f32_type::bits*, uint64_t, uint8_t*);
template void sign_pack_neon<f16_type>(const f16_type::bits*, uint64_t, uint8_t*);
template void sign_pack_neon<bf16_type>(const bf16_type::bits*, uint64_t, uint8_t*);
template void sign_unpack_neon<f32_type>(const uint8_t*, uint64_t, uint32_t, uint32_t, uint32_t*);
template void sign_unpack_neon<f16_type>(const uint8_t*, uint64_t, uint16_t, uint16_t, uint16_t*);
template void sign_unpack_neon<bf16_type>(const uint8_t*, uint64_t, uint16_t, uint16_t, uint16_t*);

}  // namespace dr
#endif
