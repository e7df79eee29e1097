// The computations on one range on a device: those of range_work, enqueued on its stream. What a frame is, and whether one
// that came is sound, the host knows by range_work.
#pragma once

#include "exchange/device_stream.hpp"
#include "exchange/host_sum.hpp"
#include "exchange/range_work.hpp"
#include "exchange/sum_tile.hpp"

namespace dr {

// UNSUPPORTED, with its name: what an exchange has no path for on a device.
dr_status check_device_exchange(const plan& method, const exchange_memory& at_memory, dr_error& error);

class device_range {
 public:
  // host: nullptr, or what this is a range of, by its number: the gradient is the sum of a host, and the sum of frames
  // goes to where it was.
  device_range(context& c, device_stream& on, const range_work& of, const range_uses& uses, const host_sum* host,
               uint32_t number)
      : c_(c), on_(on), of_(of), uses_(uses), host_(host), number_(number) {}
  device_range(const device_range&) = delete;
  device_range& operator=(const device_range&) = delete;

  // alone: there is no other range. UNSUPPORTED: codecs without a path on the device.
  dr_status prepare(const tensor_plans& plans, const exchange_memory& at_memory, bool alone);
  // Lays states out from `memory` on, and sums from `sums` on (nullptr: measures); adds the bytes.
  void place(std::byte* memory, uint64_t& states, std::byte* sums, uint64_t& summed);
  std::byte* state_of(residual_kind which, size_t piece) const {
    return states_[at(which)].empty() ? nullptr : states_[at(which)][piece];
  }
  uint64_t workspace() const { return workspace_size_; }
  // In addition, of frames that were decoded, until they are merged; or only within a call, if they are decoded again.
  uint64_t decode_room() const { return decode_room_; }
  bool stores() const { return !twice_; }
  void lend_workspace(std::byte* common, std::byte* of_decode) { workspace_ = common, decode_workspace_ = of_decode; }

  // Where tensors and outputs are, for all calls after `bind`, which cannot fail.
  dr_status check(const exchange_memory& at_memory);
  void bind() { std::swap(now_, next_); }

  // Grows the host's lists, so that no later call of these allocates.
  void make_room();

  // Enqueue. result: in device memory. encode: of the gradient, or of the sum.
  dr_status encode(frame_kind kind, encode_request& request);
  // Of a sum that could not be encoded, the residual as it was: the parts of the sum go back to their ranks. (That of a
  // gradient stays as the encode left it, with the gradient in it.)
  dr_status undo_encode(frame_kind kind);
  dr_status sum(frame_kind kind, std::span<const dr_bytes> frames, const float* weights, dr_result* result);
  dr_status clear_sum();
  dr_status add_gradient();
  // Checks the frames that go to the outputs, so that the merge does not fail.
  dr_status decode(std::span<const dr_bytes> frames, const float* weights, dr_result* result);
  dr_status merge(std::span<const dr_bytes> frames, const float* weights);
  // residual += Σ weights[i] · frame i; frames of one kind.
  dr_status restore_residual(residual_kind which, frame_kind kind, std::span<const dr_bytes> frames,
                             const float* weights);

  // The error of an encode or decode by its result, as of the CPU.
  dr_status explain_encode(frame_kind kind, const dr_result& r) const {
    return fail_as_device(batch_of(kind), r, c_.error);
  }
  dr_status explain_decode(frame_kind kind, const dr_result& r) const;
  frame_kind merged_kind() const { return uses_.merges[at(frame_kind::sum)] ? frame_kind::sum : frame_kind::part; }

 private:
  dr_status name_tensor(dr_status s) const;
  const placed_batch& batch_of(frame_kind kind) const { return *batches_[at(kind)]; }
  dr_status copy_states(const std::vector<std::byte*>& to, const std::vector<std::byte*>& from);
  dr_status round_values(std::span<const tensor_out> from, const std::vector<std::byte*>* to);

  context& c_;
  device_stream& on_;
  const range_work& of_;
  const range_uses uses_;
  const host_sum* host_;
  const uint32_t number_;
  std::shared_ptr<placed_batch> batches_[frame_kinds];  // of parts, and of sums
  // Of the pieces. A sum is f32; rounded: as it is encoded, if the tensor's type is another; before: the state of its
  // residual before the encode.
  std::vector<std::byte*> states_[residual_kinds], sums_, rounded_, before_;
  uint64_t workspace_size_ = 0, decode_room_ = 0;
  bool twice_ = false;
  std::byte *workspace_ = nullptr, *decode_workspace_ = nullptr;
  struct bound {
    std::vector<tensor_view> views, summed;
    std::vector<tensor_out> outs, sums, residuals[residual_kinds];
  } now_, next_;
  judged_frames judged_;  // by the last decode
  std::vector<sum_job> jobs_;
  std::vector<add_job> added_;
};

}  // namespace dr
