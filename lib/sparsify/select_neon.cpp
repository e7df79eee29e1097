#include <array>

#include "primitive/neon_vectors.hpp"
#include "sparsify/select_kernel.hpp"

#if DR_NEON
namespace dr {
namespace {

// For every mask of 4 lanes: the bytes of the lanes with a set bit, first, of 32 and of 16 bits; and their number.
struct select_lanes {
  alignas(16) uint8_t words[16][16]{};
  alignas(8) uint8_t halves[16][8]{};
  uint8_t count[16]{};

  constexpr select_lanes() {
    for (unsigned m = 0; m < 16; ++m)
      for (unsigned lane = 0; lane < 4; ++lane) {
        if (!(m >> lane & 1)) continue;
        const unsigned to = count[m]++;
        for (unsigned k = 0; k < 4; ++k) words[m][4 * to + k] = static_cast<uint8_t>(4 * lane + k);
        for (unsigned k = 0; k < 2; ++k) halves[m][2 * to + k] = static_cast<uint8_t>(2 * lane + k);
      }
  }
};
constexpr select_lanes lanes_of;

uint32x4_t compress_neon(uint32x4_t x, uint32_t mask) {
  return vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(x), vld1q_u8(lanes_of.words[mask])));
}

// Four values as 32 bits.
template <class Bits>
uint32x4_t words_of_4(const Bits* v) {
  if constexpr (sizeof(Bits) == 4)
    return vld1q_u32(v);
  else
    return vmovl_u16(vld1_u16(v));
}
template <class Bits>
uint32x4_t magnitudes_of_4(uint32x4_t words) {
  return vandq_u32(words, vdupq_n_u32(select_magnitude<Bits>));
}

// Appends those of four values that a mask has. Writes four.
template <class Bits>
void append_neon(const Bits* v, uint32_t mask, Bits* out) {
  if constexpr (sizeof(Bits) == 4)
    vst1q_u32(out, compress_neon(vld1q_u32(v), mask));
  else
    vst1_u16(out, vreinterpret_u16_u8(vtbl1_u8(vreinterpret_u8_u16(vld1_u16(v)), vld1_u8(lanes_of.halves[mask]))));
}

// Sixteen bytes, one for every value: 255 if its magnitude is at least low.
template <class Bits>
uint8x16_t at_least(const Bits* v, uint32_t low) {
  if constexpr (sizeof(Bits) == 4) {
    const uint32x4_t edge = vdupq_n_u32(low);
    const auto four = [&](unsigned k) { return vcgeq_u32(magnitudes_of_4<Bits>(vld1q_u32(v + 4 * k)), edge); };
    return lower_halves(lower_halves(four(0), four(1)), lower_halves(four(2), four(3)));
  } else {
    const uint16x8_t edge = vdupq_n_u16(static_cast<uint16_t>(low < 0x8000 ? low : 0x8000)), all = vdupq_n_u16(0x7fff);
    return lower_halves(vcgeq_u16(vandq_u16(vld1q_u16(v), all), edge),
                        vcgeq_u16(vandq_u16(vld1q_u16(v + 8), all), edge));
  }
}

template <class Bits>
uint32_t collect_chunk_neon(const Bits* v, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions, Bits* out) {
  uint8_t masks[select_chunk / sizeof(Bits) / 8];
  uint16_t list[select_chunk / sizeof(Bits) / 8];
  const uint32_t whole = n / 64 * 8;
  for (uint32_t i = 0; i < whole; i += 8) {
    const Bits* const from = v + 8 * i;
    store(masks + i, mask_of_64(at_least(from, low), at_least(from + 16, low), at_least(from + 32, low),
                                at_least(from + 48, low)));
  }
  const uint32_t some = list_masks(masks, whole, list);
  uint32_t found = 0;
  for (uint32_t j = 0; j < some; ++j) {
    const uint32_t i = 8 * list[j], m = masks[list[j]];
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t four = m >> 4 * half & 15, at = i + 4 * half;
      vst1q_u32(positions + found, compress_neon(vaddq_u32(ascending_4(), vdupq_n_u32(first + at)), four));
      append_neon(v + at, four, out + found);
      found += lanes_of.count[four];
    }
  }
  return collect_each(v, 8 * whole, n, low, first, found, positions, out);
}

template <class Bits>
uint32_t collect_neon(const void* values, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions,
                      void* selected) {
  return collect_chunks<Bits, collect_chunk_neon<Bits>>(values, n, low, first, positions, selected);
}

template <class Bits>
uint64_t magnitudes_neon(const void* values, uint64_t n, uint32_t low, uint32_t high, uint32_t* keys) {
  const auto* v = static_cast<const Bits*>(values);
  if (high <= low) return 0;
  const uint32x4_t from = vdupq_n_u32(low), span = vdupq_n_u32(high - low);
  uint64_t found = 0, i = 0;
  for (; i + 4 <= n; i += 4) {
    const uint32x4_t key = magnitudes_of_4<Bits>(words_of_4(v + i));
    const uint32_t m = mask_of_4(vcltq_u32(vsubq_u32(key, from), span));
    vst1q_u32(keys + found, compress_neon(key, m));
    found += lanes_of.count[m];
  }
  return magnitudes_each(v, i, n, low, high, found, keys);
}

template <class Bits>
uint64_t cut_neon(uint64_t from, uint64_t n, uint32_t above, uint64_t& ties, uint32_t* positions, void* selected) {
  auto* out = static_cast<Bits*>(selected);
  const uint32x4_t edge = vdupq_n_u32(above);
  uint64_t found = 0, left = ties, i = from;
  for (; i + 4 <= from + n; i += 4) {
    const uint32x4_t key = magnitudes_of_4<Bits>(words_of_4(out + i)), at = vld1q_u32(positions + i);
    uint32_t taken = mask_of_4(vceqq_u32(key, edge));
    while (lanes_of.count[taken] > left) taken ^= static_cast<uint32_t>(bit_floor(taken));  // the last one
    left -= lanes_of.count[taken];
    const uint32_t m = mask_of_4(vcgtq_u32(key, edge)) | taken;
    vst1q_u32(positions + found, compress_neon(at, m));
    append_neon(out + i, m, out + found);
    found += lanes_of.count[m];
  }
  found = cut_each(i, from + n, above, left, found, positions, out);
  ties = left;
  return found;
}

template <class Bits>
uint64_t count_neon(const void* values, uint64_t n, uint32_t low) {
  const auto* v = static_cast<const Bits*>(values);
  uint64_t found = 0, i = 0;
  while (i + 16 <= n) {
    // A lane counts at most 255 values before they are added up.
    uint8x16_t sum = vdupq_n_u8(0);
    const uint64_t end = n - i < 16 * 255 ? n : i + 16 * 255;
    for (; i + 16 <= end; i += 16) sum = vsubq_u8(sum, at_least(v + i, low));
    found += vaddlvq_u8(sum);
  }
  return count_each(v, i, n, low, found);
}

template <class Bits>
uint64_t survey_neon(const void* values, uint64_t n, uint32_t& largest) {
  return survey_with<Bits>(values, n, largest);
}

template <class Bits>
constexpr select_kernels kernels_neon{collect_neon<Bits>, magnitudes_neon<Bits>, cut_neon<Bits>, count_neon<Bits>,
                                      survey_neon<Bits>};

}  // namespace

const select_kernels select_neon[2] = {kernels_neon<uint32_t>, kernels_neon<uint16_t>};

}  // namespace dr
#endif
