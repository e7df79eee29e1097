// A prepared batch: all that follows from bounds, computed once. Immutable; any number of threads share it.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "container/frame.hpp"
#include "core/error.hpp"
#include "pipeline/bind.hpp"

namespace dr {

// A tensor in the pipeline, converted from the caller's version of dr_tensor.
using tensor_view = dr_tensor;

inline constexpr uint64_t tensor_elements_max = uint64_t{1} << 56;

struct tensor_shape {
  uint32_t dtype, index_dtype, width, flags;
  uint64_t universe, count;  // count: the bound of a sparse tensor
  uint64_t rows;             // of its matrix; at most 1: a vector

  uint64_t elements() const { return universe * width; }
  bool sparse() const { return index_dtype != 0; }
};

// The tensors that are selected, split and fed back together: one tensor, or with bucket=flat all tensors.
struct unit {
  uint32_t first_tensor, tensors;
  uint32_t first_row, rows;
  uint32_t dtype, width;
  bool sparse;  // the source is sparse; with feedback it is dense
  uint64_t universe;
  uint64_t source_max;    // rows of the source: the universe, or the count of a sparse tensor
  uint64_t selected_max;  // selected rows, over all its segments
  uint64_t dense_above;   // if more are selected, all rows are sent dense
  const plan* method;
  // All of a dense source is sent, zeros too: the value codec reads it in place, and nothing is listed or copied.
  bool whole;
  tile_form tiles;  // a frame has their coefficients in place of values

  bool patches() const { return method->patches(); }
};

// One of the plans among which auto chooses.
struct row_choice {
  uint32_t plan;
  list_need need[section_count];
  row_bound bound;
  bool may_be_shortest;  // its index list; otherwise there may be no memory for it
};

// The bounds of a row that is not sent dense.
struct listed_bound {
  uint64_t count_max, support_max, payload;
  list_need need[section_count];
};

// A segment of a unit.
struct batch_row {
  uint32_t unit, plan;  // plan: position in `wire`
  bool continues;
  uint64_t first, universe, count_max, support_max;
  list_need need[section_count];
  row_bound bound;
  // As count_max, support_max, need and the payload of bound, but of a row of which at most `dense_above` are selected. On a device no list has
  // room for more. (The columns of a header are as wide as the other bounds say, everywhere.)
  listed_bound listed;
  // With auto: all combinations of block size (from 1 on), index codec and value codec; the last changes fastest.
  // `plan` is then the first, and support, need and bound are maxima; need is that of the plans that can be chosen.
  std::vector<row_choice> choices;
  uint32_t value_choices = 1, block_choices = 1;
};

struct batch {
  std::vector<std::shared_ptr<const plan>> plans;  // owners; of equal texts only the first
  std::vector<tensor_shape> shapes;
  std::vector<unit> units;
  std::vector<batch_row> rows;
  std::vector<wire_plan> wire;
  header_layout layout[2];  // without and with a tag
  uint64_t scratch = 0;     // per worker
  uint64_t workspace = 0;
  uint32_t workers = 1;
  uint64_t segment_rows = 0;   // as requested; of 0 universe_max
  bool has_large = false;      // a unit that one block of a GPU would not select from alone (solve_most)
  std::vector<uint8_t> votes;  // per tensor: whether a merge is a vote; empty: none is

  // Bytes that suffice for a frame, with a tag or a status frame, too (dr_bound).
  uint64_t bound() const { return std::max<uint64_t>(layout[1].frame_bound, status_frame_max); }
  // (All units make patches, or none does.)
  bool patches() const { return !units.empty() && units[0].patches(); }
  bool chooses() const {
    return std::any_of(rows.begin(), rows.end(), [](const batch_row& r) { return !r.choices.empty(); });
  }
};

// Whether a row may be sent dense: if its codes may be longer than that.
bool may_be_dense(const batch& b, const batch_row& r);
// The maximum support of a row in a frame.
uint64_t sent_max(const batch& b, const batch_row& r);

struct batch_request {
  std::shared_ptr<const plan> method;  // for tensors without their own; may be null
  uint64_t segment_rows = 0;
  uint32_t workers = 1;
};

// tensors [n], with plans [n] (null: the request's).
dr_status prepare(const batch_request& request, std::span<const tensor_view> tensors,
                  std::span<const std::shared_ptr<const plan>> plans, batch& out, dr_error& error);

// Checks that tensors have the shapes of the batch, and valid pointers. On a device their memory is not read.
dr_status check_tensors(const batch& b, std::span<const tensor_view> tensors, bool on_device, dr_error& error);

// A tensor's state in memory.
struct state_range {
  uintptr_t begin, end;
  uint32_t tensor;
};
// The number of states of a batch that check_states_apart compares; 0 if there is only one.
uint64_t states_of(const batch& b);
// ARGUMENT: the states of two tensors overlap. room [states_of(b)]: scratch.
dr_status check_states_apart(const batch& b, std::span<const tensor_view> tensors, state_range* room, dr_error& error);

}  // namespace dr
