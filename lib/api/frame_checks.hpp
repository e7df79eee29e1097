// The common checks of decode, on the CPU and on a device.
#pragma once

#include "api/context.hpp"

namespace dr {

// The largest size of the headers of frames, in bytes.
inline uint64_t header_room(const dr_decode_options& o) { return o.max_workspace ? o.max_workspace : UINT64_MAX; }

// Reads a whole frame in host memory and checks it. ARGUMENT: NULL. PEER: a status frame. Else as read_frame.
dr_status read_sound_frame(const dr_bytes& frame, frame_view& out, dr_error& error, uint64_t memory_max = UINT64_MAX);
// ARGUMENT: the call expects another tag.
dr_status check_tag(const frame_view& f, const dr_decode_options& o, dr_error& error);
// ARGUMENT: a patch that the call does not apply, or another frame that it does. Only patches are applied, and patches are
// only applied: to confuse a patch with a gradient would lose weights.
dr_status check_patch(bool patch, const dr_decode_options& o, dr_error& error);
// ARGUMENT: an output of a type that no merge adds up, for a merge of no frames: no frame's types are compared with it.
dr_status check_merged_types(std::span<const tensor_out> outs, dr_error& error);
// ARGUMENT: a weight is not finite. One such weight would be in every sum.
dr_status check_weights(const float* weights, size_t k, dr_error& error);

// Adds the position of the frame to the error of a merge; returns its code.
dr_status blame_frame(dr_error& error, size_t frame);

// ARGUMENT: two outputs overlap, or one of n frames lies in an output; the error names that frame if `names_frame`.
// frame_at(i): where it lies. ranges: of the outputs, if they are known.
template <class F>
dr_status check_apart(context& c, size_t n, F&& frame_at, std::span<const tensor_out> outs,
                      const std::vector<out_range>* ranges, bool names_frame) {
  if (!ranges) {
    if (const dr_status s = list_ranges(outs, c.ranges, c.error)) return s;
    ranges = &c.ranges;
  }
  for (size_t i = 0; i < n; ++i) {
    const dr_bytes at = frame_at(i);
    if (const dr_status s = check_apart(*ranges, at.data, at.size, c.error))
      return names_frame ? blame_frame(c.error, i) : s;
  }
  return DR_OK;
}

}  // namespace dr
