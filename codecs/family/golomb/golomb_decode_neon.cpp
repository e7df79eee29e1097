// Split Golomb decoded at eight indices a step. See golomb_decode_avx2.cpp, whose ways these are.
#include "codecs/family/golomb/golomb_payload.hpp"
#include "primitive/neon_vectors.hpp"
#include "primitive/packing.hpp"

#if DR_NEON
namespace dr {
namespace {

constexpr size_t decoded_max = size_t{1} << golomb_block_log2_max;

struct ones_neon {
  alignas(16) uint16_t of[256][8]{};  // positions of the ones of a byte
  constexpr ones_neon() {
    for (unsigned byte = 0; byte < 256; ++byte)
      for (unsigned bit = 0, found = 0; bit < 8; ++bit)
        if (byte >> bit & 1) of[byte][found++] = static_cast<uint16_t>(bit);
  }
};
constexpr ones_neon ones_of_byte;

// For a mask of four lanes: bits, one behind the other, in these lanes. As pdep.
struct deposited_bits {
  uint8_t of[16][16]{}, count[16]{};
  constexpr deposited_bits() {
    for (unsigned mask = 0; mask < 16; ++mask)
      for (unsigned bit = 0; bit < 4; ++bit) {
        if (!(mask >> bit & 1)) continue;
        for (unsigned bits = 0; bits < 16; ++bits)
          of[mask][bits] = static_cast<uint8_t>(of[mask][bits] | (bits >> count[mask] & 1) << bit);
        ++count[mask];
      }
  }
};
constexpr deposited_bits deposited;

// Positions of the first n ones of a bit string of at most 65535 bits; 0 if there are fewer, else the bits up to the
// last of them.
size_t select_ones_neon(const uint8_t* bits, size_t size, size_t n, uint16_t* positions) {
  size_t found = 0;
  for (size_t at = 0; found < n && at < size; at += 8) {
    const uint64_t word =
        size - at < 8 ? load_bytes(bits + at, static_cast<unsigned>(size - at)) : load<uint64_t>(bits + at);
    // Of each byte the ones up to its end.
    const uint64_t upto = vget_lane_u64(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(word))), 0) * 0x0101010101010101;
    for (unsigned i = 0; i < 8; ++i) {
      const size_t before = i ? upto >> 8 * (i - 1) & 0xff : 0;
      const uint16x8_t in_byte = vld1q_u16(ones_of_byte.of[word >> 8 * i & 0xff]);
      vst1q_u16(positions + found + before, vaddq_u16(in_byte, vdupq_n_u16(static_cast<uint16_t>(8 * (at + i)))));
    }
    found += upto >> 56;
  }
  return found < n ? 0 : positions[n - 1] + size_t{1};
}

// Extra bits, as they are used up.
struct extra_bits_neon {
  const uint8_t* bytes;
  size_t size;
  uint64_t used = 0;

  // Those of the lanes of a mask of eight.
  unsigned take(unsigned mask) {
    const unsigned low = mask & 15, high = mask >> 4;
    const uint64_t word = next();
    const unsigned bits = deposited.of[low][word & 15] |
                          static_cast<unsigned>(deposited.of[high][word >> deposited.count[low] & 15]) << 4;
    used += deposited.count[low] + deposited.count[high];
    return bits;
  }
  bool is_used_up() const { return size == ceil_div(used, 8) && padding_is_zero(bytes, used); }

 private:
  uint64_t next() const {  // at least 8 bits, zeros past the end
    const size_t byte = used / 8;
    const size_t there = byte < size ? size - byte : 0;
    return (there >= 8 ? load<uint64_t>(bytes + byte) : load_bytes(bytes + byte, static_cast<unsigned>(there))) >>
           used % 8;
  }
};

// Reads n indices of one divisor from `start` on: v (of nothing if the divisor is 1), in memory for whole vectors; their
// ones at positions[i], the one before at `before` − 1.
void get_run_neon(const uint32_t* v, size_t n, uint32_t start, const golomb_code& code, const uint16_t* positions,
                  uint32_t before, extra_bits_neon& extra, uint32_t* x) {
  // r + s = v + max(v, s) + extra bit, and x_i = start + M · (pos_i − before) + Σ (r_j + s) − s + i · (1 − M − s).
  const bool has_low = code.divisor > 1;
  const auto m = static_cast<uint32_t>(code.divisor), s = has_low ? static_cast<uint32_t>(code.short_low) : 0;
  const uint32_t slope = 1 - m - s;
  const uint32x4_t bit = bit_of_4();
  const uint32x4_t step = vdupq_n_u32(4 * slope), divisor = vdupq_n_u32(m), short_low = vdupq_n_u32(s);
  uint32x4_t offset = vmlaq_u32(vdupq_n_u32(start - s - m * before), ascending_4(), vdupq_n_u32(slope));
  for (size_t i = 0; i < n; i += 8) {
    const size_t rest = n - i;
    uint32x4_t sums[2] = {};
    if (has_low) {
      const uint32x4_t a = vld1q_u32(v + i), b = vld1q_u32(v + i + 4);
      const uint16x8_t longer = lower_halves(vcgeq_u32(a, short_low), vcgeq_u32(b, short_low));
      unsigned wants = vaddv_u8(vand_u8(vmovn_u16(longer), vget_low_u8(bit_of_16())));
      if (rest < 8) wants &= (1u << rest) - 1;
      const unsigned odd = extra.take(wants);
      const auto terms = [&](uint32x4_t low, unsigned bits) {
        return vsubq_u32(vaddq_u32(low, vmaxq_u32(low, short_low)), vtstq_u32(vdupq_n_u32(bits), bit));
      };
      sums[0] = running_sums(terms(a, odd));
      sums[1] = running_sums(terms(b, odd >> 4));
    }
    const uint16x8_t at = vld1q_u16(positions + i);
    const auto four = [&](uint32x4_t ones, uint32x4_t sum) {
      const uint32x4_t index = vmlaq_u32(vaddq_u32(sum, offset), ones, divisor);
      offset = vaddq_u32(offset, vaddq_u32(step, vdupq_laneq_u32(sum, 3)));
      return index;
    };
    const uint32x4_t first = four(vmovl_u16(vget_low_u16(at)), sums[0]), second = four(vmovl_high_u16(at), sums[1]);
    if (rest >= 8) {
      vst1q_u32(x + i, first);
      vst1q_u32(x + i + 4, second);
    } else {
      uint32_t last[8];
      vst1q_u32(last, first);
      vst1q_u32(last + 4, second);
      std::memcpy(x + i, last, 4 * rest);
    }
  }
}

bool get_block_neon(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, golomb_code code,
                    uint32_t* x) {
  const uint64_t low_total = code.divisor > 1 ? uint64_t{code.low_bits} * n : 0;
  const size_t low_size = static_cast<size_t>(ceil_div(low_total, 8));
  if (low_size > size || !padding_is_zero(body, low_total)) return false;
  const auto scalar = [&] { return golomb_decode_block(body, size, n, base, end, code, x); };
  if (code.low_bits > 20) return scalar();
  const uint8_t* const unary = body + low_size;
  const size_t unary_max = size - low_size;
  uint16_t positions[decoded_max + 128];
  const size_t unary_bits = select_ones_neon(unary, unary_max < 8191 ? unary_max : 8191, n, positions);
  if (!unary_bits) return unary_max > 8191 && scalar();
  if (!padding_is_zero(unary, unary_bits)) return false;
  const size_t unary_size = ceil_div(unary_bits, 8);
  extra_bits_neon extra{unary + unary_size, unary_max - unary_size};
  uint32_t v[decoded_max + 16];
  if (code.divisor > 1) unpack_neon(body, body + size, n, code.low_bits, v);
  get_run_neon(v, n, static_cast<uint32_t>(base), code, positions, 0, extra, x);
  if (!extra.is_used_up()) return false;
  // As in golomb_decode_avx512.cpp; remainders sum up to below n · M, which is below the span.
  const uint64_t without = base + code.divisor * (unary_bits - n) + n - 1;
  return without + static_cast<uint32_t>(x[n - 1] - static_cast<uint32_t>(without)) + 1 == end;
}

bool get_adaptive_neon(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, uint32_t* x) {
  const size_t groups = ceil_div(n, adaptive_group), table = ceil_div(groups, 2);
  golomb_group_levels levels;
  if (!levels.read(body, size, groups)) return false;
  const auto code_of = [&](size_t i) -> const golomb_code& { return golomb_levels.of[levels[i / adaptive_group]]; };
  const auto length = [&](size_t i) { return n - i < adaptive_group ? n - i : adaptive_group; };
  uint64_t low_total = 0;
  for (size_t i = 0; i < n; i += adaptive_group) low_total += code_of(i).low_bits * length(i);
  const uint8_t* low = body + table;
  const size_t low_size = static_cast<size_t>(ceil_div(low_total, 8));
  if (low_size > size - table || !padding_is_zero(low, low_total)) return false;
  const uint8_t* const unary = low + low_size;
  const size_t unary_max = size - table - low_size;
  uint16_t positions[decoded_max + 128];
  const size_t unary_bits = select_ones_neon(unary, unary_max < 8191 ? unary_max : 8191, n, positions);
  if (!unary_bits) return unary_max > 8191 && golomb_get_adaptive(body, size, n, base, end, x);
  if (!padding_is_zero(unary, unary_bits)) return false;
  const size_t unary_size = ceil_div(unary_bits, 8);
  extra_bits_neon extra{unary + unary_size, unary_max - unary_size};
  uint64_t unaries = 0;
  uint32_t before = 0, start = static_cast<uint32_t>(base);
  for (size_t i = 0; i < n; i += adaptive_group) {
    const golomb_code& code = code_of(i);
    const size_t some = length(i);
    uint32_t v[adaptive_group + 16];
    if (code.divisor > 1) unpack_neon(low, body + size, some, code.low_bits, v);
    get_run_neon(v, some, start, code, positions + i, before, extra, x + i);
    low += adaptive_group / 8 * code.low_bits;
    start = x[i + some - 1] + 1;
    const uint32_t behind = positions[i + some - 1] + 1u;
    unaries += code.divisor * (behind - before - some);
    before = behind;
  }
  if (!extra.is_used_up()) return false;
  const uint64_t without = base + unaries + n - 1;
  return without + static_cast<uint32_t>(x[n - 1] - static_cast<uint32_t>(without)) + 1 == end;
}

}  // namespace

bool golomb_get_neon(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, divisor_rule rule,
                     bool flagged, uint32_t* x) {
  if (flagged && rule.adaptive) return get_adaptive_neon(body, size, n, base, end, x);
  return get_block_neon(body, size, n, base, end, rule.code(end - base, n, flagged), x);
}

}  // namespace dr
#endif
