// A batch bound to its tensors, outputs and workspace: the calls of a training loop.
#pragma once

#include "api/run_decode.hpp"
#include "api/run_encode.hpp"

namespace dr {

struct bound_batch {
  dr::context& context;
  const placed_batch& batch;
  target where;
  size_t frames = 1;  // at most, of a merge
  bool encodes = false, decodes = false;
  std::vector<tensor_view> tensors;
  std::vector<tensor_out> outs;

  bound_batch(dr::context& c, const placed_batch& b) : context(c), batch(b) {}
  ~bound_batch();
  bound_batch(const bound_batch&) = delete;
  bound_batch& operator=(const bound_batch&) = delete;

  // Validate `tensors` or `outs`, and add their workspace.
  dr_status bind_tensors();
  dr_status bind_outputs();
  // Of outputs that were bound before: allocates nothing.
  dr_status bind_outputs_again() { return list_ranges(outs, ranges_, context.error); }
  // Others for what was bound before (nullptr: they stay), swapped with these. If it fails, all is as it was.
  dr_status rebind(std::vector<tensor_view>* in, std::vector<tensor_out>* out);
  dr_status allocate_workspace();
  // Or one of the caller's, of at least workspace_size() bytes, aligned as an arena is, on the CPU.
  size_t workspace_size() const { return workspace_size_; }
  void lend_workspace(void* memory) { lent_ = memory; }

  dr_status encode(encode_request& request, encode_result& made);
  dr_status decode(const decode_request& request, const dr_decode_options& options, dr_result* result);

  // A merge on the CPU, of frames whose checks were verified, in two calls: run_decode.hpp. `needed`: memory for any
  // `frames` frames.
  dr_status measure_ahead(decode_memory& needed) const;
  dr_status decode_ahead(std::span<const dr_bytes> of, arena& memory, std::span<const decoded_frame>& decoded);
  dr_status merge_decoded(std::span<const decoded_frame> decoded, const float* weights, arena& memory);

 private:
  dr_status check(std::span<const tensor_view> in);
  dr_status check(std::span<const tensor_out> out, std::vector<out_range>& ranges);
  host_decode on_host() const {
    // (The frames were judged against the batch.)
    static constexpr dr_decode_options no_limits = [] {
      dr_decode_options o{};
      o.max_elements = o.max_workspace = UINT64_MAX;
      return o;
    }();
    return {no_limits, &batch, {nullptr, 0, dense_, &ranges_}};
  }

  std::vector<out_range> ranges_;    // of outs
  std::vector<out_range> spare_;     // room for others'
  frame_view common_;                // of the batch, for the check of others
  std::vector<state_range> states_;  // of tensors; its room
  bool dense_ = true;                // all outputs are
  void *workspace_ = nullptr, *lent_ = nullptr;
  size_t workspace_size_ = 0;
};

}  // namespace dr
