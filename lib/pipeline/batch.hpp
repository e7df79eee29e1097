// A prepared batch: all that follows from bounds, computed once. Immutable; shared by any number of threads.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "container/frame.hpp"
#include "core/error.hpp"
#include "pipeline/bind.hpp"

namespace dr {

// A tensor as the pipeline sees it, whatever version of dr_tensor the caller has.
using tensor_view = dr_tensor;

inline constexpr uint64_t tensor_elements_max = uint64_t{1} << 56;

struct tensor_shape {
  uint32_t dtype, index_dtype, width, flags;
  uint64_t universe, count;  // count: of a sparse tensor, a bound

  uint64_t elements() const { return universe * width; }
  bool sparse() const { return index_dtype != 0; }
};

// The tensors that are selected, split and fed back together: one tensor, or with bucket=flat all of them.
struct unit {
  uint32_t first_tensor, tensors;
  uint32_t first_row, rows;
  uint32_t dtype, width;
  bool sparse;  // the source is sparse: so not with feedback, which has a dense one
  uint64_t universe;
  uint64_t source_max;   // rows that the source has: universe, or the count of a sparse tensor
  uint64_t kept_max;     // rows that are kept, over all its segments
  uint64_t dense_above;  // if more are kept, all rows are sent dense
  const plan* method;
  // All of a dense source is sent, zeros too: the value codec reads it where it lies, and nothing is listed or copied.
  bool whole;

  bool patches() const { return method->patches(); }
};

// One of the plans that auto chooses from.
struct row_choice {
  uint32_t plan;
  list_need need[section_count];
  row_bound bound;
  bool may_be_shortest;  // its index list; else there may be no room for that
};

// A segment of a unit.
struct batch_row {
  uint32_t unit, plan;  // plan: position in `wire`
  bool continues;
  uint64_t first, universe, count_max, support_max;
  list_need need[section_count];
  row_bound bound;
  // With auto: for each size of blocks, from 1 on, each index codec beside each value codec, the latter changing
  // fastest. Then plan is the first, and support, need and bound are the largest; need of those that can be chosen.
  std::vector<row_choice> choices;
  uint32_t value_choices = 1, block_choices = 1;
};

struct batch {
  std::vector<std::shared_ptr<const plan>> plans;  // kept alive; of one text the first alone
  std::vector<tensor_shape> shapes;
  std::vector<unit> units;
  std::vector<batch_row> rows;
  std::vector<wire_plan> wire;
  header_layout layout[2];  // without and with a tag
  uint64_t scratch = 0;     // a worker
  uint64_t workspace = 0;
  uint32_t workers = 1;
  uint64_t segment_rows = 0;   // as asked for
  std::vector<uint8_t> votes;  // whether a merge of the tensor is a vote; empty: of none

  bool chooses() const {
    return std::any_of(rows.begin(), rows.end(), [](const batch_row& r) { return !r.choices.empty(); });
  }
};

struct batch_request {
  std::shared_ptr<const plan> method;  // for tensors without their own; may be null
  uint64_t segment_rows = 0;
  uint32_t workers = 1;
};

// tensors [n], with plans [n] (null: the request's).
dr_status prepare(const batch_request& request, std::span<const tensor_view> tensors,
                  std::span<const std::shared_ptr<const plan>> plans, batch& out, dr_error& error);

// Whether tensors have the shapes that a batch was prepared for, and pointers to go with them.
// On a device nothing of theirs is read.
dr_status check_tensors(const batch& b, std::span<const tensor_view> tensors, bool on_device, dr_error& error);

// A tensor's state in memory.
struct state_range {
  uintptr_t begin, end;
  uint32_t tensor;
};
// How many states a batch has, to look whether they are apart: 0 if it has one only.
uint64_t states_of(const batch& b);
// ARGUMENT: two tensors share a state, or a part of one. `room` is for states_of(b).
dr_status check_states_apart(const batch& b, std::span<const tensor_view> tensors, state_range* room, dr_error& error);

}  // namespace dr
