// value=lloyd on a GPU: decode. A block of lanes reads the head of a payload; then each decodes 4096 values.
#pragma once

#include "codecs/family/levels/table_values_decode_tile.hpp"
#include "codecs/value/lloyd/lloyd_tile.hpp"

namespace dr {

template <class Args>
struct lloyd_open {
  static constexpr const char* name = "lloyd_open";
  static constexpr unsigned lanes = lloyd_lanes, grid_phases = 1;
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
    const unsigned kind = in[0], count = (kind % lloyd_own_type_bit >> lloyd_count_shift) + 1;
    const uint32_t type = kind & lloyd_own_type_bit ? dtype : uint32_t{DR_BF16};
    const unsigned unit = value_size(type);
    const uint64_t signs = 1 + count * unit, from = signs + ceil_div(n, 8);
    if (!(kind & 1) || kind >= lloyd_kind_end || size < from) return corrupt;
    const uint32_t infinity = with_value_type(type, [](auto t) { return uint32_t{decltype(t)::infinity}; });
    for (unsigned i = 0; i < count; ++i) {
      const uint8_t* const at = in + 1 + i * unit;
      const uint32_t bits = load_u16(at) | (unit == 4 ? load_u16(at + 2) << 16 : 0);
      if (bits >= infinity) return corrupt;
      to.put(dtype, i, value_of(type, bits));
    }
    to.signs = signs;
    return {from, count, (kind & lloyd_huffman_bit) != 0};
  }
};

template <class Args>
struct lloyd_decode {
  static constexpr const char* name = "lloyd_decode";
  static constexpr unsigned lanes = level_decode_lanes, grid_phases = 1;
  using args = Args;
  using shared = level_decode_shared;

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    decode_table_values(b, s, a);
  }
};

}  // namespace dr
