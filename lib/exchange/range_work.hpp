// The computations on one range: encode the gradient or a sum, merge frames into a sum or the outputs, restore a
// residual.
#pragma once

#include <memory>
#include <optional>

#include "api/bound_batch.hpp"
#include "exchange/partition.hpp"
#include "exchange/program.hpp"

namespace dr {

inline constexpr size_t frame_kinds = 3, residual_kinds = 3;
constexpr size_t at(frame_kind k) { return static_cast<size_t>(k); }
constexpr size_t at(residual_kind k) { return static_cast<size_t>(k); }

// The operations of a program on a range.
struct range_uses {
  bool encodes[frame_kinds] = {};               // frames of that kind
  residual_kind residual = residual_kind::own;  // of sums
  bool sums[frame_kinds] = {}, merges[frame_kinds] = {};
  bool restores[residual_kinds][frame_kinds] = {};  // restores a residual from frames
  uint32_t summed = 0, merged = 0;                  // frames at a time
  bool borrows_states = false;                      // of the gradient: they are where the tensors say

  bool has_sum() const { return encodes[at(frame_kind::sum)]; }
  // Also those of other ranks.
  bool has_frames_of_sums() const { return has_sum() || sums[at(frame_kind::sum)] || merges[at(frame_kind::sum)]; }
  bool has(residual_kind which) const {
    const auto& b = restores[at(which)];
    return b[0] || b[1] || b[2];
  }
};
std::vector<range_uses> uses_of(const program& p);

// The caller's tensors and outputs.
struct exchange_memory {
  std::span<const tensor_view> tensors;
  std::span<const tensor_out> outs;
};

// Plans of an exchange: of its tensors; of small tensors that are sent dense beside them, and of frames that are exact as
// a whole; and of sums of either.
struct exchange_plans {
  std::shared_ptr<const plan> method, exact, sum, exact_sum;
  uint64_t dense_below = 0;  // elements

  bool is_small(const tensor_view& t) const { return t.universe * (t.width ? t.width : 1) < dense_below; }
  const std::shared_ptr<const plan>& of(const tensor_view& t) const { return is_small(t) ? exact : method; }
  const std::shared_ptr<const plan>& of_sum(const tensor_view& t) const { return is_small(t) ? exact_sum : sum; }
};

// The plans of tensors, by their positions: of each, and of its sum.
struct tensor_plans {
  std::span<const std::shared_ptr<const plan>> own, sums;
  std::shared_ptr<const plan> exact;  // of frames that are exact as a whole
};

class range_work {
 public:
  range_work(context& c, piece_list pieces, const range_uses& uses) : c_(c), pieces_(std::move(pieces)), uses_(uses) {}

  // Prepares the batches. first_key: of the draws of its first piece. alone: there is no other range.
  dr_status prepare(const tensor_plans& plans, const exchange_memory& at, uint64_t first_key, bool alone);
  // Instead, for a model: nothing will be computed.
  void count_elements(std::span<const tensor_view> tensors);
  bool empty() const { return pieces_.empty(); }
  uint64_t elements() const { return elements_; }
  uint64_t frame_bound(frame_kind kind) const { return batch_of(kind).layout[1].frame_bound; }
  const placed_batch& batch_of(frame_kind kind) const { return *batches_[at(kind)]; }
  // A frame that came: whole, sound, with this tag and of these tensors. `view` is its header then. ARGUMENT: a frame of
  // other tensors. CORRUPT: also one that needs more than the plan's do: so once ranks have agreed, there is room to merge
  // it. PEER: its sender could not encode.
  dr_status judge(frame_kind kind, const dr_bytes& frame, uint64_t tag, frame_view& view, dr_error& error) const;
  bool merges() const { return merge_ != nullptr; }
  const placed_batch* batch_if(frame_kind kind) const { return batches_[at(kind)].get(); }  // nullptr: not used
  // Rows that sparse outputs may get of so many frames.
  uint64_t support_max(size_t piece, uint64_t frames) const;

  // Lays states and the sum out from `memory` on (nullptr: measures); returns the bytes.
  uint64_t place(std::byte* memory);
  // Binds it to memory and to outputs. After place.
  dr_status bind(const exchange_memory& at);
  // The same batches at other memory. bind_again: at the memory of before; it never fails, and allocates nothing.
  dr_status rebind(const exchange_memory& at);
  void bind_again(const exchange_memory& at);
  // Instead of bind, where the memory of either side comes later: makes the bindings, then binds one side.
  void make_bindings();
  dr_status bind_tensors(const exchange_memory& at);
  dr_status bind_outputs(const exchange_memory& at);
  // Bytes that suffice for all of them, bound or not.
  dr_status measure_workspace(uint64_t& bytes) const;
  uint64_t workspace() const;
  void lend_workspace(void* memory);

  // Of the gradient, or of the sum.
  dr_status encode(frame_kind kind, encode_request& request, encode_result& made);
  // The first value of the gradient that is not finite: its piece and element there.
  bool find_not_finite(size_t& piece, uint64_t& element) const;
  dr_status sum(frame_kind kind, std::span<const dr_bytes> frames, const float* weights);
  void clear_sum();
  void add_gradient();
  // Decodes the frames that go to the outputs into `memory`, so that the merge does not fail.
  // decode_memory_of: an upper bound of that memory.
  dr_status decode_memory_of(decode_memory& needed) const;
  dr_status decode(std::span<const dr_bytes> frames, arena& memory);
  dr_status merge(std::span<const dr_bytes> frames, const float* weights, arena& memory);
  // residual += Σ weights[i] · frame i; frames of one kind.
  dr_status restore_residual(residual_kind which, frame_kind kind, std::span<const dr_bytes> frames,
                             const float* weights);

  const piece_list& pieces() const { return pieces_; }
  // An error of a batch counts the pieces: puts in the number of the tensor, also in its sentence. Returns its status.
  dr_status name_tensor(dr_status s) const;
  // The state of a piece's residual; nullptr if there is none, or it is borrowed.
  std::byte* state_of(residual_kind which, size_t piece, uint64_t& size) const;
  uint64_t state_bytes(residual_kind which, size_t piece) const;
  const plan& plan_of(residual_kind which, size_t piece) const {
    return *(which == residual_kind::sum ? sum_plans_ : plans_)[piece];
  }
  // Whether frames can be given back to a residual. (All tensors' plans have the same feedback.)
  bool keeps_residual(residual_kind which) const {
    return which != residual_kind::none && plan_of(which, 0).keeps_residual();
  }
  tensor_view view_of(size_t piece) const { return views_[piece]; }
  // Rows that the last merge counted, of a piece.
  uint64_t counted(size_t piece) const { return merge_ ? merge_->outs[piece].count : 0; }

 private:
  template <class F>
  void for_each_binding(F&& f) const;
  dr_status choose_twice(const exchange_memory& at_memory, bool alone);
  template <class F>
  dr_status set_tensors(const exchange_memory& at_memory, F&& bind_encode, auto&& bind_decode);
  template <class F>
  dr_status set_outputs(const exchange_memory& at_memory, F&& bind_decode);
  void* state_at(residual_kind which, size_t piece) const;
  bool keeps_state(residual_kind which, size_t piece) const;  // in its own memory
  void round_sum();

  using binding = std::unique_ptr<bound_batch>;
  context& c_;
  piece_list pieces_;
  range_uses uses_;
  uint64_t elements_ = 0;
  std::vector<tensor_view> views_;  // of the pieces
  std::vector<std::shared_ptr<const plan>> plans_, sum_plans_;
  std::shared_ptr<placed_batch> batches_[frame_kinds];  // of sums: all dense
  frame_limits limits_[frame_kinds];
  std::vector<std::byte*> states_[residual_kinds], sums_;  // of the pieces; a sum is f32 until it is encoded
  // Tensors or the sum to frames; frames to the sum, to the outputs, to residuals.
  std::span<const decoded_frame> decoded_;  // by the last decode
  bool twice_ = false;                      // and again by the merge
  binding encode_[frame_kinds], sum_[frame_kinds], merge_, restore_[residual_kinds][frame_kinds];
};

}  // namespace dr
