#include "merge/union_tile.hpp"

#include <algorithm>
#include <cstring>

#include "primitive/bits.hpp"
#include "primitive/value_type.hpp"

namespace dr {

union_tile::union_tile(float* sums, uint64_t rows, uint32_t columns) : sums_(sums), columns_(columns) {
  std::memset(sums, 0, rows * columns * sizeof *sums);
  std::memset(seen_, 0, sizeof seen_);
  std::memset(touched_, 0, sizeof touched_);
}

// Calls f(row of the tile, position) for every row of a part; returns their number.
template <class F>
uint64_t union_tile::each_row(const tile_part& p, F&& f) {
  if (!p.support) {
    const uint64_t n = std::min(p.count, p.end - p.first);
    for (uint64_t i = 0; i < n; ++i) f(static_cast<uint32_t>(p.first + i) + p.shift, i);
    return n;
  }
  uint64_t i = 0;
  for (; i < p.count && p.support[i] < p.end; ++i) f(p.support[i] + p.shift, i);
  return i;
}

uint64_t union_tile::mark(const tile_part& p) {
  return each_row(p, [&](uint32_t row, uint64_t) { note(row); });
}

uint64_t union_tile::add(const tile_part& p, uint32_t from_type, uint32_t width, uint64_t band, float weight) {
  const uint64_t columns = std::min<uint64_t>(columns_, width - band);
  return with_value_type(from_type, [&](auto from) {
    using From = decltype(from);
    const auto* const v = static_cast<const typename From::bits*>(p.values);
    if (width == 1)
      return each_row(p, [&](uint32_t row, uint64_t i) {
        note(row);
        sums_[row] += weight * From::to_f32(v[i]);
      });
    return each_row(p, [&](uint32_t row, uint64_t i) {
      note(row);
      float* const to = sums_ + row * columns_;
      const auto* const x = v + i * width + band;
      for (uint64_t c = 0; c < columns; ++c) to[c] += weight * From::to_f32(x[c]);
    });
  });
}

// Calls f(number, word) for each word of seen_ that is not 0, ascending, and clears it.
template <class F>
void union_tile::each_touched(F&& f) {
  for (uint64_t i = 0; i < elements / 64; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, touched_ + i, 8);
    if (!eight) continue;
    std::memset(touched_ + i, 0, 8);
    for (uint64_t k = i; k < i + 8; ++k) {
      if (!seen_[k]) continue;
      f(k, seen_[k]);
      seen_[k] = 0;
    }
  }
}

uint64_t union_tile::count_and_clear() {
  uint64_t n = 0;
  each_touched([&](uint64_t, uint64_t word) { n += popcount(word); });
  return n;
}

uint64_t union_tile::hand_over(uint64_t first, uint64_t at, uint32_t index_type, void* indices, uint32_t to_type,
                               uint32_t width, uint64_t band, void* values) {
  const uint64_t columns = std::min<uint64_t>(columns_, width - band);
  uint64_t n = at;
  with_value_type(to_type, [&](auto to) {
    using To = decltype(to);
    auto* const out = static_cast<typename To::bits*>(values);
    const auto put = [&](uint64_t position, float& sum) {
      out[position] = converted<f32_type, To>(std::bit_cast<uint32_t>(computed(sum)));
      sum = 0;
    };
    each_touched([&](uint64_t k, uint64_t word) {
      for (; word; word &= word - 1, ++n) {
        const uint64_t row = 64 * k + countr_zero(word);
        if (indices) store_index(index_type, indices, n, first + row);
        if (width == 1)
          put(n, sums_[row]);
        else
          for (uint64_t c = 0; c < columns; ++c) put(n * width + band + c, sums_[row * columns_ + c]);
      }
    });
  });
  return n - at;
}

}  // namespace dr
