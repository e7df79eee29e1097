// One plan on one subject: feedback state over the steps, frames, times.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "compare.hpp"
#include "deepreduce/deepreduce.hpp"
#include "factors.hpp"
#include "metrics.hpp"
#include "row.hpp"
#include "tool/read/plan_text.hpp"
#include "tool/read/subjects.hpp"

namespace dr::compare {

double now_ns();

// Shared by the plans of a subject: the library, the step, and buffers that every plan overwrites.
struct workbench {
  context& library;
  const measure_settings& settings;
  const subject* gradient = nullptr;  // of the step
  uint32_t step = 0;
  // Buffers: a frame (as large as its bound), and the decoded tensors one after another. Untouched pages cost no memory.
  tensor_bytes room, received;

  dr_call call(uint64_t rank = 0) const;
  // Outputs for the decoded tensors. flat: one tensor with the elements of all.
  std::vector<dr_tensor_out> outs(bool flat);
  std::span<float> received_floats();
  size_t copy_all();  // memcpy of the gradient; returns its bytes
};

class plan_run {
 public:
  plan_run(workbench& bench, const plan& p);

  // Into the bench's room; commit() makes the new state permanent.
  std::span<const std::byte> encode();
  void commit() { left_.swap(state_); }
  bool has_state() const { return !left_.empty(); }

  // The input of the sparsifier: gradient + residual, decoded from a frame of all elements.
  subject accumulated();

  // Adds the loss of this step's frame to that of earlier steps.
  void add_loss(std::span<const std::byte> frame);
  double lost() const { return lost_.norm(); }

  // A round of a transform, from the state of earlier steps; the result is in the bench's `received`.
  void transform();
  void commit_transform() { factor_state_ = factors_->state(); }
  subject transform_input();  // gradient + residual
  uint32_t rings() const { return factors_->rings(); }
  void add_transform_sizes();  // to the facts: of the two factors, which have only values
  void add_transform_loss();

  // Makes the frames of a merge, one per rank: of the cyclically shifted gradient, with another private seed. At most 8 are
  // distinct, fewer if large; they repeat in turn. Verifies a merge of two.
  void prepare_merge();

  // A round that is not counted, and checks that encode is repeatable.
  void warm_up();
  size_t time_round();  // returns the frame's size
  // Fills in the times and clears the rounds.
  void report_times(row_times& t);

  const plan* method;
  plan_reading reading;
  bool flat = false, chooses = false, transforms = false;
  std::vector<std::byte> frame;  // the verified one
  row facts;

 private:
  enum { sparsify, choose, index, regather, value, order, stages };
  struct round {
    double stage[stages];
    double encode, decode, merge, encode_cpu, decode_cpu;
  };
  using states = std::vector<std::vector<uint64_t>>;

  static void add_stage(void* user, const dr_trace* trace);
  std::vector<dr_tensor> sources(const subject& g);
  subject matrices() const;  // the gradient's tensors, each by itself also where they are joined

  workbench& bench_;
  states left_, state_;  // per tensor, before and after the step; empty: the plan has no state
  running_sum lost_;
  std::vector<std::vector<std::byte>> others_;  // frames of other ranks
  std::vector<dr_bytes> merged_;
  std::vector<float> weights_;
  std::vector<round> rounds_;
  std::optional<factors> factors_;       // of a transform
  std::vector<std::byte> factor_state_;  // state of the transform after earlier steps
};

}  // namespace dr::compare
