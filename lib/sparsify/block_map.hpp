// Blocks of a source, numbered over all ranges. The first block of a range begins with the range's first value, and its
// last one may be short; pieces may begin and end within a block.
#pragma once

#include <algorithm>
#include <cstring>

#include "sparsify/select.hpp"

namespace dr {

class block_map {
 public:
  // ends [ranges]: output, the number of blocks up to every range's end.
  block_map(const select_source& source, uint32_t block, uint64_t* ends)
      : source_(source),
        block_(block),
        ends_(ends),
        ranges_(source.pieces.empty() ? 0 : source.pieces.back().range + 1) {
    uint64_t blocks = 0, values = 0;
    uint32_t range = 0;
    for (const select_piece& p : source.pieces) {
      for (; range < p.range; ++range, values = 0) {
        only_last_short_ &= values % block == 0;
        ends[range] = blocks += ceil_div(values, block);
      }
      values += p.n;
    }
    if (ranges_) ends[range] = blocks + ceil_div(values, block);
  }

  uint32_t block() const { return block_; }
  // Whether only the last block may be short.
  bool only_last_short() const { return only_last_short_; }
  uint64_t blocks() const { return ranges_ ? ends_[ranges_ - 1] : 0; }

  struct place {
    uint32_t range;
    size_t piece;
    uint64_t first, behind;  // blocks of the range
  };
  // Where block b begins.
  place find(uint64_t b) const {
    const auto range = static_cast<uint32_t>(std::upper_bound(ends_, ends_ + ranges_, b) - ends_);
    const uint64_t first = range ? ends_[range - 1] : 0, element = (b - first) * block_;
    const auto behind = std::upper_bound(
        source_.pieces.begin(), source_.pieces.end(), element,
        [&](uint64_t e, const select_piece& p) { return p.range != range ? p.range > range : p.position > e; });
    return {range, static_cast<size_t>(behind - source_.pieces.begin()) - 1, first, ends_[range]};
  }
  // Whether block b, not before the place's, begins in the same piece.
  bool holds(const place& p, uint64_t b) const {
    const select_piece& piece = source_.pieces[p.piece];
    return b < p.behind && (b - p.first) * block_ - piece.position < piece.n;
  }
  // The first block that does not end within the place's piece.
  uint64_t whole_until(const place& p) const {
    const select_piece& piece = source_.pieces[p.piece];
    return p.first + (piece.position + piece.n) / block_;
  }

  // Calls f(piece, at, n) for the parts of n blocks from b on in the pieces, in order, and end() after those of a
  // range.
  template <class F, class E>
  void each_part(uint64_t b, uint64_t n, F&& f, E&& end) const {
    for (const uint64_t last = b + n; b < last;) {
      const place p = find(b);
      const uint64_t stop = std::min(last, ends_[p.range]);
      uint64_t at = (b - p.first) * block_ - source_.pieces[p.piece].position, left = (stop - b) * block_;
      for (size_t k = p.piece; left && k < source_.pieces.size() && source_.pieces[k].range == p.range; ++k, at = 0) {
        const uint64_t some = std::min(left, source_.pieces[k].n - at);
        if (some) f(k, at, some);
        left -= some;
      }
      end();
      b = stop;
    }
  }

 private:
  const select_source& source_;
  const uint32_t block_;
  const uint64_t* const ends_;
  const uint32_t ranges_;
  bool only_last_short_ = true;
};

// n values of a piece from `at` on, which have been loaded before; `room` is a buffer for them.
inline const void* values_of(const select_source& source, size_t piece, uint64_t at, uint32_t n, select_load what,
                             void* room) {
  if (const void* const values = source.pieces[piece].values)
    return static_cast<const std::byte*>(values) + at * value_size(source.dtype);
  return source.load(source.self, piece, at, n, what, room);
}

}  // namespace dr
