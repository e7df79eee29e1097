// The factors of a transform in an exchange: cut into a chunk per rank, which sums the chunks of all ranks in rank order
// and sends the sum to all. So every rank has the same bits.
#pragma once

#include <vector>

#include "deepreduce/exchange.h"

#include "api/context.hpp"
#include "exchange/range_work.hpp"
#include "transform/lowrank.hpp"

namespace dr {

// A message: a head, then the f32 of a chunk.
struct factor_head {
  uint64_t tag, check;
};

class factor_work {
 public:
  factor_work(context& c, uint32_t ranks) : c_(c), ranks_(ranks) {}
  ~factor_work();
  factor_work(const factor_work&) = delete;
  factor_work& operator=(const factor_work&) = delete;

  // UNSUPPORTED: tensors or outputs that are not dense f32.
  dr_status create(const plan& method, const exchange_memory& at, uint64_t dense_below);
  uint32_t phases() const { return state_.second_size() ? 2 : 1; }
  uint64_t memory_size() const { return memory_size_; }

  // Range f · ranks + o is rank o's chunk of factor f: its elements, and the bytes of its message.
  uint64_t elements(uint32_t range) const { return last(range) - first(range); }
  uint64_t room(uint32_t range) const { return elements(range) ? sizeof(factor_head) + 4 * elements(range) : 0; }

  // A new exchange.
  void start() { begun_ = false; }
  // Computes the factor of a phase, unless that is done. idle: the exchange has failed: the round only begins, so that
  // the gradients can go to the residual.
  dr_status reach(uint32_t phase, bool idle, const exchange_memory& at);
  void write(uint32_t range, uint64_t tag, std::byte* message) const;
  // CORRUPT: a message that is not this chunk, or a rank's part of it with a value that is not finite (sums may exceed
  // f32); ARGUMENT: of another exchange.
  dr_status check(uint32_t range, frame_kind kind, uint64_t tag, const dr_bytes& message, dr_error& error) const;
  // The sum of messages, as a message.
  void sum(uint32_t range, uint64_t tag, std::span<const dr_bytes> messages, std::byte* to) const;
  void store_sum(uint32_t range, const std::byte* message);
  // After the last phase's chunks: the outputs. sums: of ranks, otherwise their means.
  dr_status finish(bool sums);
  bool begun() const { return begun_; }
  // Whose chunk has an element of a phase's factor.
  uint32_t owner_of(uint32_t phase, uint64_t element) const {
    return static_cast<uint32_t>(element / ((size_of(phase) + ranks_ - 1) / ranks_));
  }
  // The exchange has failed.
  void restore_residual() { state_.cancel(state_.keeps()); }

  // The state of DR_RESIDUAL_`which`.
  std::span<float> saved_values(uint32_t which, size_t tensor) const {
    if (which == DR_RESIDUAL_WARM_START) return state_.warm_start(tensor);
    return which == DR_RESIDUAL_OWN ? state_.residual(tensor) : std::span<float>();
  }
  void settle_warm_start(size_t tensor) { state_.settle_warm_start(tensor); }

 private:
  uint64_t size_of(uint32_t phase) const { return phase ? state_.second_size() : state_.first_size(); }
  uint64_t cut(uint32_t phase, uint64_t rank) const {
    const uint64_t size = size_of(phase), chunk = (size + ranks_ - 1) / ranks_;
    return std::min(size, chunk * rank);
  }
  uint64_t first(uint32_t range) const { return cut(range / ranks_, range % ranks_); }
  uint64_t last(uint32_t range) const { return cut(range / ranks_, range % ranks_ + 1); }
  float mean() const { return 1 / static_cast<float>(ranks_); }

  context& c_;
  uint32_t ranks_;
  lowrank state_;
  void* memory_ = nullptr;
  uint64_t memory_size_ = 0;
  bool begun_ = false;
  std::vector<const float*> gradients_;
  std::vector<float*> outs_;
};

}  // namespace dr
