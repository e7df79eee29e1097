// Frames back to gradients, one at a time or summed.
#pragma once

#include <span>

#include "container/frame.hpp"
#include "core/arena.hpp"
#include "core/pool.hpp"

namespace dr {

struct batch;

// Decoded rows: support ascending (nullptr: every row of the universe), values in its order.
struct decoded_row {
  const uint32_t* support;
  const void* values;
};

using tensor_out = dr_tensor_out;

// Room that delivering takes, of each worker.
struct deliver_room {
  struct cursor {
    size_t row;      // of its frame
    uint64_t first;  // rows of the universe before it
    uint64_t at;     // in its support
  };
  cursor* cursors = nullptr;  // [frames]
  std::byte* tile = nullptr;
};

// Workspace to decode these frames into such outputs, or to add them up there; also refuses what is beyond the limits, before anything is
// allocated. The memory of the frames' headers counts, too.
dr_status decode_workspace(std::span<const frame_view> frames, std::span<const tensor_out> outs,
                           const dr_decode_options& limits, uint32_t workers, uint64_t& bytes, dr_error& error);
// Workspace that suffices for any so many frames of a batch. MEMORY: it would not fit an address.
dr_status decode_workspace(const batch& b, size_t frames, uint64_t& bytes, dr_error& error);

// Whether a frame has the tensors of a batch. ARGUMENT.
dr_status check_frame(const batch& b, const frame_view& frame, dr_error& error);
// What all frames of a batch have in common, to check outputs before there is one.
frame_view common_frame(const batch& b);

// Whether outputs are right in themselves; total: their rows.
dr_status check_outputs(std::span<const tensor_out> outs, bool dense_only, uint64_t& total, dr_error& error);
// Whether outputs have the shapes of a frame's tensors. One frame tensor may be cut over dense outputs (bucket=flat).
dr_status check_outputs(const frame_view& frame, std::span<const tensor_out> outs, bool dense_only, dr_error& error);

// A merge takes no more frames: so many have positions of their own in 32 bits, and in sums of workspaces.
inline constexpr size_t merged_max = size_t{1} << 20;

// Decodes every row of every frame; rows [Σ rows of the frames], rooms [workers].
dr_status decode_rows(std::span<const frame_view> frames, pool& workers, arena& memory, decoded_row* rows,
                      deliver_room* rooms, dr_error& error);

// Hands a frame's rows over.
void deliver(const frame_view& frame, const decoded_row* rows, const deliver_room* rooms, pool& workers,
             std::span<tensor_out> outs);
// Σ weight · frame into dense outputs, from zero or added to what they hold; frame after frame for every element.
void merge(std::span<const frame_view> frames, const decoded_row* rows, const float* weights, bool adds,
           const deliver_room* rooms, pool& workers, std::span<tensor_out> outs);

}  // namespace dr
