#include <algorithm>

#include "merge/merge.hpp"
#include "merge/merge_frames.hpp"
#include "merge/union_tile.hpp"
#include "primitive/bits.hpp"

namespace dr {
namespace {

// Finds and sums unions tile by tile. A tile begins where some frame has a row, and frames without rows in a tile are
// skipped, so the time is proportional to the number of pairs. An output is cut into parts for the workers; its sums do
// not depend on the cut.
uint32_t parts_of(const pool& workers) { return workers.workers() > 1 ? merge_scratch::parts * workers.workers() : 1; }

// Rows of the union in a part of an output.
uint64_t& count_of(const merge_scratch* scratch, size_t output, uint32_t part) {
  constexpr uint32_t each = merge_scratch::parts;
  return scratch[part / each].counts[each * output + part % each];
}
// Rows of the union in the parts before one.
uint64_t rows_before(const merge_scratch* scratch, size_t output, uint32_t part) {
  uint64_t n = 0;
  for (uint32_t p = 0; p < part; ++p) n += count_of(scratch, output, p);
  return n;
}

class union_merger {
 public:
  union_merger(std::span<const decoded_frame> frames, const float* weights, bool counts, const merge_scratch* scratch,
               pool& workers, std::span<const tensor_out> outs)
      : frames_(frames),
        weights_(weights),
        counts_(counts),
        scratch_(scratch),
        pool_(workers),
        outs_(outs),
        parts_(parts_of(workers)) {}

  void run() {
    if (std::none_of(outs_.begin(), outs_.end(), [](const tensor_out& o) { return o.index_dtype != 0; })) return;
    pool_.run(
        outs_.size() * parts_,
        [](void* self, size_t item, size_t worker) { static_cast<union_merger*>(self)->run_item(item, worker); }, this);
  }

 private:
  using cursor = merge_scratch::cursor;
  using waiting = merge_scratch::waiting;

  void run_item(size_t item, size_t worker) {
    const size_t output = item / parts_;
    const auto part = static_cast<uint32_t>(item % parts_);
    const tensor_out& o = outs_[output];
    if (!o.index_dtype) return;
    const uint64_t each = ceil_div(o.universe, parts_), begin = std::min(o.universe, part * each),
                   end = std::min(o.universe, begin + each);
    const uint64_t at = counts_ ? 0 : rows_before(scratch_, output, part);
    const uint64_t n = merge_part(o, output, begin, end, at, scratch_[worker]);
    if (counts_) count_of(scratch_, output, part) = n;
  }

  uint32_t tensor_of(size_t f, size_t output) const {
    return frames_[f].front().tensor + static_cast<uint32_t>(output);
  }
  // The first row of a tensor.
  static size_t first_row(decoded_frame frame, size_t output, uint32_t tensor) {
    if (output < frame.size() && frame[output].tensor == tensor && (output == 0 || frame[output - 1].tensor != tensor))
      return output;
    return static_cast<size_t>(
        std::partition_point(frame.begin(), frame.end(), [&](const decoded_row& row) { return row.tensor < tensor; }) -
        frame.begin());
  }
  static bool is_over(decoded_frame frame, size_t row, uint32_t tensor) {
    return row == frame.size() || frame[row].tensor != tensor;
  }

  // Moves the cursor to the next row of the support; false: there is none below `end`.
  static bool settle(decoded_frame frame, uint32_t tensor, uint64_t end, cursor& c, uint64_t& next) {
    while (!is_over(frame, c.row, tensor) && c.first < end) {
      const decoded_row& row = frame[c.row];
      if (c.at < row.count) {
        next = c.first + (row.support ? row.support[c.at] : c.at);
        return next < end;
      }
      c = {c.row + 1, c.first + row.universe, 0};
    }
    return false;
  }

  // Calls f(row, part) for a frame's rows below row `end` of the output, in a tile that begins at `tile`, and moves the
  // cursor past them. f returns their number.
  template <class F>
  static void each_part(decoded_frame frame, uint32_t tensor, uint64_t tile, uint64_t end, cursor& c, F&& f) {
    while (!is_over(frame, c.row, tensor) && c.first < end) {
      const decoded_row& row = frame[c.row];
      if (c.at < row.count)
        c.at += f(row, tile_part{row.support ? row.support + c.at : nullptr, row.values_at(c.at), row.count - c.at,
                                 c.at, end - c.first, static_cast<uint32_t>(c.first - tile)});
      if (c.at < row.count) return;
      c = {c.row + 1, c.first + row.universe, 0};
    }
  }

  // The position of the first row from `begin` on of a frame's tensor.
  cursor find(size_t f, size_t output, uint64_t begin) const {
    const decoded_frame frame = frames_[f];
    const uint32_t tensor = tensor_of(f, output);
    cursor c{first_row(frame, output, tensor), 0, 0};
    while (!is_over(frame, c.row, tensor) && c.first + frame[c.row].universe <= begin)
      c.first += frame[c.row++].universe;
    if (!is_over(frame, c.row, tensor) && begin > c.first && frame[c.row].count)
      c.at = frame[c.row].position_of(begin - c.first);
    return c;
  }

  // Merges rows [begin, end) of an output; their union is written to its rows from `at` on. Returns the number of rows.
  uint64_t merge_part(const tensor_out& o, size_t output, uint64_t begin, uint64_t end, uint64_t at,
                      const merge_scratch& scratch) const {
    if (begin == end || frames_.empty()) return 0;
    const auto columns = static_cast<uint32_t>(std::min<uint64_t>(width_of(o), union_tile::elements));
    const uint64_t tile_rows = std::min(union_tile::elements / columns, end - begin);
    union_tile tile(reinterpret_cast<float*>(scratch.tile), counts_ ? 0 : tile_rows, columns);
    const auto later = [](const waiting& a, const waiting& b) { return a.next > b.next; };
    waiting* const heap = scratch.heap;
    size_t left = 0;
    for (size_t f = 0; f < frames_.size(); ++f) {
      scratch.cursors[f] = find(f, output, begin);
      waiting w{0, f};
      if (settle(frames_[f], tensor_of(f, output), end, scratch.cursors[f], w.next)) heap[left++] = w;
    }
    std::make_heap(heap, heap + left, later);
    uint64_t n = 0;
    while (left) {
      const uint64_t first = heap[0].next, behind = std::min(end - first, tile_rows) + first;
      size_t busy = 0;
      while (left && heap[0].next < behind) {
        std::pop_heap(heap, heap + left, later);
        scratch.busy[busy++] = heap[--left].frame;
      }
      std::sort(scratch.busy, scratch.busy + busy);
      const std::span<const size_t> asked(scratch.busy, busy);
      n += counts_ ? count_tile(tile, output, first, behind, asked, scratch)
                   : add_tile(tile, o, output, first, behind, at + n, asked, scratch);
      for (const size_t f : asked) {
        waiting w{0, f};
        if (!settle(frames_[f], tensor_of(f, output), end, scratch.cursors[f], w.next)) continue;
        heap[left++] = w;
        std::push_heap(heap, heap + left, later);
      }
    }
    return n;
  }

  uint64_t count_tile(union_tile& tile, size_t output, uint64_t first, uint64_t behind, std::span<const size_t> asked,
                      const merge_scratch& scratch) const {
    for (const size_t f : asked)
      each_part(frames_[f], tensor_of(f, output), first, behind, scratch.cursors[f],
                [&](const decoded_row&, const tile_part& p) { return tile.mark(p); });
    return tile.count_and_clear();
  }

  uint64_t add_tile(union_tile& tile, const tensor_out& o, size_t output, uint64_t first, uint64_t behind, uint64_t at,
                    std::span<const size_t> asked, const merge_scratch& scratch) const {
    const uint32_t width = width_of(o);
    uint64_t n = 0;
    for (uint64_t band = 0; band < width; band += union_tile::elements) {
      const bool last = width - band <= union_tile::elements;
      for (const size_t f : asked) {
        cursor c = scratch.cursors[f];
        each_part(frames_[f], tensor_of(f, output), first, behind, c, [&](const decoded_row& row, const tile_part& p) {
          return tile.add(p, row.dtype, width, band, weights_ ? weights_[f] : 1);
        });
        if (last) scratch.cursors[f] = c;
      }
      n = tile.hand_over(first, at, o.index_dtype, band ? nullptr : o.indices, o.dtype, width, band, o.values);
    }
    return n;
  }

  std::span<const decoded_frame> frames_;
  const float* weights_;
  bool counts_;
  const merge_scratch* scratch_;
  pool& pool_;
  std::span<const tensor_out> outs_;
  const uint32_t parts_;
};

}  // namespace

void write_sparse(decoded_frame frame, std::span<tensor_out> outs) {
  uint64_t first = 0;  // rows of the tensor before this one
  for (size_t i = 0; i < frame.size(); ++i) {
    const decoded_row& row = frame[i];
    if (i == 0 || frame[i - 1].tensor != row.tensor) first = 0;
    tensor_out& o = outs[row.tensor - frame.front().tensor];
    if (!o.index_dtype) continue;
    write_indices(row.support, row.count, first, o.index_dtype,
                  static_cast<std::byte*>(o.indices) + o.count * index_type_size(o.index_dtype));
    convert(row.dtype, row.values, row.count * row.width, o.dtype, at_element(o, o.count * row.width));
    o.count += row.count;
    first += row.universe;
  }
}

void count_union_rows(std::span<const decoded_frame> frames, const merge_scratch* scratch, pool& workers,
                      std::span<const tensor_out> outs) {
  union_merger(frames, nullptr, true, scratch, workers, outs).run();
}

uint64_t union_rows(const merge_scratch* scratch, const pool& workers, size_t output) {
  return rows_before(scratch, output, parts_of(workers));
}

void merge_unions(std::span<const decoded_frame> frames, const float* weights, const merge_scratch* scratch,
                  pool& workers, std::span<tensor_out> outs) {
  union_merger(frames, weights, false, scratch, workers, outs).run();
  for (size_t i = 0; i < outs.size(); ++i)
    if (outs[i].index_dtype) outs[i].count = union_rows(scratch, workers, i);
}

}  // namespace dr
