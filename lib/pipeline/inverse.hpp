// The end of a decode or a merge of coefficients (transform=dct): what frames have of a tensor is added up in the workspace,
// and its inverse goes to the output, once.
#pragma once

#include <span>

#include "container/frame.hpp"
#include "core/arena.hpp"
#include "core/pool.hpp"
#include "merge/merge_frames.hpp"

namespace dr {

struct batch;

// ARGUMENT, UNSUPPORTED: outputs that have no inverse; frames whose tensors are of different tiles.
dr_status check_tiles(std::span<const frame_view> frames, std::span<const tensor_out> outs,
                      const dr_decode_options& how, dr_error& error);

// The outputs of a merge, some of which are coefficients.
class inverse {
 public:
  // For frames like this one; its memory fits, or is measured. Nothing is allocated without tiles.
  inverse(arena& memory, decoded_frame like, std::span<tensor_out> outs);

  // Where frames are to be merged to. clears: from zero, because they will be added.
  std::span<tensor_out> merged(bool clears);
  // Writes or adds the inverse to the outputs.
  void finish(bool adds, pool& workers);

 private:
  std::span<tensor_out> outs_;
  tensor_out* own_ = nullptr;   // [outs]
  tile_form* tiles_ = nullptr;  // [outs]
};

// The memory of an inverse of these frames, or of any frames of a batch.
void measure_inverse(arena& memory, std::span<const frame_view> frames, std::span<const tensor_out> outs,
                     const dr_decode_options& how);
void measure_inverse(arena& memory, const batch& b);

}  // namespace dr
