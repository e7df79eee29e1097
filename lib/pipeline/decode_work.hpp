// The workspace of a decode: laid out, or measured.
#pragma once

#include <span>

#include "container/frame.hpp"
#include "core/arena.hpp"
#include "merge/merge_frames.hpp"
#include "primitive/value_type.hpp"
#include "stage/chain.hpp"

namespace dr {

// The memory to decode a row; nullptr where it is not needed.
struct decode_row {
  dr_fault fault;
  uint64_t out_size[section_count];
  uint32_t* support;
  void* values;
  uint32_t* order;
  uint32_t* seen;    // to check a permutation, a bit an element
  uint64_t* sorted;  // of keys that carry the order: key and position
  void* in_order;    // values in index order
  // For a patch: the receiver's segment, its words at the support, and the sums of its chunks.
  const std::byte* base;
  void* based;
  uint64_t* sums;
  uint64_t* known;  // the caller's, or nullptr
  uint8_t *history,
      *past;  // the caller's of the segment, or nullptr; and at the support, if the value codec goes by it
  stream_slot slots[section_count];
};

struct decode_work {
  decode_row* rows = nullptr;       // of all frames
  decoded_frame* frames = nullptr;  // after decoding
  job_list jobs;
  uint32_t *selected = nullptr, *by_plan = nullptr;
  std::byte* scratch = nullptr;  // nullptr: the arena was too small, or measured
  uint64_t scratch_stride = 0;   // per worker
  arena stored;                  // before the scratch, in which no decoded data is

  // If the arena is too small, or measures, only the size is computed.
  static decode_work lay_out(arena& memory, std::span<const frame_view> frames, uint32_t workers);
};

inline uint64_t row_bytes(const wire_plan& p) { return uint64_t{p.width} * value_size(p.dtype); }
inline uint64_t row_size(const wire_plan& p, const wire_row& r) { return r.universe * row_bytes(p); }  // dense
inline bool coded(const wire_row& r) { return r.mode != mode_dense && r.count != 0; }

// Whether the support is the whole universe, by the plan's index codec: nothing is read for it, and no list is made.
// (The codec refuses a row that states another support.)
inline bool whole(const wire_plan& plan, const wire_row& row) {
  return plan.index().whole() && row.mode == mode_plan && row.support == row.universe;
}

// Whether a stream of a coded row has to be decoded.
inline bool has_stream(const wire_plan& plan, const wire_row& row, uint32_t s) {
  return s != section_index || (row.mode != mode_raw_index && !whole(plan, row));
}

}  // namespace dr
