#include <algorithm>
#include <atomic>
#include <cstring>

#include "merge/merge.hpp"
#include "merge/merge_frames.hpp"
#include "primitive/bits.hpp"

namespace dr {
namespace {

// Elements of a tile: with one frame it fits in L1; with several, every frame has enough pairs in a tile.
uint64_t tile_elements(size_t frames) { return frames < 2 ? 8192 : 32768; }
// Larger outputs do not fit in the caches, so they are written past them.
constexpr uint64_t streamed_from = uint64_t{8} << 20;

// Merges tile by tile, and in a tile frame by frame: every element is summed as if whole frames were added in order.
// A piece of work ends where a row or an output ends.
class dense_merger {
 public:
  dense_merger(std::span<const decoded_frame> frames, const float* weights, merge_mode mode, const voters& votes,
               const merge_scratch* scratch, pool& workers, std::span<tensor_out> outs)
      : frames_(frames),
        weights_(weights),
        copies_(mode == merge_mode::copy),
        clears_(mode != merge_mode::add),
        votes_(votes),
        scratch_(scratch),
        pool_(workers),
        outs_(outs) {}

  void run() {
    uint64_t bytes = 0;
    for (const tensor_out& o : outs_) {
      tiles_ += tiles_of(o);
      if (!o.index_dtype) bytes += o.universe * width_of(o) * value_size(o.dtype);
    }
    streams_ = clears_ && bytes >= streamed_from;
    // A few items per worker, because pairs are not evenly distributed.
    const uint64_t items = pool_.workers() > 1 ? 8 * uint64_t{pool_.workers()} : 1;
    each_ = std::max<uint64_t>(1, ceil_div(tiles_, items));
    pool_.run(
        static_cast<size_t>(ceil_div(tiles_, each_)),
        [](void* self, size_t item, size_t worker) { static_cast<dense_merger*>(self)->run_item(item, worker); }, this);
  }

 private:
  uint64_t tile_rows(const tensor_out& o) const {
    return std::max<uint64_t>(1, tile_elements(frames_.size()) / width_of(o));
  }
  uint64_t tiles_of(const tensor_out& o) const { return o.index_dtype ? 0 : ceil_div(o.universe, tile_rows(o)); }

  void run_item(size_t item, size_t worker) {
    const merge_scratch& scratch = scratch_[worker];
    uint64_t tile = item * each_, left = std::min(each_, tiles_ - tile);
    uint64_t before = 0;  // rows of the outputs before
    size_t i = 0;
    for (; tile >= tiles_of(outs_[i]); ++i) {
      tile -= tiles_of(outs_[i]);
      before += outs_[i].universe;
    }
    for (size_t f = 0; f < frames_.size(); ++f)
      scratch.cursors[f] = find(frames_[f], before + tile * tile_rows(outs_[i]));
    if (streams_) std::memset(scratch.tile, 0, merge_scratch::tile_bytes);
    for (; left; --left, ++tile) {
      for (; tile >= tiles_of(outs_[i]); ++i) {
        tile = 0;
        before += outs_[i].universe;
      }
      tensor_out& o = outs_[i];
      const uint64_t begin = tile * tile_rows(o), n = std::min(tile_rows(o), o.universe - begin);
      const uint64_t bytes = n * width_of(o) * value_size(o.dtype);
      std::byte* const out = at_element(o, begin * width_of(o));
      const bool streams = streams_ && bytes <= merge_scratch::tile_bytes;
      if (!streams && clears_) std::memset(out, 0, bytes);
      const merge_scratch::cursor from = frames_.empty() ? merge_scratch::cursor{0, 0, 0} : scratch.cursors[0];
      const uint64_t pairs = fill(scratch, o, before + begin, n, streams ? scratch.tile : out);
      if (votes_(i)) replace_by_signs(o.dtype, streams ? scratch.tile : out, n * width_of(o));
      if (streams) {
        stream_out(scratch.tile, bytes, out);
        if (votes_(i) || !clear_pairs(from, pairs, before + begin, n, o, scratch.tile))
          std::memset(scratch.tile, 0, bytes);
      }
      std::atomic_ref(o.count).fetch_add(pairs, std::memory_order_relaxed);
    }
  }

  // Sets a tile's pairs to 0 again, if that is faster than to clear the whole tile: for few pairs of single values from
  // one row, of the only frame, that spans the tile. Otherwise returns false.
  bool clear_pairs(const merge_scratch::cursor& from, uint64_t pairs, uint64_t first, uint64_t n, const tensor_out& o,
                   std::byte* tile) const {
    if (frames_.size() != 1 || from.row >= frames_[0].size() || pairs > n / 16) return false;
    const decoded_row& row = frames_[0][from.row];
    if (!row.support || row.width != 1 || first < from.first || first + n > from.first + row.universe) return false;
    for (uint64_t k = from.at; k < from.at + pairs; ++k)
      store_bits(o.dtype, tile, row.support[k] + from.first - first, 0);
    return true;
  }

  // The position of the first row of the universe from `first` on.
  static merge_scratch::cursor find(decoded_frame frame, uint64_t first) {
    merge_scratch::cursor c{0, 0, 0};
    while (c.row < frame.size() && c.first + frame[c.row].universe <= first) c.first += frame[c.row++].universe;
    if (c.row < frame.size()) c.at = frame[c.row].position_of(first - c.first);
    return c;
  }

  // Merges rows [first, first + n) of the universe. Returns the number of pairs.
  uint64_t fill(const merge_scratch& scratch, const tensor_out& o, uint64_t first, uint64_t n, std::byte* out) const {
    uint64_t pairs = 0;
    for (size_t f = 0; f < frames_.size(); ++f) {
      const decoded_frame frame = frames_[f];
      if (f + 1 < frames_.size()) fetch(frames_[f + 1], scratch.cursors[f + 1]);
      merge_scratch::cursor& c = scratch.cursors[f];
      while (c.row < frame.size() && c.first < first + n) {
        const decoded_row& row = frame[c.row];
        const pair_sink sink{row.dtype, o.dtype, row.width, !copies_, weights_ ? weights_[f] : 1};
        const uint64_t row_end = c.first + row.universe, to_bytes = uint64_t{row.width} * value_size(o.dtype);
        const uint64_t begin = std::max(first, c.first), end = std::min(first + n, row_end);
        if (begin < end && row.count) {
          std::byte* const to = out + (begin - first) * to_bytes;
          if (!row.support) {
            put_rows(sink, row.values_at(begin - c.first), end - begin, to);
            pairs += end - begin;
          } else {
            const uint64_t put = put_pairs(sink, row.support + c.at, row.values_at(c.at), row.count - c.at,
                                           begin - c.first, end - c.first, to);
            c.at += put;
            pairs += put;
          }
        }
        if (row_end > first + n) break;
        c = {c.row + 1, row_end, 0};
      }
    }
    return pairs;
  }

  // Prefetches the next part of a frame while the part before it is processed.
  static void fetch(decoded_frame frame, const merge_scratch::cursor& c) {
    if (c.row >= frame.size() || !frame[c.row].support) return;
    const auto* const support = reinterpret_cast<const char*>(frame[c.row].support + c.at);
    const std::byte* const values = frame[c.row].values_at(c.at);
    for (unsigned line = 0; line < 4; ++line) {
      __builtin_prefetch(support + 64 * line);
      __builtin_prefetch(values + 64 * line);
    }
  }

  std::span<const decoded_frame> frames_;
  const float* weights_;
  bool copies_, clears_, streams_ = false;
  voters votes_;
  const merge_scratch* scratch_;
  pool& pool_;
  std::span<tensor_out> outs_;
  uint64_t tiles_ = 0, each_ = 1;
};

}  // namespace

void merge_dense(std::span<const decoded_frame> frames, const float* weights, merge_mode mode, const voters& votes,
                 const merge_scratch* scratch, pool& workers, std::span<tensor_out> outs) {
  dense_merger(frames, weights, mode, votes, scratch, workers, outs).run();
}

}  // namespace dr
