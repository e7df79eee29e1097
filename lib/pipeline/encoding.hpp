// A call of encode under way: its workspace, and the stages that share it, each a file of its own. Read encode.cpp
// first.
#pragma once

#include <algorithm>

#include "feedback/velocity.hpp"
#include "pipeline/encode.hpp"
#include "pipeline/trace.hpp"
#include "sparsify/select.hpp"
#include "split/split.hpp"
#include "stage/chain.hpp"

namespace dr {

// A gradient, the residual that it is added to while it is read, and the residual's old values, in case encode fails.
struct summed {
  const std::byte* g;
  velocity to;        // the residual is v; u is nullptr but of feedback=dgc
  float beta, gamma;  // weights of what was kept and of the gradient

  float* m() const { return to.v; }
};

// The tensors that are selected and split together: one, or with bucket=flat all of them.
struct unit_work {
  // The source of rows wider than one value, or sparse (indices, values), ascending. Otherwise there are pieces: runs
  // of a tensor and of a segment.
  const void* source;
  uint64_t* indices;
  uint64_t rows;
  sparse_entry* entries;
  void* buffer;   // of sorted values
  float* acc;     // with feedback, of a source that arrives sparse or in rows,
  void* rounded;  // and in the tensor's type
  float* acc_u;   // feedback=dgc: of u, in the same case
  select_piece* pieces;
  summed* sums;  // of pieces that have no values
  float *undo, *undo_u;
  uint32_t block;  // elements that were kept together
  // Lossless codecs: residuals of at least this magnitude were cleared during selection; 0: none were.
  uint32_t taken_from;
  bool advanced;  // the states, so failing takes them back
  // Where the selection does not go by magnitude, or is replaced: whether some sum is not finite. (Else some such are
  // sent.)
  bool watched;
  mutable uint32_t unfinite;
  uint32_t piece_count;
  select_memory kept;
  uint32_t* support;  // of a sparse source: in the segment
  void* scratch;      // of the sparsifier
  bool dense_fallback;
  // Of a patch: the words of the base that changed, and the sums of its chunks as they become.
  std::byte* based;
  uint64_t* base_sums;
  uint8_t* past;  // histories of those words, if the value codec goes by them
  dr_error error;
};

// A segment of a unit: a row of the frame.
struct row_work {
  dr_fault fault;
  uint64_t count, told, block_count;
  uint64_t source_first, source_rows;  // of a sparse source: its part in this segment
  uint32_t* positions;                 // [count] in the source; these three are parts of the unit's
  uint32_t* support;                   // [count] in the segment
  uint32_t* blocks;                    // [block_count] of the support, where the index list codes such
  void* kept;                          // values at the support; of a unit sent whole, all, and there is no list
  uint32_t largest;                    // magnitude of these
  uint32_t* tell;                      // [told]; nullptr: all of the segment
  const void* base;                    // of a patch: of all of the segment,
  const void* based;                   // and at the support
  const uint8_t *history, *past;       // histories of both, or nullptr
  uint64_t checks[2];                  // of base and result
  void* sent;                          // values at the told support
  uint32_t* order;                     // of a value codec that reorders
  uint32_t* keys;                      // the told support in that order
  void* decoded;                       // the decoded values, with feedback
  uint64_t order_told, decoded_size;
  stream_slot slots[section_count], decode_slot;
  uint32_t plan;         // of those that auto chose from, the one taken
  uint64_t support_max;  // of that plan
  bool index_chosen;     // by coding them: slots[section_index] has them,
  bool value_chosen;     // and slots[section_value]
  stream_slot trial;     // another choice of value codec,
  void* seen;            // and its decoded values
  uint64_t shared_key, private_key;
};

struct encode_work {
  unit_work* units;
  row_work* rows;
  wire_row* wire;
  job_list jobs;
  uint32_t* selected;  // rows of one call
  std::byte* scratch;
  select_scratch* select;  // of each worker
  state_range* states;     // to see that no two are the same
  double* squares;         // of blocks of gradients that are clipped
  // With auto: the chosen plans, and the layout of their header.
  wire_plan* taken;
  row_bound* bounds;
  uint32_t* places;
  std::byte* table;

  // In an arena that has room for all of it; with a measuring arena, its size.
  static encode_work take(arena& memory, const batch& b);
};

// Bytes of a table of some of a batch's plans.
inline uint64_t table_max(const batch& b) { return b.layout[0].table.size(); }

struct encoding {
  const batch& b;
  const encode_call& call;
  std::span<const tensor_view> tensors;
  pool& workers;
  encode_work w;
  dr_error& error;
  bool may_fail;  // once the gradient has joined the states
  double norm;    // of all gradients whose feedback clips; 0: none does
  stage_runner run;

  encoding(const batch& batch, const encode_call& of_call, std::span<const tensor_view> list, pool& crew,
           const encode_work& work, uint64_t capacity, dr_error& said);

  const unit& unit_of(size_t row) const { return b.units[b.rows[row].unit]; }
  const wire_plan& plan_of(size_t row) const { return b.wire[w.rows[row].plan]; }
  uint64_t row_bytes(size_t row) const { return uint64_t{plan_of(row).width} * value_size(plan_of(row).dtype); }
  bool replaced(size_t row) const { return plan_of(row).replaces_support() && w.wire[row].mode == mode_plan; }
  uint32_t* told(size_t row) const { return replaced(row) ? w.rows[row].tell : w.rows[row].support; }
  void* sent(size_t row) const { return replaced(row) ? w.rows[row].sent : w.rows[row].kept; }
  trace_span span(const char* stage) const { return {call.trace, call.trace_user, stage}; }

  // Calls add(row) for the rows of a plan that have streams to code.
  template <class F>
  void each_coded(uint32_t plan, F&& add) {
    w.jobs.n = 0;
    for (size_t i = 0; i < b.rows.size(); ++i)
      if (w.rows[i].plan == plan && is_coded(i)) add(i);
  }
  bool is_coded(size_t row) const {
    return w.rows[row].count && !w.rows[row].fault.code && !w.units[b.rows[row].unit].dense_fallback;
  }

  dr_job job_of(size_t i, uint32_t stream, const void* in, uint64_t count_max, const uint64_t* count, uint64_t in_max);
  // Of a row's keys, as an index list codes them.
  dr_job index_job(size_t i, const stage_list& list);
  void add_job(size_t row, const dr_job& job, section s) {
    w.selected[w.jobs.n] = static_cast<uint32_t>(row);
    w.jobs.add(job, w.rows[row].slots[s]);
  }
  dr_status encode_jobs(const stage_list& list);
};

// ---- The stages, in the order in which they run ------------------------------------------------------------

// sparsify.cpp: selects the support of each row, ascending, and its values.
dr_status sparsify(encoding& e);

// patch.cpp: the rows of unit i that differ from its base, and the checks of both.
void compare_unit(encoding& e, size_t i);
// The caller's sums are now those of the result.
void keep_sums(const encoding& e);
// patch_history.cpp: the histories of the rows of unit i, once compared; and the caller's, as the patch makes them.
void find_history(encoding& e, size_t i);
void keep_history(const encoding& e);

// clip.cpp: measures the gradients whose feedback clips them to a norm.
void measure_norm(encoding& e);
uint64_t squares_max(const batch& b);
// By which a gradient joins the state of a unit's tensor.
feedback_weights weights_of(const encoding& e, const unit& u, uint32_t tensor);

// source.cpp: the values that unit i is selected from. Sums them with the residual, sorts them if they arrive sparse.
dr_status load_source(encoding& e, size_t i);
// Cuts a unit to pieces, of each of which values lie together, in one tensor and one segment.
void cut_to_pieces(encoding& e, size_t i);
// The pieces of row i, which follow one another.
std::span<const select_piece> pieces_of(const encoding& e, size_t i);
// For select_source, of pieces that are summed while they are read.
struct sums_source {
  const unit* u;
  const unit_work* o;
};
const void* load_sums(void* self, size_t piece, uint64_t at, uint32_t n, select_load what, void* room);
float* place_of_sums(void* self, size_t piece);
// The part of a unit's source that belongs to row k.
void set_source(encoding& e, const unit_work& o, const unit& u, uint32_t k);
// Values of the source at ascending positions of row i; nullptr: all of them.
void gather_source(const encoding& e, size_t i, const uint32_t* positions, uint64_t n, void* out);

// choose.cpp: the choice of auto: the index codec with the fewest bytes, and of the value codecs within the error the
// smallest.
dr_status choose(encoding& e);

// place_payloads.cpp: lets value codecs write to the frame itself, where the call can no longer fail.
void place_payloads(encoding& e, uint8_t* frame, uint64_t capacity);

// encode_streams.cpp: for the rows of a plan.
void keep_support(encoding& e, uint32_t plan);
dr_status encode_index(encoding& e, uint32_t plan);
void regather(encoding& e, uint32_t plan);
dr_status encode_value(encoding& e, uint32_t plan);
dr_status encode_order(encoding& e, uint32_t plan);
// False, and a fault, if a value that row i sends is not finite.
bool check_finite(encoding& e, size_t i);

// report_faults.cpp: the first tensor at fault is the error's; all that are go to the caller, if asked for.
dr_status first_fault(encoding& e);
dr_status first_unsound(encoding& e);  // of a sparse tensor
dr_fault unfinite(uint64_t where, uint64_t value, bool infinite);

// write_frame.cpp: the streams, or the dense row where that is shorter, behind the header.
dr_status write_frame(encoding& e, uint8_t* frame, uint64_t capacity, uint64_t& size);

// keep_feedback.cpp: subtracts the sent values from the residuals. Nothing after it can fail.
dr_status keep_feedback(encoding& e);
// The residuals as they were before the call.
void roll_back(encoding& e);

}  // namespace dr
