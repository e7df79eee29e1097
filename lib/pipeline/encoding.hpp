// A call of encode in progress: what its stages share, and the result of every stage. Read encode.cpp first.
#pragma once

#include <algorithm>

#include "feedback/velocity.hpp"
#include "pipeline/draw_keys.hpp"
#include "pipeline/encode.hpp"
#include "pipeline/trace.hpp"
#include "sparsify/select.hpp"
#include "split/split.hpp"
#include "stage/chain.hpp"

namespace dr {

// An array of the workspace, const if its owner is const: a stage changes only its output argument.
template <class T>
struct results {
  T* items = nullptr;

  T& operator[](size_t i) { return items[i]; }
  const T& operator[](size_t i) const { return items[i]; }
};

// ---- Sparsify: the support of each row, and its values -----------------------------------------------------------
// A unit is one tensor, or with bucket=flat all of them, which are selected together; a row is a segment of it.

// The values that a unit is selected from (source.cpp).
struct unit_source {
  // Rows wider than one value, or sparse (indices, values), ascending. Otherwise nullptr, and there are pieces: runs
  // within one tensor and one segment.
  const void* values;
  uint64_t* indices;
  uint64_t rows;
  select_piece* pieces;
  uint32_t piece_count;
  sparse_entry* entries;  // to sort,
  void* buffer;           // and the sorted values
};
// The part of the source in a row.
struct source_row {
  uint64_t first, rows;
};

// A gradient, the residual to which it is added while it is read, and the residual's old values for a failing encode.
struct summed {
  const std::byte* g;
  velocity to;  // the residual is v; u is nullptr without a velocity
  feedback_weights weights;

  float* m() const { return to.v; }
};
// With feedback: the sums of a unit's gradient and state (source.cpp).
struct unit_sums {
  float *acc, *acc_u;  // for a source that is sparse or in rows; acc_u: the momentum of a velocity
  void* rounded;       // acc in the tensor's type
  summed* pieces;      // otherwise: of the pieces, which then have no values
  float *undo, *undo_u;
  bool advanced;  // the states have changed, so a failure restores them
  // Whether a sum may be not finite without being selected: the selection is not by magnitude, or is replaced.
  bool watched;
  uint32_t unfinite;
};

struct selected_unit {
  select_memory memory;
  uint32_t* support;  // of a sparse source: in the segment
  void* scratch;      // of the sparsifier
  uint32_t block;     // elements that are selected together
  // Lossless codecs: selection has cleared residuals of at least this magnitude; 0: none.
  uint32_t cleared_from;
  bool dense_fallback;
};
struct selected_row {
  uint64_t count, block_count;
  uint32_t* positions;  // [count] in the source; these three are parts of the unit's arrays
  uint32_t* support;    // [count] in the segment; nullptr: all of it
  uint32_t* blocks;     // [block_count] of the support, if the index list codes blocks
  void* values;         // at the support; all values of a unit that is sent whole
  uint32_t largest;     // the largest magnitude of these
  void* copies;         // of a unit that is sent whole: the copies of values that are not contiguous
};

// For a patch: the old words at the changes, and the new sums of the base's chunks (patch.cpp).
struct patched_unit {
  std::byte* based;
  uint64_t* base_sums;
  uint8_t* past;  // histories of those words, if the value codec reads them
};
struct patched_row {
  const void* base;               // the whole segment,
  const void* based;              // and at the support
  const uint8_t *history, *past;  // histories of both, or nullptr
  uint64_t checks[2];             // of base and result
};

struct selected_rows {
  results<unit_source> sources;
  results<dr_error> unsound;  // of a sparse source: if its code is not DR_OK
  results<source_row> source_rows;
  results<unit_sums> sums;
  double* squares;  // of blocks of gradients to be clipped; nullptr: nothing is clipped
  double norm;      // L2 norm of these
  results<selected_unit> units;
  results<selected_row> rows;
  results<patched_unit> patched_units;
  results<patched_row> patched_rows;
  select_scratch* scratch;  // [workers]

  static selected_rows lay_out(arena& memory, const batch& b);
};

// ---- Choose, and code: the streams of the rows -------------------------------------------------------------------

struct chosen_row {
  uint32_t plan;         // the chosen one
  uint64_t support_max;  // of that plan
  bool index, value;     // whether the stream has been coded for the choice
  stream_slot trial;     // the payload of another value codec,
  void* seen;            // and its decoded values
  uint64_t seen_size;
};

struct coded_row {
  dr_fault fault;
  uint32_t* support;  // reported by the index codec; nullptr: the whole segment
  uint64_t count;     // of the support that the receiver will see
  bool raw_index;     // the reported support exceeds the plan's bound, so raw keys are sent
  void* values;       // at the reported support
  uint32_t* order;    // of a value codec that reorders
  uint32_t* keys;     // the support in that order
  uint64_t order_count;
  stream_slot slots[section_count];
};
struct streams {
  results<coded_row> rows;
  job_list jobs;  // of one call
  uint32_t* job_rows;

  static streams lay_out(arena& memory, const batch& b);
  void add(size_t row, const dr_job& job, section s) {
    job_rows[jobs.n] = static_cast<uint32_t>(row);
    jobs.add(job, rows[row].slots[s]);
  }
};

// ---- Container, feedback -----------------------------------------------------------------------------------------

struct framed {
  results<wire_row> rows;  // for the header
  uint32_t* by_size;       // rows sorted by size, if some must be left out
  // With auto: the plans of the rows, and the layout of their header.
  wire_plan* plans;
  row_bound* bounds;
  uint32_t* places;
  std::byte* table;

  static framed lay_out(arena& memory, const batch& b);
};

struct fed_back_row {
  dr_fault fault;
  void* decoded;  // the sent values as the receiver decodes them; nullptr: equal to the coded values
  uint64_t size;
  stream_slot slot;
};
struct fed_back {
  results<fed_back_row> rows;
  job_list jobs;
};

// ---- The call ------------------------------------------------------------------------------------------------------

struct encode_work {
  results<draw_keys> keys;  // of rows
  selected_rows selected;
  results<chosen_row> chosen;
  streams coded;
  framed wire;
  fed_back feedback;
  std::byte* scratch;   // [workers]
  state_range* states;  // to check that no two overlap
  // [tensors] with transform=dct: the caller's, but for the values of those that are transformed; otherwise nullptr.
  tensor_view* transformed;

  // The arena must be large enough; with a measuring arena, only its size is computed.
  static encode_work lay_out(arena& memory, const batch& b);
  // Initialises it for a call.
  void begin(const batch& b, const encode_call& call, std::span<const tensor_view> tensors);
};

// transform.cpp: the tensors with coefficients in place of the values of those that have tiles.
tensor_view* lay_out_transformed(arena& memory, const batch& b);
std::span<const tensor_view> transform(const batch& b, const encode_call& call, std::span<const tensor_view> tensors,
                                       pool& workers, tensor_view* out);

// The maximum size of a table of some of a batch's plans.
inline uint64_t table_max(const batch& b) { return b.layout[0].table.size(); }

// What all stages read: the call, and the results of earlier stages.
// Whether [x, x + n) and [y, y + m) have bytes in common.
inline bool overlap(const void* x, uint64_t n, const void* y, uint64_t m) {
  const auto a = reinterpret_cast<uintptr_t>(x), b = reinterpret_cast<uintptr_t>(y);
  return a < b + m && b < a + n;
}

struct encoding {
  const batch& b;
  const encode_call& call;
  std::span<const tensor_view> given, tensors;  // the caller's; with coefficients in place of values
  pool& workers;
  const encode_work& w;
  dr_error& error;
  bool may_fail;  // after the gradient has been added to the states
  stage_runner run;

  encoding(const batch& batch, const encode_call& of_call, std::span<const tensor_view> callers,
           std::span<const tensor_view> list, pool& crew, const encode_work& work, uint64_t capacity, dr_error& to);

  const unit& unit_of(size_t row) const { return b.units[b.rows[row].unit]; }
  const wire_plan& plan_of(size_t row) const { return b.wire[w.chosen[row].plan]; }
  uint64_t row_bytes(size_t row) const { return uint64_t{unit_of(row).width} * value_size(unit_of(row).dtype); }
  bool dense_fallback(size_t row) const { return w.selected.units[b.rows[row].unit].dense_fallback; }
  bool replaced(size_t row) const { return plan_of(row).replaces_support() && !w.coded.rows[row].raw_index; }
  // The support that the receiver decodes, and the values there.
  const uint32_t* support(size_t row) const {
    return replaced(row) ? w.coded.rows[row].support : w.selected.rows[row].support;
  }
  const void* sent(size_t row) const {
    return replaced(row) && w.coded.rows[row].values ? w.coded.rows[row].values : w.selected.rows[row].values;
  }
  trace_span span(const char* stage) const { return {call.trace, call.trace_user, stage}; }

  // Calls add(row) for the rows of a plan with streams to code, after it has emptied `jobs`.
  template <class F>
  void each_coded(uint32_t plan, job_list& jobs, F&& add) const {
    jobs.n = 0;
    for (size_t i = 0; i < b.rows.size(); ++i)
      if (w.chosen[i].plan == plan && is_coded(i)) add(i);
  }
  bool is_coded(size_t row) const {
    return w.selected.rows[row].count && !w.coded.rows[row].fault.code && !dense_fallback(row);
  }

  dr_job job_of(size_t row, uint32_t stream, const void* in, uint64_t count_max, const uint64_t* count, uint64_t in_max,
                dr_fault& fault) const;
  // The job of an index list for a row's keys.
  dr_job index_job(size_t row, const stage_list& list, dr_fault& fault) const;
  dr_status encode_jobs(const stage_list& list, const job_list& jobs) const;
  dr_status check_reported(const dr_codec& codec, const dr_job& job, const uint32_t* support, uint64_t count) const;
};

// ---- The stages, in the order in which they run: a stage fills its last argument -----------------------------------

// sparsify.cpp
dr_status sparsify(const encoding& e, selected_rows& out);

// patch.cpp: the rows of unit i that differ from its base, and the checks of both.
uint64_t compare_unit(const encoding& e, size_t i, selected_rows& out);
// Of patches: updates the caller's sums to those of the result.
void keep_sums(const encoding& e);
// patch_history.cpp: the histories of the changed rows of unit i; and the update of the caller's histories.
void find_history(const encoding& e, size_t i, selected_rows& out);
void keep_history(const encoding& e);

// clip.cpp: the norm of the gradients whose feedback clips them; squares [squares_max].
double measure_norm(const encoding& e, double* squares);
uint64_t squares_max(const batch& b);
// The weights by which a gradient is added to the state of a unit's tensor.
feedback_weights weights_of(const encoding& e, const unit& u, uint32_t tensor);

// source.cpp: the values from which unit i is selected. Adds the residual; sorts sparse values.
dr_status load_source(const encoding& e, size_t i, selected_rows& out);
// Cuts a unit into pieces: contiguous values of one tensor and one segment. From here on, pieces with feedback are
// added to the states while they are read.
void cut_to_pieces(const encoding& e, size_t i, selected_rows& out);
// The consecutive pieces of a row.
std::span<const select_piece> pieces_of(const encoding& e, size_t row);
// For select_source: pieces that are summed while they are read.
struct sums_source {
  const unit* u;
  unit_sums* sums;
};
const void* load_sums(void* self, size_t piece, uint64_t at, uint32_t n, select_load what, void* room);
float* place_of_sums(void* self, size_t piece);
// Sets the part of a unit's source that belongs to a row.
void set_source(const encoding& e, size_t row, selected_rows& out);
// Values of the source at ascending positions of a row; nullptr: all of them.
void gather_source(const encoding& e, size_t row, const uint32_t* positions, uint64_t n, void* out);

// choose.cpp: the choice of auto: the index codec with the fewest bytes, and the value codec with the fewest bytes
// among those within the error. Streams that are coded for the choice are not coded again.
dr_status choose(const encoding& e, streams& coded, results<chosen_row>& out);

// place_payloads.cpp: lets value codecs write to the frame itself, if the call can no longer fail.
void place_payloads(const encoding& e, uint8_t* frame, uint64_t capacity, streams& out);

// encode_streams.cpp: begins with the selected support; then, for the rows of a plan, in the order of sequence_of:
void begin_streams(const encoding& e, streams& out);
dr_status encode_index(const encoding& e, uint32_t plan, streams& out);
dr_status regather(const encoding& e, uint32_t plan, streams& out);
dr_status encode_value(const encoding& e, uint32_t plan, streams& out);
dr_status reorder_support(const encoding& e, uint32_t plan, streams& out);
dr_status encode_order(const encoding& e, uint32_t plan, streams& out);
// Returns false, and a fault, if a sent value of a row is not finite.
bool check_finite(const encoding& e, size_t i, dr_fault& out);

// report_faults.cpp: the error is about the first tensor at fault; all faults are reported to the caller, if requested.
dr_status first_fault(const encoding& e);
dr_status first_unsound(const encoding& e);  // of a sparse tensor
// Of a value of a gradient or, if the plan has one, of its sum with the residual.
dr_fault unfinite(const plan& method, uint64_t where, uint64_t value, bool infinite);
// Of a coefficient: the gradient's first element that is not finite, where there is one.
dr_fault unfinite_coefficient(const tensor_view& gradient, uint64_t where, uint32_t value);

// write_frame.cpp: the header, then the streams, or the dense row where that is shorter.
dr_status write_frame(const encoding& e, uint8_t* frame, uint64_t capacity, uint64_t& size, framed& out);

// keep_feedback.cpp: subtracts the sent values from the residuals. Nothing after it can fail.
dr_status keep_feedback(const encoding& e, fed_back& out);
// Restores the residuals to their values before the call.
void roll_back(const encoding& e);

}  // namespace dr
