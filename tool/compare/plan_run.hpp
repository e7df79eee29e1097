// A plan at work on one subject: its feedback through the steps, its frames, its times.
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

// What the plans of a subject share: the library, the step, and memory that each of them writes anew.
struct workbench {
  context& library;
  const measure_settings& settings;
  const subject* gradient = nullptr;  // of the step
  uint32_t step = 0;
  // Of a frame, as large as its bound; and of what arrives, tensors one behind the other. Only written pages take memory.
  tensor_bytes room, received;

  dr_call call(uint64_t rank = 0) const;
  // For what arrives. flat: one tensor that has the elements of all.
  std::vector<dr_tensor_out> outs(bool flat);
  std::span<float> received_floats();
  size_t copy_all();  // memcpy of the gradient; returns its bytes
};

class plan_run {
 public:
  plan_run(workbench& bench, const plan& p);

  // Into the bench's room; the state that this leaves is kept by commit().
  std::span<const std::byte> encode();
  void commit() { left_.swap(state_); }
  bool has_state() const { return !left_.empty(); }

  // What feedback makes of the gradient, and the sparsifier sees: a frame of all of it shows that.
  subject accumulated();

  // Adds what a frame of this step loses to what earlier steps have lost.
  void add_loss(std::span<const std::byte> frame);
  double lost() const { return lost_.norm(); }

  // A round of a plan that is a transform, from what earlier steps left: what arrives is in the bench's `received`.
  void transform();
  void commit_transform() { kept_ = factors_->state(); }
  subject transform_input();   // the gradient with what earlier steps left
  void add_transform_sizes();  // to the facts: of two factors, which have values only
  void add_transform_loss();

  // Makes the frames of a merge, one for each rank: of the gradient shifted cyclically, with another private seed. At most 8
  // differ, fewer where they are large; they come again in turn. Checks a merge of two.
  void prepare_merge();

  // A round that is not counted, but shows whether encode repeats itself.
  void warm_up();
  size_t time_round();  // returns the frame's size
  // Fills in the times; forgets the rounds.
  void report_times(row_times& t);

  const plan* method;
  plan_reading reading;
  bool flat = false, chooses = false, transforms = false;
  std::vector<std::byte> frame;  // as it was verified
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

  workbench& bench_;
  states left_, state_;  // of each tensor, before the step and after; empty: the plan has none
  running_sum lost_;
  std::vector<std::vector<std::byte>> others_;  // frames of other ranks
  std::vector<dr_bytes> merged_;
  std::vector<float> weights_;
  std::vector<round> rounds_;
  std::optional<factors> factors_;  // of a transform
  std::vector<std::byte> kept_;     // by it, of the steps before
};

}  // namespace dr::compare
