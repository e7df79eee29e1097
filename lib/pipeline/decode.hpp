// Frames back to gradients, one at a time or summed.
#pragma once

#include <span>

#include "container/frame.hpp"
#include "core/arena.hpp"
#include "core/pool.hpp"
#include "merge/merge_frames.hpp"

namespace dr {

struct batch;

// Which sparse outputs a call takes.
enum class sparse_outputs {
  none,
  one_frame,  // with room for its support
  unions      // of frames' supports; how large they are is known when they are decoded
};

// Workspace to decode these frames into such outputs, or to add them up there; also refuses frames beyond the limits,
// before anything is allocated. The memory of the frames' headers counts, too.
dr_status decode_workspace(std::span<const frame_view> frames, std::span<const tensor_out> outs,
                           const dr_decode_options& limits, uint32_t workers, uint64_t& bytes, dr_error& error);
// Workspace that suffices for any `frames` frames of a batch. MEMORY: it exceeds the address space.
struct decode_memory {
  uint64_t kept = 0;     // by decoded rows, until they are merged
  uint64_t passing = 0;  // beside them, of one call
};
dr_status decode_workspace(const batch& b, size_t frames, decode_memory& room, dr_error& error);

// Whether a frame has the tensors of a batch. ARGUMENT.
dr_status check_frame(const batch& b, const frame_view& frame, dr_error& error);

// Bytes that a frame of a batch takes to decode, at most: its rows, and a worker's scratch.
struct frame_limits {
  uint64_t rows = 0, scratch = 0;
};
frame_limits limits_of(const batch& b);
// CORRUPT: a frame (of these tensors: check_frame) that no plan of the batch makes, for it has or takes more.
dr_status check_limits(const batch& b, const frame_limits& most, const frame_view& frame, dr_error& error);
// The common part of all frames of a batch, to check outputs before there is a frame.
frame_view common_frame(const batch& b);

// Leaves of a frame the tensors that options ask for, which go to so many outputs. ARGUMENT: it has not so many.
dr_status keep_range(frame_view& frame, const dr_decode_options& options, size_t outs, dr_error& error);

// Whether outputs are right in themselves; total: their rows.
dr_status check_outputs(std::span<const tensor_out> outs, sparse_outputs sparse, uint64_t& total, dr_error& error);
// Whether outputs have the shapes of a frame's tensors. One frame tensor may be cut over dense outputs (bucket=flat).
dr_status check_outputs(const frame_view& frame, std::span<const tensor_out> outs, sparse_outputs sparse,
                        dr_error& error);

// All tensors of a frame are, or none.
inline bool is_patch(const frame_view& frame) { return !frame.plans.empty() && frame.plans[0].patch; }

// Whether one frame tensor is cut over several dense outputs (bucket=flat).
inline bool is_cut(const frame_view& frame, size_t outs) { return frame.tensors == 1 && outs > 1 && !is_patch(frame); }

// Where an output lies.
struct out_range {
  uintptr_t begin, end;
  size_t output;
};
// Of all outputs, ascending. ARGUMENT: two of them overlap.
dr_status list_ranges(std::span<const tensor_out> outs, std::vector<out_range>& ranges, dr_error& error);
// ARGUMENT: one of them overlaps a frame.
dr_status check_apart(std::span<const out_range> ranges, const void* frame, uint64_t size, dr_error& error);

// A merge takes no more frames: so many have positions of their own in 32 bits, and in sums of workspaces.
inline constexpr size_t merged_max = size_t{1} << 20;

// Whether value codecs can write a frame's values to the outputs themselves: each row is all of its universe, in the
// output's type, and its place is aligned as codecs take it.
bool decodes_in_place(const frame_view& frame, std::span<const tensor_out> outs);

// Decodes every row of every frame; rows [Σ rows of the frames]. copies: the one frame is to be delivered, so that its
// outputs may be written before it is known to be sound. `memory` has then taken all that `decoded` refers to.
dr_status decode_rows(std::span<const frame_view> frames, std::span<const tensor_out> outs, bool copies, pool& workers,
                      arena& memory, decoded_row* rows, std::span<const decoded_frame>& decoded, dr_error& error);
// The memory of workers that deliver or merge frames; rooms [workers], or nullptr to measure.
void take_rooms(arena& memory, size_t frames, size_t outs, uint32_t workers, deliver_room* rooms);

// Hands a frame's rows over, as far as they are not there.
void deliver(const frame_view& frame, decoded_frame decoded, const deliver_room* rooms, pool& workers,
             std::span<tensor_out> outs);
// How many rows sparse outputs of a merge get, which stays in rooms. CAPACITY: there is too little room.
dr_status count_unions(std::span<const decoded_frame> frames, const deliver_room* rooms, pool& workers,
                       std::span<const tensor_out> outs, dr_error& error);
// Σ weight · frame: into dense outputs, from zero or added to their contents; frame after frame for every element. Into
// sparse ones, whose unions were counted, from zero.
// Of those of the outputs that vote, the signs.
void merge(std::span<const decoded_frame> frames, const float* weights, bool adds, const voters& votes,
           const deliver_room* rooms, pool& workers, std::span<tensor_out> outs);

}  // namespace dr
