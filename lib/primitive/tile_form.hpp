// How a frame's tensor is arranged: as it is, or as coefficients of its tiles (FORMAT.md, Transforms).
#pragma once

#include <cstdint>

namespace dr {

enum class tile_kind : uint8_t { none, cosines };

inline constexpr uint32_t log2_tile_max = 6;

struct tile_form {
  tile_kind kind = tile_kind::none;
  uint8_t log2_size = 0;  // of a tile: 1 to log2_tile_max
  uint32_t columns = 0;   // of the matrix; 0: a vector, whose tiles are runs

  uint32_t size() const { return 1u << log2_size; }
  explicit operator bool() const { return kind != tile_kind::none; }
  bool operator==(const tile_form&) const = default;
};

}  // namespace dr
