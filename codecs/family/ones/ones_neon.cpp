// Ones, 64 bits at a time; listed by a table per byte.
#include "codecs/family/ones/ones.hpp"
#include "primitive/neon_vectors.hpp"

#if DR_NEON
namespace dr {
namespace {

// The positions of a byte's ones.
struct byte_ones_neon {
  alignas(8) uint8_t of[256][8]{};
  constexpr byte_ones_neon() {
    for (unsigned byte = 0; byte < 256; ++byte)
      for (unsigned b = 0, k = 0; b < 8; ++b)
        if (byte >> b & 1) of[byte][k++] = static_cast<uint8_t>(b);
  }
};
constexpr byte_ones_neon byte_ones;

uint64_t gather_neon(uint8_t* marks) {
  const uint8x16_t none = vdupq_n_u8(0);
  const uint64_t word = mask_of_64(vld1q_u8(marks), vld1q_u8(marks + 16), vld1q_u8(marks + 32), vld1q_u8(marks + 48));
  for (unsigned k = 0; k < 64; k += 16) vst1q_u8(marks + k, none);
  return word;
}

}  // namespace

template <bool ranked>
void set_ones_neon(const uint32_t* x, uint64_t n, unsigned shift, uint8_t* out, uint64_t size) {
  set_ones_with<ranked, uint64_t, gather_neon>(x, n, shift, out, size);
}

uint64_t count_ones_neon(const uint8_t* in, uint64_t size) {
  uint64x2_t ones = vdupq_n_u64(0);
  uint64_t at = 0;
  while (at + 16 <= size) {
    // A lane of 16 bits has room for 2048 counts of two bytes.
    uint16x8_t some = vdupq_n_u16(0);
    const uint64_t end = size - at < 16 * 2048 ? size : at + 16 * 2048;
    for (; at + 16 <= end; at += 16) some = vpadalq_u8(some, vcntq_u8(vld1q_u8(in + at)));
    ones = vpadalq_u32(ones, vpaddlq_u16(some));
  }
  return vaddvq_u64(ones) + count_ones_scalar(in + at, size - at);
}

template <bool ranked>
uint64_t list_ones_neon(const uint8_t* in, uint64_t begin, uint64_t end, uint64_t i, uint64_t n, uint32_t* out) {
  const uint32x4_t low_lanes = ranked ? ascending_4() : vdupq_n_u32(0),
                   high_lanes = ranked ? vaddq_u32(low_lanes, vdupq_n_u32(4)) : low_lanes;
  uint64_t at = begin;
  // A word writes at most 64 positions, and 8 past its last.
  for (; at + 8 <= end && i + 72 <= n; at += 8) {
    const uint64_t word = load<uint64_t>(in + at);
    if (!word) continue;
    // Of each byte the ones up to its end.
    const uint64_t upto = vget_lane_u64(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(word))), 0) * 0x0101010101010101;
    for (unsigned k = 0; k < 8; ++k) {
      const uint64_t to = i + (k ? upto >> 8 * (k - 1) & 0xff : 0);
      const uint16x8_t found = vmovl_u8(vld1_u8(byte_ones.of[word >> 8 * k & 0xff]));
      const uint32x4_t first = vdupq_n_u32(static_cast<uint32_t>(8 * (at + k) - (ranked ? to : 0)));
      vst1q_u32(out + to, vsubq_u32(vaddw_u16(first, vget_low_u16(found)), low_lanes));
      vst1q_u32(out + to + 4, vsubq_u32(vaddw_high_u16(first, found), high_lanes));
    }
    i += upto >> 56;
  }
  return list_ones_scalar<ranked>(in, at, end, i, n, out);
}

template void set_ones_neon<false>(const uint32_t*, uint64_t, unsigned, uint8_t*, uint64_t);
template void set_ones_neon<true>(const uint32_t*, uint64_t, unsigned, uint8_t*, uint64_t);
template uint64_t list_ones_neon<false>(const uint8_t*, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t*);
template uint64_t list_ones_neon<true>(const uint8_t*, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t*);

}  // namespace dr
#endif
