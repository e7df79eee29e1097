// Frames back to gradients, one at a time or summed.
#pragma once

#include <span>

#include "container/frame.hpp"
#include "core/arena.hpp"
#include "core/pool.hpp"
#include "merge/merge_frames.hpp"

namespace dr {

struct batch;
struct decode_work;

// Which sparse outputs a call accepts.
enum class sparse_outputs {
  none,
  one_frame,  // with capacity for its support
  unions      // of the frames' supports; their sizes are known after decoding
};

// Lays out the workspace to decode these frames into these outputs, or to merge them there; `bytes`: what it takes of
// `memory`, with the merge. Refuses frames above the limits. The memory of the frames' headers counts, too.
dr_status lay_out_decode(std::span<const frame_view> frames, std::span<const tensor_out> outs,
                         const dr_decode_options& limits, uint32_t workers, arena memory, decode_work& work,
                         uint64_t& bytes, dr_error& error);
// Only measures it.
dr_status decode_workspace(std::span<const frame_view> frames, std::span<const tensor_out> outs,
                           const dr_decode_options& limits, uint32_t workers, uint64_t& bytes, dr_error& error);
// The workspace that suffices for any `frames` frames of a batch. MEMORY: it exceeds the address space.
struct decode_memory {
  uint64_t stored = 0;     // for decoded rows, until they are merged
  uint64_t transient = 0;  // in addition, during a call
};
dr_status decode_workspace(const batch& b, size_t frames, decode_memory& needed, dr_error& error);

// ARGUMENT: a frame does not have the tensors of a batch.
dr_status check_frame(const batch& b, const frame_view& frame, dr_error& error);

// The maximum of memory to decode a frame of a batch: for its rows, and for a worker's scratch.
struct frame_limits {
  uint64_t rows = 0, scratch = 0;
};
frame_limits limits_of(const batch& b);
// CORRUPT: a frame with the batch's tensors (check_frame) that exceeds what the batch's plans can make.
dr_status check_limits(const batch& b, const frame_limits& limits, const frame_view& frame, dr_error& error);
// The common part of all frames of a batch, to check outputs before a frame exists.
frame_view common_frame(const batch& b);

// Removes all tensors of a frame but those that the options request, one for every output. ARGUMENT: it has fewer.
dr_status keep_range(frame_view& frame, const dr_decode_options& options, size_t outs, dr_error& error);

// Checks outputs without a frame; total: their rows.
dr_status check_outputs(std::span<const tensor_out> outs, sparse_outputs sparse, uint64_t& total, dr_error& error);
// Checks that outputs have the shapes of a frame's tensors. One frame tensor may be cut over dense outputs
// (bucket=flat).
dr_status check_outputs(const frame_view& frame, std::span<const tensor_out> outs, sparse_outputs sparse,
                        dr_error& error);

// Either all tensors of a frame are patches, or none is.
inline bool is_patch(const frame_view& frame) { return !frame.plans.empty() && frame.plans[0].patch; }

// Whether one frame tensor is cut over several dense outputs (bucket=flat).
inline bool is_cut(const frame_view& frame, size_t outs) { return frame.tensors == 1 && outs > 1 && !is_patch(frame); }

// The memory of an output.
struct out_range {
  uintptr_t begin, end;
  size_t output;
};
// Lists the memory of all outputs, ascending. ARGUMENT: two of them overlap.
dr_status list_ranges(std::span<const tensor_out> outs, std::vector<out_range>& ranges, dr_error& error);
// ARGUMENT: an output overlaps a frame.
dr_status check_apart(std::span<const out_range> ranges, const void* frame, uint64_t size, dr_error& error);

// The maximum number of frames of a merge: positions of frames fit in 32 bits, and sums of workspaces do not overflow.
inline constexpr size_t merged_max = size_t{1} << 20;

// Whether value codecs can write a frame's values to the outputs directly: a row is its whole universe, in the output's
// type, and its memory has the alignment that codecs require.
bool decodes_in_place(const frame_view& frame, std::span<const tensor_out> outs);

// Decodes all rows of all frames; rows [Σ rows of the frames]. copies: the only frame is to be delivered, so its
// outputs may be written before it is known to be sound. `decoded` refers to what was laid out before w.stored.
dr_status decode_rows(std::span<const frame_view> frames, std::span<const tensor_out> outs, bool copies, pool& workers,
                      const decode_work& w, decoded_row* rows, std::span<const decoded_frame>& decoded,
                      dr_error& error);
// Lays out the memory of workers that deliver or merge frames; scratch [workers], or nullptr to measure.
void lay_out_merge(arena& memory, size_t frames, size_t outs, uint32_t workers, merge_scratch* scratch);

// Writes a frame's rows to the outputs, except those that were decoded in place.
void deliver(const frame_view& frame, decoded_frame decoded, const merge_scratch* scratch, pool& workers,
             std::span<tensor_out> outs);
// Counts the rows of the sparse outputs of a merge, in scratch. CAPACITY: an output is too small.
dr_status count_unions(std::span<const decoded_frame> frames, const merge_scratch* scratch, pool& workers,
                       std::span<const tensor_out> outs, dr_error& error);
// Σ weight · frame: to dense outputs, from zero or added to their contents, in the order of the frames for every
// element; to sparse outputs, whose unions were counted, from zero. Outputs that vote become the signs of the sums.
void merge(std::span<const decoded_frame> frames, const float* weights, bool adds, const voters& votes,
           const merge_scratch* scratch, pool& workers, std::span<tensor_out> outs);

}  // namespace dr
