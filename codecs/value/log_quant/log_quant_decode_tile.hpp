// value=log_quant on a GPU: decode. A block of lanes reads the head of a payload; then each decodes 4096 values.
#pragma once

#include "codecs/family/levels/table_values_decode_tile.hpp"
#include "codecs/value/log_quant/log_quant_tile.hpp"

namespace dr {

template <class Args>
struct log_quant_open {
  static constexpr const char* name = "log_quant_open";
  static constexpr unsigned lanes = log_quant_lanes, grid_phases = 1;
  using args = Args;
  using shared = table_open_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    const uint32_t dtype = a.common.dtype;
    open_table_values(b, s, a, [&](const uint8_t* in, uint64_t size, uint64_t n, table_values_source& to) {
      return head(dtype, in, size, n, to);
    });
  }

 private:
  DR_HD static table_head head(uint32_t dtype, const uint8_t* in, uint64_t size, uint64_t n, table_values_source& to) {
    constexpr table_head corrupt{0, 0, 0};
    const unsigned kind = in[0], bits = kind >> log_bits_shift;
    const bool apart = kind & log_lowest_bit;
    const uint64_t signs = log_head + 4 * apart, from = signs + ceil_div(n, 8);
    if (!(kind & 1) || bits < 1 || bits > log_bits_max || size < from) return corrupt;
    const auto word = [&](unsigned at) { return load_u16(in + at) | load_u16(in + at + 2) << 16; };
    const uint32_t low = word(1), high = word(5), lowest = apart ? word(9) : 0;
    if (high >= f32_type::infinity || low > high || (low == 0 && high != 0) || lowest >= f32_type::infinity)
      return corrupt;
    to.signs = signs;
    each_log_level(std::bit_cast<float>(low), std::bit_cast<float>(high), bits,
                   [&](unsigned i, float number, float) { to.put(dtype, i, number); });
    if (apart) to.put(dtype, 0, std::bit_cast<float>(lowest));
    return {from, 1u << bits, (kind & log_huffman_bit) != 0};
  }
};

template <class Args>
struct log_quant_decode {
  static constexpr const char* name = "log_quant_decode";
  static constexpr unsigned lanes = level_decode_lanes, grid_phases = 1;
  using args = Args;
  using shared = level_decode_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    decode_table_values(b, s, a);
  }
};

}  // namespace dr
