// What an exchange computes of one range: encode the gradient or a sum, merge frames into a sum or the outputs, give back what was
// taken from a residual.
#pragma once

#include <memory>
#include <optional>

#include "api/bound_batch.hpp"
#include "exchange/partition.hpp"
#include "exchange/program.hpp"

namespace dr {

// What a program does with a range.
struct range_uses {
  bool encodes = false, encodes_exact = false;  // the gradient
  bool sums = false, sums_exact = false;        // frames, into a sum beside the outputs
  bool adds = false;                            // the gradient to the sum
  bool encodes_sum = false;
  residual_kind sum_residual = residual_kind::none;
  uint32_t summed = 0, merged = 0;  // frames at a time

  bool has_sum() const { return sums || sums_exact; }
  bool has_own_residual() const {
    return encodes || encodes_exact || (encodes_sum && sum_residual == residual_kind::own);
  }
  bool has_sum_residual() const { return encodes_sum && sum_residual == residual_kind::sum; }
};
std::vector<range_uses> uses_of(const program& p);

// The tensors of an exchange and where their sum goes, as the caller gave them.
struct exchange_memory {
  std::span<const tensor_view> tensors;
  std::span<const tensor_out> outs;
};

// Plans of an exchange: of most tensors; of those that go dense beside them, and of frames that are exact as a whole.
struct exchange_plans {
  std::shared_ptr<const plan> method, exact;
  uint64_t dense_below = 0;  // elements

  const std::shared_ptr<const plan>& of(const tensor_view& t) const {
    return t.universe * (t.width ? t.width : 1) < dense_below ? exact : method;
  }
};

class range_work {
 public:
  range_work(context& c, piece_list pieces, const range_uses& uses) : c_(c), pieces_(std::move(pieces)), uses_(uses) {}

  // Prepares the batches. first_key: of the draws of its first piece.
  dr_status prepare(const exchange_plans& plans, const exchange_memory& at, uint64_t first_key);
  // Instead, for a model: nothing will be computed.
  void count_elements(std::span<const tensor_view> tensors);
  bool empty() const { return pieces_.empty(); }
  uint64_t elements() const { return elements_; }
  uint64_t frame_bound(frame_kind kind) const {
    return (kind == frame_kind::exact ? exact_ : batch_)->layout[1].frame_bound;
  }
  const placed_batch& batch_of(frame_kind kind) const { return *(kind == frame_kind::exact ? exact_ : batch_); }

  // Lays states and the sum out from `memory` on (nullptr: measures); returns the bytes.
  uint64_t place(std::byte* memory);
  // Binds it to memory and to outputs. After place.
  dr_status bind(const exchange_memory& at);
  // The same batches at other memory.
  dr_status rebind(const exchange_memory& at);
  uint64_t workspace() const;
  void lend_workspace(void* memory);

  dr_status encode(bool exact, encode_request& request, encode_result& made);
  dr_status encode_sum(encode_request& request, encode_result& made);
  dr_status sum(bool exact, std::span<const dr_bytes> frames, const float* weights);
  void clear_sum();
  void add_gradient();
  dr_status merge(std::span<const dr_bytes> frames, const float* weights);
  // residual += Σ weights[i] · frame i; frames of one kind.
  dr_status give_back(residual_kind which, frame_kind kind, std::span<const dr_bytes> frames, const float* weights);

  const piece_list& pieces() const { return pieces_; }
  // The state of a piece's residual; nullptr if there is none.
  std::byte* state_of(residual_kind which, size_t piece, uint64_t& size) const;
  const plan& plan_of(size_t piece) const { return *plans_[piece]; }
  tensor_view view_of(size_t piece) const { return views_[piece]; }
  // Rows that the last merge counted, of a piece.
  uint64_t counted(size_t piece) const { return frames_->outs[piece].count; }

 private:
  void point(const exchange_memory& at);
  template <class F>
  void each_bound(F&& f) const {
    for (const auto* b : {&frames_, &exact_frames_, &sum_, &exact_sum_, &own_back_, &exact_back_, &sum_back_})
      if (*b) f(**b);
  }

  context& c_;
  piece_list pieces_;
  range_uses uses_;
  uint64_t elements_ = 0;
  bool feedback_ = false;
  std::vector<tensor_view> views_;  // of the pieces
  std::vector<std::shared_ptr<const plan>> plans_;
  std::unique_ptr<placed_batch> batch_, exact_;
  std::vector<std::byte*> own_states_, sum_states_, sums_;  // of the pieces
  // Gradient to frames, frames to outputs; the same, exact; the sum to a frame and frames to the sum; exact ones to the
  // sum; frames to residuals, exact ones too.
  std::unique_ptr<bound_batch> frames_, exact_frames_, sum_, exact_sum_, own_back_, exact_back_, sum_back_;
};

}  // namespace dr
