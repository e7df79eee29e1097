// Split Golomb encoded at eight gaps a step, in 16-bit lanes, where no gap of a block has more than 15 bits. Other
// blocks, and those with a divisor for each 32 indices, are scalar's.
#include "codecs/family/golomb/golomb_payload.hpp"
#include "primitive/neon_vectors.hpp"
#include "primitive/packing.hpp"

#if DR_NEON
namespace dr {
namespace {

constexpr size_t neon_block_max = size_t{1} << golomb_block_log2_max;

// Of the mask of four lanes and of four bits: those bits, one behind the other. As pext.
struct extracted_bits {
  uint8_t of[16][16]{}, count[16]{};
  constexpr extracted_bits() {
    for (unsigned mask = 0; mask < 16; ++mask)
      for (unsigned bit = 0; bit < 4; ++bit) {
        if (!(mask >> bit & 1)) continue;
        for (unsigned bits = 0; bits < 16; ++bits)
          of[mask][bits] = static_cast<uint8_t>(of[mask][bits] | (bits >> bit & 1) << count[mask]);
        ++count[mask];
      }
  }
};
constexpr extracted_bits extracted;

struct quotients_neon {
  uint16x8_t q, r;
};
// As the divider of golomb_encode_avx2.cpp, which says why it is exact.
struct divider_neon {
  uint16x8_t divisor, inverse;
  int16x8_t shift;
  explicit divider_neon(const golomb_code& code)
      : divisor(vdupq_n_u16(static_cast<uint16_t>(code.divisor))),
        inverse(vdupq_n_u16(static_cast<uint16_t>(ceil_div(uint64_t{1} << (16 + code.low_bits), code.divisor)))),
        shift(vdupq_n_s16(static_cast<int16_t>(-static_cast<int>(code.low_bits)))) {}
  quotients_neon operator()(uint16x8_t gaps) const {
    const uint32x4_t low = vmull_u16(vget_low_u16(gaps), vget_low_u16(inverse)), high = vmull_high_u16(gaps, inverse);
    const uint16x8_t q = vshlq_u16(vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high)), shift);
    return {q, vmlsq_u16(gaps, q, divisor)};
  }
};

// Gaps of n indices, zero up to a multiple of 8. False if one is 2^15 or more.
bool narrow_gaps_neon(const uint32_t* x, size_t n, uint64_t base, uint16_t* gaps) {
  uint32_t rest = 0, before = static_cast<uint32_t>(base) - 1;
  uint32x4_t any = vdupq_n_u32(0);
  size_t i = 0;
  const auto single = [&] {
    const uint32_t gap = x[i] - before - 1;
    rest |= gap;
    gaps[i] = static_cast<uint16_t>(gap);
    before = x[i++];
  };
  while (i < n && i < 8) single();
  const uint32x4_t one = vdupq_n_u32(1);
  for (; i + 8 <= n; i += 8) {
    const auto four = [&](size_t at) {
      const uint32x4_t gap = vsubq_u32(vsubq_u32(vld1q_u32(x + at), vld1q_u32(x + at - 1)), one);
      any = vorrq_u32(any, gap);
      return gap;
    };
    const uint32x4_t a = four(i), b = four(i + 4);
    vst1q_u16(gaps + i, lower_halves(a, b));
    before = x[i + 7];
  }
  while (i < n) single();
  for (; i % 8; ++i) gaps[i] = 0;
  return (rest | vmaxvq_u32(any)) < 0x8000;
}

// Bytes of a body.
uint64_t body_size_neon(const uint16_t* gaps, size_t n, uint64_t span, const golomb_code& code) {
  if (code.divisor == 1) return ceil_div(span, 8);
  const divider_neon divide(code);
  const uint16x8_t short_low = vdupq_n_u16(static_cast<uint16_t>(code.short_low));
  uint32x4_t zeros = vdupq_n_u32(0);
  uint16x8_t extras = vdupq_n_u16(0);
  for (size_t i = 0; i < n; i += 8) {
    const quotients_neon o = divide(vld1q_u16(gaps + i));
    zeros = vpadalq_u16(zeros, o.q);
    extras = vsubq_u16(extras, vcgeq_u16(o.r, short_low));
  }
  const uint64_t extra = code.short_low == 0 ? n : vaddlvq_u16(extras);  // (lanes that are not there have r = 0)
  return ceil_div(n * code.low_bits, 8) + ceil_div(n + vaddvq_u32(zeros), 8) + ceil_div(extra, 8);
}

// Codes of so many bits, in every half of a vector the one of two lanes, then of both halves.
struct joined_codes {
  uint64x2_t codes, lengths;

  static joined_codes of(uint32x4_t codes, uint32x4_t lengths) {
    const uint64x2_t c = vreinterpretq_u64_u32(codes), l = vreinterpretq_u64_u32(lengths),
                     low = vdupq_n_u64(0xffffffff);
    return join({vandq_u64(c, low), vandq_u64(l, low)}, {vshrq_n_u64(c, 32), vshrq_n_u64(l, 32)});
  }
  static joined_codes join(const joined_codes& a, const joined_codes& b) {
    return {vorrq_u64(a.codes, vshlq_u64(b.codes, vreinterpretq_s64_u64(a.lengths))), vaddq_u64(a.lengths, b.lengths)};
  }
};

// Appends eight unary codes, at once where they are short.
void put_unaries_neon(bit_appender& out, uint16x8_t q) {
  const uint32x4_t one = vdupq_n_u32(1);
  const auto four = [&](uint32x4_t zeros) {
    return joined_codes::of(vshlq_u32(one, vreinterpretq_s32_u32(zeros)), vaddq_u32(zeros, one));
  };
  const joined_codes a = four(vmovl_u16(vget_low_u16(q))), b = four(vmovl_high_u16(q));
  const joined_codes all = joined_codes::join({vzip1q_u64(a.codes, b.codes), vzip1q_u64(a.lengths, b.lengths)},
                                              {vzip2q_u64(a.codes, b.codes), vzip2q_u64(a.lengths, b.lengths)});
  const uint64_t first = vgetq_lane_u64(all.lengths, 0), length = first + vgetq_lane_u64(all.lengths, 1);
  if (length > 39) {  // at or below it no quotient passes 31, since the other seven have at least one bit
    uint16_t zeros[8];
    vst1q_u16(zeros, q);
    for (const uint16_t z : zeros) out.put_unary(z);
    return;
  }
  out.put(vgetq_lane_u64(all.codes, 0) | vgetq_lane_u64(all.codes, 1) << first, static_cast<unsigned>(length));
}

// Appends the bits of eight lanes that a mask has; both masks are 0 or all ones.
void put_extras_neon(bit_appender& out, uint16x8_t longer, uint16x8_t odd) {
  const uint32_t both = mask_of_16(lower_halves(longer, odd)), wants = both & 255, bits = both >> 8;
  const unsigned low = wants & 15, high = wants >> 4, first = extracted.count[low];
  out.put(extracted.of[low][bits & 15] | uint64_t{extracted.of[high][bits >> 4]} << first,
          first + extracted.count[high]);
}

uint8_t* put_body_neon(const uint16_t* gaps, size_t n, const golomb_code& code, uint8_t* out) {
  uint8_t unary[golomb_flag + 64], extra[neon_block_max / 8 + 64];
  bit_appender unaries{unary}, extras{extra};
  const size_t whole = n / 8 * 8;
  if (code.divisor == 1) {
    for (size_t i = 0; i < whole; i += 8) put_unaries_neon(unaries, vld1q_u16(gaps + i));
    for (size_t i = whole; i < n; ++i) unaries.put_unary(gaps[i]);
  } else {
    alignas(16) uint32_t v[neon_block_max];
    const divider_neon divide(code);
    const uint16x8_t short_low = vdupq_n_u16(static_cast<uint16_t>(code.short_low));
    for (size_t i = 0; i < whole; i += 8) {
      const quotients_neon o = divide(vld1q_u16(gaps + i));
      put_unaries_neon(unaries, o.q);
      // Below s, (r + s) / 2 is not below r; from there on it is.
      const uint16x8_t moved = vaddq_u16(o.r, short_low), low = vminq_u16(o.r, vshrq_n_u16(moved, 1));
      vst1q_u32(v + i, vmovl_u16(vget_low_u16(low)));
      vst1q_u32(v + i + 4, vmovl_high_u16(low));
      put_extras_neon(extras, vcgeq_u16(o.r, short_low), vtstq_u16(moved, vdupq_n_u16(1)));
    }
    for (size_t i = whole; i < n; ++i) {
      const uint64_t q = code.quotient(gaps[i]), r = gaps[i] - q * code.divisor;
      const bool longer = r >= code.short_low;
      unaries.put_unary(q);
      v[i] = static_cast<uint32_t>(longer ? (r + code.short_low) >> 1 : r);
      if (longer) extras.put((r + code.short_low) & 1, 1);
    }
    out = pack_neon(v, n, code.low_bits, out);
  }
  const auto add = [&](const uint8_t* from, const uint8_t* to) {
    std::memcpy(out, from, static_cast<size_t>(to - from));
    out += to - from;
  };
  add(unary, unaries.finish());
  add(extra, extras.finish());
  return out;
}

}  // namespace

uint8_t* golomb_put_neon(const uint32_t* x, size_t n, uint64_t base, divisor_rule rule, uint8_t* out, bool& flagged) {
  const uint64_t span = uint64_t{x[n - 1]} + 1 - base;
  golomb_code code = rule.code(span, n, false);
  uint16_t gaps[neon_block_max];
  if (rule.adaptive || code.divisor > 32768 || !narrow_gaps_neon(x, n, base, gaps))
    return golomb_put_block(x, n, base, rule, out, flagged);
  flagged = false;
  if (rule.may_cluster && code.divisor > 1) {
    const golomb_code other = rule.code(span, n, true);
    flagged = body_size_neon(gaps, n, span, other) < body_size_neon(gaps, n, span, code);
    if (flagged) code = other;
  }
  return put_body_neon(gaps, n, code, out);
}

}  // namespace dr
#endif
