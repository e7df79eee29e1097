// Eight numbers at a time; of one byte each, sixteen.
#include "primitive/packing_vectors.hpp"

#if DR_NEON
namespace dr {
namespace {

size_t pack_bytes_neon(const uint32_t* v, size_t n, uint8_t* out) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    vst1q_u8(out + i, lower_halves(lower_halves(vld1q_u32(v + i), vld1q_u32(v + i + 4)),
                                   lower_halves(vld1q_u32(v + i + 8), vld1q_u32(v + i + 12))));
  return i;
}

// Two numbers of `bits` in each half.
uint64x2_t pack_pairs_neon(const uint32_t* v, int64x2_t bits) {
  const uint64x2_t x = vreinterpretq_u64_u32(vld1q_u32(v));
  return vorrq_u64(vandq_u64(x, vdupq_n_u64(0xffffffff)), vshlq_u64(vshrq_n_u64(x, 32), bits));
}

}  // namespace

// Eight numbers of k bits have k bytes, so eight numbers begin on a byte and do not depend on those before.
uint8_t* pack_neon(const uint32_t* v, size_t n, unsigned bits, uint8_t* out) {
  uint8_t* const end = out + (n * bits + 7) / 8;
  size_t i = 0;
  if (bits == 8) {
    i = pack_bytes_neon(v, n, out);
    out += i;
  } else if (bits <= 15 && bits > 0) {
    const int64x2_t one = vdupq_n_s64(bits), two = vdupq_n_s64(2 * int64_t{bits});
    const unsigned shift = 4 * bits & 7, carry = 4 * bits - shift;
    // Writes 8 bytes from the byte in which its second half begins.
    for (; i + 8 <= n && static_cast<size_t>(end - out) >= bits / 2 + 8; i += 8, out += bits) {
      const uint64x2_t a = pack_pairs_neon(v + i, one), b = pack_pairs_neon(v + i + 4, one);
      const uint64x2_t fours = vorrq_u64(vzip1q_u64(a, b), vshlq_u64(vzip2q_u64(a, b), two));
      const uint64_t low = vgetq_lane_u64(fours, 0), high = vgetq_lane_u64(fours, 1);
      store(out, low);
      store(out + bits / 2, high << shift | (shift ? low >> carry : 0));
    }
  } else if (bits <= 28 && bits > 0) {
    i = pack_words(v, n, bits, out, end);
  }
  return pack_scalar(v + i, n - i, bits, out);
}

void unpack_neon(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint32_t* v) {
  size_t i = 0;
  if (bits <= fast_bits_max) {
    const unpack_4_and_4 unpack(bits);
    for (; i < n && static_cast<size_t>(end - in) >= unpack_4_and_4::reach(bits); i += 8, in += bits) {
      vst1q_u32(v + i, unpack.first(in));
      vst1q_u32(v + i + 4, unpack.second(in));
    }
  }
  if (i < n) unpack_scalar(in, end, n - i, bits, v + i);
}

}  // namespace dr
#endif
