// Tables of levels, sixteen values at a time: the bounds of sixteen steps are compared with all, those between two of
// them, and numbers, are looked up.
#include "codecs/family/levels/table_levels.hpp"
#include "primitive/neon_vectors.hpp"

#if DR_NEON
namespace dr {
namespace {

constexpr unsigned coarse_max = 16;  // u32 that one lookup reaches

// For levels below `size`: bounds of every (size / 16)-th one, and tables of those between them.
template <unsigned size>
struct level_search {
  static constexpr unsigned stride = size > coarse_max ? size / coarse_max : 1, steps = size / stride - 1;
  uint32_t coarse[steps];
  uint8x16x4_t fine[stride > 1 ? stride - 1 : 1];

  explicit level_search(const level_bounds& bounds) {
    for (unsigned i = 0; i < steps; ++i) coarse[i] = bounds.of[(i + 1) * stride - 1];
    for (unsigned k = 0; k + 1 < stride; ++k) {
      uint32_t table[coarse_max];
      for (unsigned i = 0; i < coarse_max; ++i) table[i] = bounds.of[i * stride + k];
      for (unsigned i = 0; i < 4; ++i) fine[k].val[i] = vreinterpretq_u8_u32(vld1q_u32(table + 4 * i));
    }
  }
  // Of four magnitudes: how many bounds are not above them.
  uint32x4_t operator()(uint32x4_t m) const {
    uint32x4_t step = vdupq_n_u32(0);
    for (unsigned i = 0; i < steps; ++i) step = vsubq_u32(step, vcgeq_u32(m, vdupq_n_u32(coarse[i])));
    if constexpr (stride == 1) return step;
    // Bytes 4 i to 4 i + 3 of a table.
    const uint32x4_t at = vmlaq_u32(vdupq_n_u32(0x03020100), step, vdupq_n_u32(0x04040404));
    uint32x4_t level = vmulq_u32(step, vdupq_n_u32(stride));
    for (unsigned k = 0; k + 1 < stride; ++k) {
      const uint32x4_t bound = vreinterpretq_u32_u8(vqtbl4q_u8(fine[k], vreinterpretq_u8_u32(at)));
      level = vsubq_u32(level, vcgeq_u32(m, bound));
    }
    return level;
  }
};

template <unsigned size>
void quantise_neon(const uint32_t* values, size_t n, const level_bounds& bounds, uint8_t* levels, uint8_t* signs) {
  const level_search<size> level_of(bounds);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    uint32x4_t level[4], negative[4];
    for (unsigned h = 0; h < 4; ++h) {
      const uint32x4_t v = vld1q_u32(values + i + 4 * h);
      level[h] = level_of(vandq_u32(v, vdupq_n_u32(f32_type::magnitude_mask)));
      negative[h] = vcltzq_s32(vreinterpretq_s32_u32(v));
    }
    const auto bytes = [](const uint32x4_t(&x)[4]) {
      return lower_halves(lower_halves(x[0], x[1]), lower_halves(x[2], x[3]));
    };
    vst1q_u8(levels + i, bytes(level));
    store(signs + i / 8, static_cast<uint16_t>(mask_of_16(bytes(negative))));
  }
  if (i < n) table_quantise_scalar(values + i, n - i, bounds, levels + i, signs + i / 8);
}

}  // namespace

void table_quantise_neon(const uint32_t* values, size_t n, const level_bounds& bounds, uint8_t* levels,
                         uint8_t* signs) {
  switch (bounds.count) {
    case 2: return quantise_neon<2>(values, n, bounds, levels, signs);
    case 4: return quantise_neon<4>(values, n, bounds, levels, signs);
    case 8: return quantise_neon<8>(values, n, bounds, levels, signs);
    case 16: return quantise_neon<16>(values, n, bounds, levels, signs);
    case 32: return quantise_neon<32>(values, n, bounds, levels, signs);
    case 64: return quantise_neon<64>(values, n, bounds, levels, signs);
    default: return table_quantise_scalar(values, n, bounds, levels, signs);
  }
}

// A table for each of a number's four bytes.
void table_restore_neon(const uint8_t* levels, size_t n, const uint8_t* signs, const level_table& table,
                        uint32_t* values) {
  static_assert(table_levels_max == 64);
  uint8x16x4_t byte_of[4];
  for (unsigned j = 0; j < 4; ++j) {
    const uint8x16x4_t some = vld4q_u8(reinterpret_cast<const uint8_t*>(table.of + 16 * j));
    for (unsigned k = 0; k < 4; ++k) byte_of[k].val[j] = some.val[k];
  }
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const uint8x16_t level = vandq_u8(vld1q_u8(levels + i), vdupq_n_u8(table_levels_max - 1));
    uint8x16x4_t numbers;
    for (unsigned k = 0; k < 4; ++k) numbers.val[k] = vqtbl4q_u8(byte_of[k], level);
    const uint8x16_t sixteen = vcombine_u8(vdup_n_u8(signs[i / 8]), vdup_n_u8(signs[i / 8 + 1]));
    numbers.val[3] = vorrq_u8(numbers.val[3], vandq_u8(vtstq_u8(sixteen, bit_of_16()), vdupq_n_u8(0x80)));
    vst4q_u8(reinterpret_cast<uint8_t*>(values + i), numbers);
  }
  if (i < n) table_restore_scalar(levels + i, n - i, signs + i / 8, table, values + i);
}

}  // namespace dr
#endif
