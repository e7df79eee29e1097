// The sentence of the house, read from `encode` at the end of this file:
//   sparsify, split, index, regather, value, order, container, feedback.
#include "pipeline/encode.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "core/versioned.hpp"
#include "feedback/residual.hpp"
#include "merge/merge.hpp"
#include "pipeline/trace.hpp"
#include "primitive/rng.hpp"
#include "sparsify/dgc.hpp"
#include "sparsify/random.hpp"
#include "sparsify/select.hpp"
#include "sparsify/sparsifiers.hpp"
#include "split/split.hpp"
#include "stage/chain.hpp"

namespace dr {
namespace {

// A gradient, and the residual that it is added to while it is read; what that was, in case encode fails.
struct summed {
  const std::byte* g;
  float *m, *undo;
};

// What is said of values that a codec cannot take. (Compared by their addresses.)
constexpr char says_infinite[] = "the gradient is infinite; this codec takes finite values";
constexpr char says_nan[] = "the gradient is NaN; this codec takes finite values";

// From so many elements on, what is kept only in case of need goes past the caches.
constexpr uint64_t undo_streams = 1 << 18;

struct unit_work {
  // The source of rows wider than one value, or sparse (indices, values), ascending. Otherwise there are pieces: runs of a tensor and of
  // a segment.
  const void* source;
  uint64_t* indices;
  uint64_t rows;
  sparse_entry* entries;
  void* buffer;   // of sorted values
  float* acc;     // with feedback, of what arrives sparse or in rows,
  void* rounded;  // and in the tensor's type
  select_piece* pieces;
  summed* sums;  // of pieces that have no values
  float* undo;
  uint32_t
      taken_from;  // of what leaves nothing in the state, magnitudes from here on have left it; 0: it leaves something
  bool advanced;   // the states, so failing takes them back
  uint32_t piece_count;
  select_memory kept;
  uint32_t* support;  // of a sparse source: in the segment
  uint64_t* chosen;   // of random: a bit for each position
  uint32_t* sample;   // of dgc
  bool dense_fallback;
  dr_error error;
};

struct sums_source {
  const unit* u;
  const unit_work* o;
};

struct row_work {
  dr_fault fault;
  uint64_t count, told;
  uint64_t source_first, source_rows;  // of a sparse source: its part in this segment
  uint32_t* positions;                 // [count] in the source; these three are parts of the unit's
  uint32_t* support;                   // [count] in the segment
  void* kept;                          // values at the support
  uint32_t* tell;                      // [told]; nullptr: all of the segment
  void* sent;                          // values at the told support
  uint32_t* order;                     // of a value codec that reorders
  uint32_t* keys;                      // the told support in that order
  void* decoded;                       // what the receiver will see, with feedback
  uint64_t order_told, decoded_size;
  stream_slot slots[section_count], decode_slot;
  uint32_t plan;      // of those that auto chose from, the one taken
  bool value_chosen;  // by coding them: slots[section_value] has them
  stream_slot trial;  // another choice of value codec,
  void* seen;         // and what the receiver would see
  uint64_t shared_key, private_key;
};

struct work {
  unit_work* units;
  row_work* rows;
  wire_row* wire;
  job_list jobs;
  uint32_t* selected;  // rows of one call
  std::byte* scratch;
  select_scratch* select;  // of each worker
  state_range* states;     // to see that no two are the same
  // With auto: the plans that were taken, and what lays out a header of them.
  wire_plan* taken;
  row_bound* bounds;
  uint32_t* places;
  std::byte* table;
};

// How many values a unit's sparsifier wants of those it has.
uint64_t wanted(const unit& u) {
  const bound_stage& s = u.method->sparsify;
  switch (s.codec->id) {
    case sparsify_topr:
    case sparsify_random: return topr_target(s.value(topr_ratio), s.value(topr_count), u.universe);
    case sparsify_dgc: return topr_target(s.value(dgc_ratio), 0, u.universe);
    default: return u.source_max;
  }
}

// Whether the gradient is added to a unit's residual in the state itself, while it is read; otherwise in a buffer, before.
bool sums_on_the_way(const batch& b, const unit& u) {
  return u.method->keeps_feedback() && u.width == 1 && !b.shapes[u.first_tensor].sparse();
}

// Whether somebody wants the support that an index codec tells: feedback does, also where it is all there is.
bool needs_list(const unit& u, const wire_plan& wire) { return !wire.index().whole() || u.method->keeps_feedback(); }

// Of a worker, so that each begins aligned.
uint64_t scratch_stride(const batch& b) { return ceil_div(b.scratch, arena::alignment) * arena::alignment; }

// Bytes of a table of some of a batch's plans.
uint64_t table_max(const batch& b) { return b.layout[0].table.size(); }

// The workspace of a batch, in an arena that has room for all of it; with a measuring arena, its size.
work take(arena& memory, const batch& b) {
  work w{};
  w.units = memory.take<unit_work>(b.units.size());
  w.rows = memory.take<row_work>(b.rows.size());
  w.wire = memory.take<wire_row>(b.rows.size());
  w.jobs = job_list::take(memory, b.rows.size());
  w.selected = memory.take<uint32_t>(b.rows.size());
  w.scratch = memory.take<std::byte>(scratch_stride(b) * b.workers);
  if (const uint64_t n = states_of(b)) w.states = memory.take<state_range>(n);
  if (b.chooses()) {
    w.taken = memory.take<wire_plan>(b.wire.size());
    w.bounds = memory.take<row_bound>(b.rows.size());
    w.places = memory.take<uint32_t>(b.wire.size());
    w.table = memory.take<std::byte>(table_max(b));
  }
  const bool real = !memory.measures();
  select_scratch scratch{};
  for (size_t i = 0; i < b.units.size(); ++i) {
    const unit& u = b.units[i];
    unit_work o{};
    const uint64_t row_bytes = uint64_t{u.width} * value_size(u.dtype);
    if (const tensor_shape& shape = b.shapes[u.first_tensor]; shape.sparse()) {
      o.entries = memory.take<sparse_entry>(shape.count);
      o.indices = memory.take<uint64_t>(shape.count);
      o.buffer = memory.take<std::byte>(shape.count * row_bytes);
    }
    if (u.method->keeps_feedback() && !sums_on_the_way(b, u)) {
      o.acc = memory.take<float>(u.universe * u.width);
      if (u.dtype != DR_F32) o.rounded = memory.take<std::byte>(u.universe * row_bytes);
    }
    o.pieces = memory.take<select_piece>(u.tensors + u.rows);
    if (sums_on_the_way(b, u)) {
      o.sums = memory.take<summed>(u.tensors + u.rows);
      o.undo = memory.take<float>(u.universe);
    }
    if (u.sparse) o.support = memory.take<uint32_t>(u.source_max);
    if (u.width == 1) {
      o.kept = select_memory::take(memory, u.dtype, u.source_max, std::max(wanted(u), u.kept_max), u.rows);
      scratch.grow(u.source_max, wanted(u), b.workers > 1);
      const bound_stage& s = u.method->sparsify;
      if (s.codec->id == sparsify_random) o.chosen = memory.take<uint64_t>(random_words(u.universe));
      if (s.codec->id == sparsify_dgc) o.sample = memory.take<uint32_t>(dgc_sample(s.value(dgc_share), u.source_max));
    } else if (!u.sparse) {
      o.kept.positions = memory.take<uint32_t>(u.source_max);
      o.kept.kept = memory.take<std::byte>(u.source_max * row_bytes);
    }
    if (real) w.units[i] = o;
  }
  w.select = memory.take<select_scratch>(b.workers);
  for (uint32_t k = 0; k < b.workers; ++k) {
    const select_scratch part = scratch.take(memory);
    if (real) w.select[k] = part;
  }
  for (size_t i = 0; i < b.rows.size(); ++i) {
    const batch_row& r = b.rows[i];
    const unit& u = b.units[r.unit];
    const wire_plan& wire = b.wire[r.plan];
    const uint64_t row_bytes = uint64_t{u.width} * value_size(u.dtype);
    row_work o{};
    if (wire.replaces_support()) {
      if (needs_list(u, wire)) o.tell = memory.take<uint32_t>(r.support_max);
      o.sent = memory.take<std::byte>(r.support_max * row_bytes);
    }
    if (wire.value().has(DR_REORDERS)) {
      o.order = memory.take<uint32_t>(r.support_max);
      o.keys = memory.take<uint32_t>(r.support_max);
    }
    for (uint32_t s = 0; s < section_count; ++s)
      o.slots[s] = stream_slot::take(memory, wire.lists[s], r.need[s], false);
    const bool chooses_value = r.value_choices > 1;
    if (chooses_value) {
      o.trial = stream_slot::take(memory, wire.value(), r.need[section_value], false);
      o.seen = memory.take<std::byte>(r.support_max * row_bytes);
    }
    if (u.method->keeps_feedback() && (chooses_value || !wire.value().exact())) {
      o.decoded = memory.take<std::byte>(r.support_max * row_bytes);
      o.decode_slot = stream_slot::take(memory, wire.value(), r.need[section_value], true);
    }
    if (real) w.rows[i] = o;
  }
  return w;
}

class encoder {
 public:
  encoder(const batch& b, const encode_call& call, std::span<const tensor_view> tensors, pool& workers, const work& w,
          uint64_t capacity, dr_error& error)
      : b_(b), call_(call), tensors_(tensors), pool_(workers), w_(w), error_(error) {
    run_ = {w.scratch, scratch_stride(b), &workers};
    may_fail_ = may_fail(capacity);
    for (size_t i = 0; i < b.rows.size(); ++i) {
      const batch_row& r = b.rows[i];
      const unit& u = b.units[r.unit];
      wire_row& wire = w.wire[i];
      wire = wire_row{};
      wire.plan = r.plan;
      wire.continues = r.continues;
      wire.universe = r.universe;
      const uint64_t key = tensors[u.first_tensor].key;
      uint64_t shared = combine(combine(combine(0, call.seed), call.step), key ? key : u.first_tensor);
      if (r.first) shared = combine(shared, i - u.first_row);
      w.rows[i].plan = r.plan;
      w.rows[i].value_chosen = false;
      w.rows[i].shared_key = shared;
      w.rows[i].private_key = combine(shared, call.private_seed);
    }
  }

  dr_status sparsify_and_split() {
    trace_span span(call_.trace, call_.trace_user, "sparsify");
    // Large units one after the other, each by all; the others side by side.
    for (size_t i = 0; i < b_.units.size(); ++i)
      if (is_shared(i)) split_unit(i, {w_.select, &pool_});
    const auto one = [](void* self, size_t i, size_t worker) {
      auto* const e = static_cast<encoder*>(self);
      if (!e->is_shared(i)) e->split_unit(i, {e->w_.select + worker});
    };
    pool_.run(b_.units.size(), one, this);
    if (const dr_status s = first_unsound()) return s;
    for (size_t i = 0; i < b_.rows.size(); ++i) span.bytes += w_.rows[i].count * (4 + row_bytes(i));
    return DR_OK;
  }

  // What auto takes: the index codec that costs least, and of the value codecs that meet the error the one that does.
  dr_status choose() {
    for (size_t i = 0; i < b_.rows.size(); ++i) {
      const batch_row& r = b_.rows[i];
      row_work& row = w_.rows[i];
      if (r.choices.empty() || !is_coded(i)) continue;
      trace_span span(call_.trace, call_.trace_user, "choose");
      row.told = row.count;
      uint32_t index = 0, value = 0;
      if (r.value_choices > 1)
        if (const dr_status s = choose_value(i, value)) return s;
      if (r.choices.size() > r.value_choices)
        if (const dr_status s = choose_index(i, index)) return s;
      const row_choice& taken = r.choices[index * r.value_choices + value];
      row.plan = w_.wire[i].plan = taken.plan;
      for (uint32_t s = 0; s < section_count; ++s) row.slots[s].need = taken.need[s];
    }
    return DR_OK;
  }

  // The four sequences: plain; index first if it replaces the support; value first if the keys carry its order; both
  // couplings, with an order stream.
  dr_status streams() {
    for (uint32_t p = 0; p < b_.wire.size(); ++p) {
      const wire_plan& plan = b_.wire[p];
      if (plan.replaces_support()) {
        if (const dr_status s = index(p)) return s;
        regather(p);
      } else {
        keep_support(p);
      }
      if (const dr_status s = value(p)) return s;
      if (!plan.replaces_support())
        if (const dr_status s = index(p)) return s;
      if (plan.order().count)
        if (const dr_status s = order(p)) return s;
    }
    return DR_OK;
  }

  // What would cost more than the dense row is sent as that.
  void choose_modes() {
    for (size_t i = 0; i < b_.rows.size(); ++i) {
      const row_work& row = w_.rows[i];
      wire_row& wire = w_.wire[i];
      wire.count = row.count;
      if (row.count == 0 && !w_.units[b_.rows[i].unit].dense_fallback) continue;
      const uint64_t dense = b_.rows[i].universe * row_bytes(i);
      wire.support = row.told;
      for (uint32_t s = 0; s < section_count; ++s) wire.size[s] = plan_of(i).lists[s].count ? row.slots[s].size : 0;
      if (wire.mode == mode_raw_index) wire.size[section_index] = 4 * row.count;
      if (w_.units[b_.rows[i].unit].dense_fallback || wire.payload() > dense) {
        wire.mode = mode_dense;
        wire.support = b_.rows[i].universe;
        wire.size = {dense, 0, 0};
      }
    }
  }

  dr_status container(uint8_t* frame, uint64_t capacity, uint64_t& size) {
    if (!b_.chooses()) return container(b_.layout[(call_.flags & DR_CALL_TAG) != 0], b_.wire, frame, capacity, size);
    // Only the plans that were taken.
    std::fill_n(w_.places, b_.wire.size(), UINT32_MAX);
    uint32_t plans = 0;
    for (size_t i = 0; i < b_.rows.size(); ++i) {
      uint32_t& place = w_.places[w_.rows[i].plan];
      if (place == UINT32_MAX) {
        place = plans++;
        new (w_.taken + place) wire_plan(plan_of(i));
      }
      row_bound bound = b_.rows[i].bound;
      for (const row_choice& c : b_.rows[i].choices)
        if (c.plan == w_.rows[i].plan) bound = c.bound;
      w_.wire[i].plan = bound.plan = place;
      w_.bounds[i] = bound;
    }
    std::pmr::monotonic_buffer_resource room(w_.table, table_max(b_), std::pmr::null_memory_resource());
    header_layout layout{.table = std::pmr::vector<uint8_t>(&room)};
    layout.table.reserve(table_max(b_));
    const std::span<const wire_plan> taken(w_.taken, plans);
    if (const dr_status s =
            lay_out_header(taken, {w_.bounds, b_.rows.size()}, call_.flags & DR_CALL_TAG, layout, error_))
      return s;
    return container(layout, taken, frame, capacity, size);
  }

  dr_status container(const header_layout& layout, std::span<const wire_plan> plans, uint8_t* frame, uint64_t capacity,
                      uint64_t& size) {
    trace_span span(call_.trace, call_.trace_user, "container");
    const std::span<wire_row> rows(w_.wire, b_.rows.size());
    uint64_t wanted = place_rows(layout, rows);
    if (wanted > capacity && (call_.flags & DR_CALL_FIT)) {
      leave_out(wanted - capacity);
      wanted = place_rows(layout, rows);
    }
    if (wanted > capacity) {
      fail(error_, DR_E_CAPACITY, "frame: it has %" PRIu64 " bytes, the buffer %" PRIu64 " (dr_bound: %" PRIu64 ")",
           wanted, capacity, layout.frame_bound);
      error_.needed = wanted;
      return DR_E_CAPACITY;
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const row_work& row = w_.rows[i];
      uint8_t* at = frame + rows[i].offset;
      uint8_t* const end = at + padded(rows[i].payload());
      if (rows[i].mode == mode_dense) {
        std::memset(at, 0, rows[i].payload());
        const unit& u = b_.units[b_.rows[i].unit];
        scatter(u.dtype, row.support, row.kept, row.count, u.width, u.dtype, at);
        at += rows[i].payload();
      } else {
        for (uint32_t s = 0; s < section_count; ++s) {
          const bool raw = s == section_index && rows[i].mode == mode_raw_index;
          if (rows[i].size[s])
            std::memcpy(at, raw ? static_cast<const void*>(row.support) : row.slots[s].data, rows[i].size[s]);
          at += rows[i].size[s];
        }
      }
      std::memset(at, 0, static_cast<size_t>(end - at));
    }
    write_header(layout, plans, rows, call_.tag, call_.flags & DR_CALL_LIST, frame);
    size = span.bytes = wanted;
    return DR_OK;
  }

  // What the receiver will see is decoded from the payload itself, then leaves the residual. What fails before takes the
  // gradient out of the states again, and nothing after can fail.
  dr_status keep_feedback() {
    trace_span span(call_.trace, call_.trace_user, "feedback");
    for (uint32_t p = 0; p < b_.wire.size(); ++p)
      if (const dr_status s = decode_sent(p)) return s;
    for (size_t i = 0; i < b_.units.size(); ++i)
      if (b_.units[i].method->keeps_feedback()) span.bytes += store_states(i);
    return DR_OK;
  }

  // States as they were before the call.
  void roll_back() {
    for (size_t i = 0; i < b_.units.size(); ++i) {
      const unit_work& o = w_.units[i];
      for (uint32_t p = 0; o.advanced && p < o.piece_count; ++p)
        if (o.pieces[p].n && o.sums[p].undo) std::memcpy(o.sums[p].m, o.sums[p].undo, 4 * o.pieces[p].n);
    }
  }

  // The first tensor at fault is the error's; all that are go to the caller, if asked for.
  dr_status first_fault() {
    dr_status first = DR_OK;
    for (size_t i = 0; i < b_.rows.size(); ++i) {
      dr_fault fault = w_.rows[i].fault;
      if (!fault.code) continue;
      const uint32_t section = fault.stream == DR_STREAM_INDEX   ? section_index
                               : fault.stream == DR_STREAM_ORDER ? section_order
                                                                 : section_value;
      const stage_list& list = plan_of(i).lists[section];
      const bool of_values = fault.message == says_nan || fault.message == says_infinite;
      const uint32_t tensor = of_values ? tensor_at(b_.units[b_.rows[i].unit], fault.where) : first_tensor(i);
      if (!first) first = fail(error_, fault, tensor, list.count ? list.front().codec->name : nullptr);
      if (!call_.faults) return first;
      if (of_values && b_.units[b_.rows[i].unit].tensors > 1)
        report_unfinite(i);
      else
        report(tensor, fault);
    }
    return first;
  }

  // Rows that went in.
  uint64_t kept() const {
    uint64_t n = 0;
    for (size_t i = 0; i < b_.rows.size(); ++i) n += w_.rows[i].count;
    return n;
  }

 private:
  uint32_t first_tensor(size_t row) const { return b_.units[b_.rows[row].unit].first_tensor; }

  // The tensor of a unit that has an element of it, which becomes one of the tensor.
  uint32_t tensor_at(const unit& u, uint64_t& where) const {
    uint32_t tensor = u.first_tensor;
    for (; u.tensors > 1 && where >= b_.shapes[tensor].elements(); ++tensor) where -= b_.shapes[tensor].elements();
    return tensor;
  }

  void report(uint32_t tensor, dr_fault fault) const {
    auto* const to = reinterpret_cast<char*>(call_.faults) + tensor * call_.fault_stride;
    dr_fault was = no_fault();
    const size_t size = std::min(size_of_struct(to), sizeof was);
    std::memcpy(&was, to, size);
    if (!was.code) write_struct(fault, to);  // of several segments the first is told
  }

  // Each tensor of a bucket that has such values.
  void report_unfinite(size_t i) {
    const unit& u = b_.units[b_.rows[i].unit];
    with_value_type(plan_of(i).dtype, [&](auto type) {
      using T = decltype(type);
      const auto* v = static_cast<const typename T::bits*>(sent(i));
      for (uint64_t k = 0; k < w_.rows[i].told; ++k) {
        if (magnitude<T>(v[k]) < T::infinity) continue;
        uint64_t where = b_.rows[i].first + (told(i) ? told(i)[k] : k);
        const uint32_t tensor = tensor_at(u, where);
        report(tensor, unfinite(where, v[k], magnitude<T>(v[k]) == T::infinity));
      }
    });
  }
  static dr_fault unfinite(uint64_t where, uint64_t value, bool infinite) {
    return {sizeof(dr_fault), DR_E_ARGUMENT, DR_STREAM_VALUE, where, value, infinite ? says_infinite : says_nan};
  }

  dr_status first_unsound() {
    dr_status first = DR_OK;
    for (size_t i = 0; i < b_.units.size(); ++i) {
      const dr_error& e = w_.units[i].error;
      if (!e.code) continue;
      if (!first) error_ = e;
      first = error_.code;
      if (!call_.faults) break;
      report(b_.units[i].first_tensor, {sizeof(dr_fault), e.code, e.stream, e.where, e.what,
                                        "an index is negative, not below the universe, or comes twice"});
    }
    return first;
  }

  // ---- what does not fit ------------------------------------------------------------------------------------

  // Sends rows empty until the frame is `excess` bytes shorter, or all are: the smallest that will do, as long as none does the largest.
  void leave_out(uint64_t excess) {
    const auto saved = [this](uint32_t i) { return padded(w_.wire[i].payload()); };
    uint32_t* const begin = w_.selected;
    uint32_t* end = begin;
    for (uint32_t i = 0; i < b_.rows.size(); ++i)
      if (saved(i)) *end++ = i;
    std::sort(begin, end, [&](uint32_t x, uint32_t y) { return saved(x) != saved(y) ? saved(x) < saved(y) : x < y; });
    for (; excess && end != begin; --end) {
      uint32_t* const enough = std::partition_point(begin, end, [&](uint32_t i) { return saved(i) < excess; });
      const uint32_t i = enough == end ? end[-1] : *enough;
      excess -= std::min(excess, saved(i));
      empty_row(i);
    }
  }

  // As if nothing of it had been selected: then all of its gradient stays in the state.
  void empty_row(size_t i) {
    row_work& row = w_.rows[i];
    const unit_work& o = w_.units[b_.rows[i].unit];
    if (o.taken_from) put_back(i);
    row.count = row.told = 0;
    wire_row& wire = w_.wire[i];
    wire.mode = mode_plan;
    wire.count = wire.support = 0;
    wire.size = {};
  }

  // What was taken from the state while it was selected.
  void put_back(size_t i) {
    const row_work& row = w_.rows[i];
    const unit& u = b_.units[b_.rows[i].unit];
    const unit_work& o = w_.units[b_.rows[i].unit];
    const auto* const values = static_cast<const float*>(row.kept);
    uint64_t k = 0;
    for (uint32_t p = 0; p < o.piece_count; ++p) {
      const select_piece& piece = o.pieces[p];
      if (piece.range != i - u.first_row) continue;
      for (; k < row.count && row.support[k] - piece.position < piece.n; ++k)
        o.sums[p].m[row.support[k] - piece.position] = values[k];
    }
  }

  const wire_plan& plan_of(size_t row) const { return b_.wire[w_.rows[row].plan]; }
  uint64_t row_bytes(size_t row) const { return uint64_t{plan_of(row).width} * value_size(plan_of(row).dtype); }
  bool replaced(size_t row) const { return plan_of(row).replaces_support() && w_.wire[row].mode == mode_plan; }
  uint32_t* told(size_t row) const { return replaced(row) ? w_.rows[row].tell : w_.rows[row].support; }
  void* sent(size_t row) const { return replaced(row) ? w_.rows[row].sent : w_.rows[row].kept; }

  // ---- sparsify, split --------------------------------------------------------------------------------------

  bool is_shared(size_t i) const { return pool_.workers() > 1 && b_.units[i].source_max >= select_shared; }

  void split_unit(size_t i, const select_crew& crew) {
    unit_work& o = w_.units[i];
    o.error = dr_error{};
    o.dense_fallback = o.advanced = false;
    if (load_source(i)) return;
    const unit& u = b_.units[i];
    const plan& p = *u.method;
    if (u.width != 1 || (u.sparse && p.sparsify.codec->id == sparsify_none)) {
      for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) split_row(o, u, k);
      return;
    }
    cut_to_pieces(i);
    sums_source sums{&u, &o};
    o.advanced = o.sums != nullptr;
    const bool nothing_left = o.sums && leaves_nothing(u);
    const select_source source{
        u.dtype, {o.pieces, o.piece_count}, load_sums, &sums, nothing_left ? place_of_sums : nullptr};
    kept_count kept{};
    if (p.sparsify.codec->id == sparsify_topr) {
      kept = keep_largest(source, wanted(u), o.kept, crew);
    } else if (p.sparsify.codec->id == sparsify_random) {
      choose_random(sparsify_key(u), u.universe, wanted(u), o.chosen);
      kept.count = keep_chosen(source, u.sparse ? o.indices : nullptr, o.chosen, o.kept);
    } else if (p.sparsify.codec->id == sparsify_dgc) {
      kept = keep_dgc(source, sparsify_key(u), wanted(u), p.sparsify.value(dgc_share), o.sample, o.kept, crew);
    } else if (p.sparsify.codec->id == sparsify_threshold) {
      kept = keep_from(source, magnitude_from(u.dtype, p.sparsify.value(threshold_value)), o.kept, crew);
      o.dense_fallback =
          static_cast<double>(kept.count) > p.sparsify.value(threshold_max_ratio) * static_cast<double>(u.universe);
    } else {
      kept = keep_from(source, 1, o.kept, crew);
    }
    fence_streams();
    o.taken_from = nothing_left ? kept.taken_from : 0;
    uint64_t begin = 0;
    for (uint32_t k = 0; k < u.rows; ++k) {
      row_work& row = w_.rows[u.first_row + k];
      row.positions = row.support = o.kept.positions + begin;
      row.kept = static_cast<std::byte*>(o.kept.kept) + begin * value_size(u.dtype);
      row.count = row.told = o.kept.ends[k] - begin;
      if (u.sparse) {
        row.support = o.support + begin;
        read_support(o, u.first_row + k);
      }
      begin = o.kept.ends[k];
    }
  }

  // Whether anything can go wrong once the gradient has joined the states.
  bool may_fail(uint64_t capacity) const {
    const auto total = [](const wire_plan& p) {
      return p.index().total() && p.value().total() && (!p.order().count || p.order().total());
    };
    return capacity < b_.layout[(call_.flags & DR_CALL_TAG) != 0].frame_bound ||
           std::any_of(b_.shapes.begin(), b_.shapes.end(), [](const tensor_shape& s) { return s.sparse(); }) ||
           !std::all_of(b_.wire.begin(), b_.wire.end(), total);
  }

  // Whether what a unit sends of f32 arrives as it was, so that its residual is 0 there.
  bool leaves_nothing(const unit& u) const {
    const auto exact = [&](uint32_t plan) {
      return b_.wire[plan].value().exact() && !b_.wire[plan].replaces_support();
    };
    return u.dtype == DR_F32 &&
           std::all_of(&b_.rows[u.first_row], &b_.rows[u.first_row] + u.rows, [&](const batch_row& r) {
             return exact(r.plan) &&
                    std::all_of(r.choices.begin(), r.choices.end(), [&](const row_choice& c) { return exact(c.plan); });
           });
  }

  // Draws of the unit, whatever its segments; apart from those of its codecs.
  uint64_t sparsify_key(const unit& u) const {
    return combine(w_.rows[u.first_row].shared_key, u.method->sparsify.codec->id);
  }

  // Runs of values that belong to one tensor and one segment; of a sparse source, to one segment.
  void cut_to_pieces(size_t i) {
    const unit& u = b_.units[i];
    unit_work& o = w_.units[i];
    const uint64_t size = value_size(u.dtype);
    o.piece_count = 0;
    uint32_t tensor = u.first_tensor;
    uint64_t before = 0;  // elements of the tensors before it
    for (uint32_t k = 0; k < u.rows; ++k) {
      set_source(o, u, u.first_row + k);
      const row_work& row = w_.rows[u.first_row + k];
      const uint64_t end = row.source_first + row.source_rows;
      if (o.source) {
        o.pieces[o.piece_count++] = {static_cast<const std::byte*>(o.source) + row.source_first * size, row.source_rows,
                                     0, k};
        continue;
      }
      uint64_t at = row.source_first;
      do {
        for (; at == before + b_.shapes[tensor].elements() && tensor + 1 < u.first_tensor + u.tensors; ++tensor)
          before += b_.shapes[tensor].elements();
        const tensor_view& t = tensors_[tensor];
        const uint64_t stop = std::min(end, before + b_.shapes[tensor].elements());
        const std::byte* const values = static_cast<const std::byte*>(t.values) + (at - before) * size;
        if (o.sums)
          o.sums[o.piece_count] = {values, residual_of(t.state) + (at - before), may_fail_ ? o.undo + at : nullptr};
        o.pieces[o.piece_count++] = {o.sums ? nullptr : values, stop - at, static_cast<uint32_t>(at - row.source_first),
                                     k};
        at = stop;
      } while (at < end);
    }
  }

  static const void* load_sums(void* self, size_t piece, uint64_t at, uint32_t n, select_load what, void* room) {
    const auto& [u, o] = *static_cast<const sums_source*>(self);
    const summed& s = o->sums[piece];
    const std::byte* const g = s.g + at * value_size(u->dtype);
    float* m = s.m + at;
    if (what == select_load::hint) {
      __builtin_prefetch(g);
      __builtin_prefetch(m);
      __builtin_prefetch(m + n);
      return nullptr;
    }
    float few[64];
    if (what == select_load::peek) {
      accumulate(u->dtype, g, nullptr, 0, 1, beta(*u), gamma(*u), m, n, few);
      m = few;
    }
    if (what == select_load::first)
      advance_at(cpu(), u->dtype)(g, m, n, beta(*u), gamma(*u), s.undo ? s.undo + at : nullptr,
                                  u->universe >= undo_streams);
    if (u->dtype == DR_F32 && m != few) return m;
    if (u->dtype == DR_F32)
      std::memcpy(room, few, n * sizeof(float));
    else
      round_values(u->dtype, m, n, room);
    return room;
  }
  static float* place_of_sums(void* self, size_t piece) {
    return static_cast<const sums_source*>(self)->o->sums[piece].m;
  }
  static float beta(const unit& u) { return static_cast<float>(u.method->feedback.value(residual_beta)); }
  static float gamma(const unit& u) { return static_cast<float>(u.method->feedback.value(residual_gamma)); }

  // The values to select from where they are not the caller's: sorted, or with what earlier steps left.
  dr_status load_source(size_t i) {
    const unit& u = b_.units[i];
    unit_work& o = w_.units[i];
    const tensor_view& t = tensors_[u.first_tensor];
    const bool sparse = b_.shapes[u.first_tensor].sparse();
    o.source = u.width == 1 ? nullptr : t.values;
    o.rows = u.universe;
    if (sparse) {
      if (sort_indices(t.index_dtype, t.indices, t.count, u.universe, t.flags & DR_TENSOR_SUM_DUPLICATES, o.entries,
                       o.error)) {
        prefix(o.error, "tensor %u: ", u.first_tensor);
        o.error.tensor = u.first_tensor;
        return o.error.code;
      }
      o.rows = gather_entries(u.dtype, u.width, t.values, o.entries, t.count, o.indices, o.buffer);
      o.source = o.buffer;
    }
    if (!o.acc) return DR_OK;
    accumulate(u.dtype, sparse ? o.source : t.values, sparse ? o.indices : nullptr, o.rows, u.width, beta(u), gamma(u),
               residual_of(t.state), u.universe * u.width, o.acc);
    if (o.rounded) round_values(u.dtype, o.acc, u.universe * u.width, o.rounded);
    o.source = o.rounded ? o.rounded : o.acc;
    o.rows = u.universe;
    return DR_OK;
  }

  // Calls f(tensor, first element in the unit, elements) for each tensor of a unit.
  template <class F>
  void each_part(const unit& u, F&& f) const {
    uint64_t first = 0;
    for (uint32_t k = u.first_tensor; k < u.first_tensor + u.tensors; ++k) {
      f(k, first, b_.shapes[k].elements());
      first += b_.shapes[k].elements();
    }
  }

  // What of the source is a segment's.
  void set_source(const unit_work& o, const unit& u, uint32_t k) {
    const batch_row& r = b_.rows[k];
    row_work& row = w_.rows[k];
    row.fault = no_fault();
    row.source_first = r.first;
    row.source_rows = r.universe;
    if (!u.sparse) return;
    const uint64_t* const end = o.indices + o.rows;
    const uint64_t* const low = std::lower_bound(static_cast<const uint64_t*>(o.indices), end, r.first);
    row.source_first = static_cast<uint64_t>(low - o.indices);
    row.source_rows = static_cast<uint64_t>(std::lower_bound(low, end, r.first + r.universe) - low);
  }

  // Without selecting: a sparse source as it is; of rows of a dense one, those that are not zeros.
  void split_row(const unit_work& o, const unit& u, uint32_t k) {
    set_source(o, u, k);
    row_work& row = w_.rows[k];
    const uint64_t bytes = row_bytes(k), first = row.source_first;
    if (u.sparse) {
      row.positions = nullptr;
      row.support = o.support + first;
      row.kept = static_cast<std::byte*>(o.buffer) + first * bytes;
      row.count = row.told = row.source_rows;
      read_support(o, k);
      return;
    }
    const void* const values = static_cast<const std::byte*>(o.source) + first * bytes;
    row.positions = row.support = o.kept.positions + first;
    row.kept = static_cast<std::byte*>(o.kept.kept) + first * bytes;
    row.count = row.told = compact_rows(u.dtype, values, row.source_rows, u.width, row.positions);
    gather(bytes, values, row.positions, row.count, row.kept);
  }

  // Where positions in a sparse source are in the segment.
  void read_support(const unit_work& o, uint32_t k) {
    const row_work& row = w_.rows[k];
    const uint64_t* const indices = o.indices + row.source_first;
    for (uint64_t i = 0; i < row.count; ++i)
      row.support[i] = static_cast<uint32_t>(indices[row.positions ? row.positions[i] : i] - b_.rows[k].first);
  }

  // Values of the source at ascending positions of a segment; nullptr: all of them.
  void gather_source(size_t i, const uint32_t* positions, uint64_t n, void* out) const {
    const unit& u = b_.units[b_.rows[i].unit];
    const unit_work& o = w_.units[b_.rows[i].unit];
    const uint64_t bytes = row_bytes(i);
    if (o.source) {
      const auto* from = static_cast<const std::byte*>(o.source) + w_.rows[i].source_first * bytes;
      if (n && !positions)
        std::memcpy(out, from, n * bytes);
      else
        gather(bytes, from, positions, n, out);
      return;
    }
    uint64_t done = 0;
    for (uint32_t p = 0; p < o.piece_count; ++p) {
      const select_piece& piece = o.pieces[p];
      if (piece.range != i - u.first_row) continue;
      auto* const to = static_cast<std::byte*>(out);
      if (!positions) {
        if (o.sums && u.dtype != DR_F32)
          round_values(u.dtype, o.sums[p].m, piece.n, to + done * bytes);
        else if (piece.n)
          std::memcpy(to + done * bytes, o.sums ? static_cast<const void*>(o.sums[p].m) : piece.values,
                      piece.n * bytes);
        done += piece.n;
        continue;
      }
      for (; done < n && positions[done] - piece.position < piece.n; ++done) {
        const uint64_t at = positions[done] - piece.position;
        if (o.sums && u.dtype == DR_F32)
          std::memcpy(to + done * bytes, o.sums[p].m + at, bytes);
        else if (o.sums)
          round_values(u.dtype, o.sums[p].m + at, 1, to + done * bytes);
        else
          std::memcpy(to + done * bytes, static_cast<const std::byte*>(piece.values) + at * bytes, bytes);
      }
    }
  }

  // ---- streams ----------------------------------------------------------------------------------------------

  // Calls add(row) for the rows of a plan that have a stream to code.
  template <class F>
  void each_coded(uint32_t plan, F&& add) {
    w_.jobs.n = 0;
    for (size_t i = 0; i < b_.rows.size(); ++i)
      if (w_.rows[i].plan == plan && is_coded(i)) add(i);
  }
  bool is_coded(size_t i) const {
    return w_.rows[i].count && !w_.rows[i].fault.code && !w_.units[b_.rows[i].unit].dense_fallback;
  }

  dr_status choose_index(size_t i, uint32_t& chosen) {
    const batch_row& r = b_.rows[i];
    row_work& row = w_.rows[i];
    const dr_exec exec = run_.exec();
    uint64_t least = ~uint64_t{0};
    for (uint32_t k = 0; k < r.choices.size() / r.value_choices; ++k) {
      const stage& s = b_.wire[r.choices[k * r.value_choices].plan].index().front();
      const dr_job job = job_of(i, DR_STREAM_INDEX, row.support, r.count_max, &row.count, 4 * r.count_max);
      const dr_params params = s.params();
      uint64_t bytes = 0;
      if (s.codec->cpu->cost(&exec, &params, &job, 1, &bytes) || row.fault.code)
        return fail(error_, DR_E_INTERNAL, "%s does not know its cost", s.codec->name);
      if (bytes >= least) continue;
      least = bytes;
      chosen = k;
    }
    return DR_OK;
  }

  // Each is tried. One that a row's values are nothing for (they are not finite, say) is passed over.
  dr_status choose_value(size_t i, uint32_t& chosen) {
    const batch_row& r = b_.rows[i];
    row_work& row = w_.rows[i];
    const bool finite = is_finite(i);
    row.fault = no_fault();
    const uint64_t bytes = row.told * row_bytes(i);
    for (uint32_t k = 0; k < r.value_choices; ++k) {
      const stage_list& list = b_.wire[r.choices[k].plan].value();
      if (!finite && list.has(DR_NEEDS_FINITE)) continue;
      dr_job job = job_of(i, DR_STREAM_VALUE, row.kept, r.support_max, &row.told, r.support_max * row_bytes(i));
      row.trial.need = r.choices[k].need[section_value];
      w_.jobs.n = 0;
      w_.jobs.add(job, row.trial);
      if (const dr_status s = encode_list(list)) return s;
      const bool refused = row.fault.code;
      row.fault = no_fault();
      if (refused || (row.value_chosen && row.trial.size >= row.slots[section_value].size)) continue;
      if (!list.exact()) {
        job = job_of(i, DR_STREAM_VALUE, nullptr, row.told, nullptr, 0);
        job.out = row.seen;
        job.out_capacity = bytes;
        job.out_size = &row.decoded_size;
        stream_slot back = row.trial;
        (void)list_needs(list, {r.universe, row.told, plan_of(i).dtype, plan_of(i).width}, back.need);
        w_.jobs.n = 0;
        w_.jobs.add(job, back);
        if (decode_chain(list, run_, w_.jobs) || row.fault.code)
          return fail(error_, DR_E_INTERNAL, "%s does not decode what it encoded", list.front().codec->name);
        if (!meets_error(i)) continue;
      }
      std::swap(row.trial, row.slots[section_value]);
      row.value_chosen = true;
      chosen = k;
    }
    return DR_OK;
  }

  // ‖s − ŝ‖ <= error · ‖s‖, in sums of one order.
  bool meets_error(size_t i) const {
    const row_work& row = w_.rows[i];
    const double error = b_.units[b_.rows[i].unit].method->value_error;
    return with_value_type(plan_of(i).dtype, [&](auto type) {
      using T = decltype(type);
      const auto *v = static_cast<const typename T::bits*>(row.kept),
                 *w = static_cast<const typename T::bits*>(row.seen);
      double norm = 0, rest = 0;
      for (uint64_t k = 0; k < row.told * plan_of(i).width; ++k) {
        const double x = double{T::to_f32(v[k])}, d = x - double{T::to_f32(w[k])};
        norm += x * x;
        rest += d * d;
      }
      return rest <= error * error * norm;
    });
  }

  dr_job job_of(size_t i, uint32_t stream, const void* in, uint64_t count_max, const uint64_t* count, uint64_t in_max) {
    row_work& row = w_.rows[i];
    dr_job job = shape_job({b_.rows[i].universe, count_max, plan_of(i).dtype, plan_of(i).width});
    job.count = count;
    job.in = in;
    job.in_max = in_max;
    job.shared_key = row.shared_key;
    job.private_key = row.private_key;
    row.fault.stream = stream;
    job.fault = &row.fault;
    return job;
  }

  void add_job(size_t i, const dr_job& job, section s) {
    w_.selected[w_.jobs.n] = static_cast<uint32_t>(i);
    w_.jobs.add(job, w_.rows[i].slots[s]);
  }

  void keep_support(uint32_t p) {
    each_coded(p, [&](size_t i) { w_.rows[i].told = w_.rows[i].count; });
  }

  dr_status index(uint32_t p) {
    trace_span span(call_.trace, call_.trace_user, "index");
    const wire_plan& plan = b_.wire[p];
    each_coded(p, [&](size_t i) {
      row_work& row = w_.rows[i];
      if (plan.index().whole() && !row.tell) {
        row.told = b_.rows[i].universe;
        row.slots[section_index].size = 0;
        return;
      }
      dr_job job = job_of(i, DR_STREAM_INDEX, plan.carries_order ? row.keys : row.support, b_.rows[i].count_max,
                          &row.count, 4 * b_.rows[i].count_max);
      if (plan.replaces_support()) {
        job.tell = row.tell;
        job.tell_capacity = b_.rows[i].support_max;
        job.tell_count = &row.told;
      }
      add_job(i, job, section_index);
    });
    if (const dr_status s = encode_list(plan.index())) return s;
    for (size_t j = 0; j < w_.jobs.n; ++j) {
      row_work& row = w_.rows[w_.selected[j]];
      span.bytes += row.slots[section_index].size;
      if (plan.replaces_support() && row.fault.code == DR_OK && row.told == 0)
        return fail(error_, DR_E_INTERNAL,
                    "%s broke its contract while encoding: it tells no support of %" PRIu64 " indices",
                    plan.index().front().codec->name, row.count);
      if (!plan.replaces_support() || row.fault.code != DR_E_CAPACITY || row.slots[section_index].need.tell_suffices)
        continue;
      // More support than the plan allows: the keys go raw.
      row.fault = no_fault();
      row.told = row.count;
      w_.wire[w_.selected[j]].mode = mode_raw_index;
    }
    return DR_OK;
  }

  // Values at the support that decode will give: of the source if the plan says so, else what was selected, in order.
  void regather(uint32_t p) {
    trace_span span(call_.trace, call_.trace_user, "regather");
    each_coded(p, [&](size_t i) {
      if (!replaced(i)) return;
      const unit& u = b_.units[b_.rows[i].unit];
      const unit_work& o = w_.units[b_.rows[i].unit];
      const row_work& row = w_.rows[i];
      const uint64_t bytes = row_bytes(i);
      span.bytes += row.told * bytes;
      if (!u.method->regather) {
        const uint64_t common = std::min(row.told, row.count);
        if (common) std::memcpy(row.sent, row.kept, common * bytes);
        std::memset(static_cast<std::byte*>(row.sent) + common * bytes, 0, (row.told - common) * bytes);
      } else if (u.sparse) {
        gather_known(bytes, o.indices + row.source_first,
                     static_cast<const std::byte*>(o.source) + row.source_first * bytes, row.source_rows,
                     b_.rows[i].first, row.tell, row.told, row.sent);
      } else {
        gather_source(i, plan_of(i).index().whole() ? nullptr : row.tell, row.told, row.sent);
      }
    });
  }

  dr_status value(uint32_t p) {
    trace_span span(call_.trace, call_.trace_user, "value");
    const wire_plan& plan = b_.wire[p];
    const bool lossy = plan.value().has(DR_NEEDS_FINITE);
    each_coded(p, [&](size_t i) {
      row_work& row = w_.rows[i];
      if (row.value_chosen) return;
      row.fault.stream = DR_STREAM_VALUE;
      if (lossy && !is_finite(i)) return;
      dr_job job =
          job_of(i, DR_STREAM_VALUE, sent(i), b_.rows[i].support_max, &row.told, b_.rows[i].support_max * row_bytes(i));
      job.tell = row.order;
      job.tell_capacity = row.order ? b_.rows[i].support_max : 0;
      job.tell_count = &row.order_told;
      add_job(i, job, section_value);
    });
    if (const dr_status s = encode_list(plan.value())) return s;
    for (size_t j = 0; j < w_.jobs.n; ++j) {
      row_work& row = w_.rows[w_.selected[j]];
      span.bytes += row.slots[section_value].size;
      if (!row.order || row.fault.code) continue;
      if (row.order_told != row.told)
        return fail(error_, DR_E_INTERNAL, "%s told an order of %" PRIu64 " for %" PRIu64 " values",
                    plan.value().front().codec->name, row.order_told, row.told);
      const uint32_t* support = told(w_.selected[j]);
      for (uint64_t k = 0; k < row.told; ++k) row.keys[k] = support ? support[row.order[k]] : row.order[k];
    }
    return DR_OK;
  }

  // False, and a fault, if a value is not finite.
  bool is_finite(size_t i) {
    row_work& row = w_.rows[i];
    return with_value_type(plan_of(i).dtype, [&](auto type) {
      using T = decltype(type);
      const auto* v = static_cast<const typename T::bits*>(sent(i));
      // (Signed numbers: SSE2 compares no others.)
      int32_t most = 0;
      const uint64_t n = row.told * plan_of(i).width;
      for (uint64_t k = 0; k < n; ++k) most = std::max(most, static_cast<int32_t>(magnitude<T>(v[k])));
      if (static_cast<uint32_t>(most) >= T::infinity) {
        uint64_t k = 0;
        while (magnitude<T>(v[k]) < T::infinity) ++k;
        const uint64_t at = b_.rows[i].first + (told(i) ? told(i)[k / plan_of(i).width] : k / plan_of(i).width);
        row.fault = unfinite(at, v[k], magnitude<T>(v[k]) == T::infinity);
        return false;
      }
      return true;
    });
  }

  dr_status order(uint32_t p) {
    trace_span span(call_.trace, call_.trace_user, "order");
    each_coded(p, [&](size_t i) {
      row_work& row = w_.rows[i];
      dr_job job = job_of(i, DR_STREAM_ORDER, row.order, b_.rows[i].support_max, &row.told, 4 * b_.rows[i].support_max);
      job.universe = row.told;
      add_job(i, job, section_order);
    });
    if (const dr_status s = encode_list(b_.wire[p].order())) return s;
    for (size_t j = 0; j < w_.jobs.n; ++j) span.bytes += w_.jobs.slots[j]->size;
    return DR_OK;
  }

  dr_status encode_list(const stage_list& list) {
    if (w_.jobs.n == 0) return DR_OK;
    const dr_status s = encode_chain(list, run_, w_.jobs);
    if (!s) return DR_OK;
    return fail(error_, s,
                "%s broke its contract while encoding: it returned an error, or wrote more than its `need` says",
                list.front().codec->name);
  }

  // ---- feedback ---------------------------------------------------------------------------------------------

  dr_status decode_sent(uint32_t p) {
    const stage_list& list = b_.wire[p].value();
    each_coded(p, [&](size_t i) {
      row_work& row = w_.rows[i];
      if (!row.decoded || w_.wire[i].mode == mode_dense) return;
      dr_job job = job_of(i, DR_STREAM_VALUE, nullptr, row.told, nullptr, 0);
      job.out = row.decoded;
      job.out_capacity = row.told * row_bytes(i);
      job.out_size = &row.decoded_size;
      row.decode_slot.data = row.slots[section_value].data;
      row.decode_slot.size = row.slots[section_value].size;
      // The bounds of what was encoded, for as many values as there are now: exact sizes depend on it.
      (void)list_needs(list, {b_.rows[i].universe, row.told, plan_of(i).dtype, plan_of(i).width}, row.decode_slot.need);
      w_.jobs.add(job, row.decode_slot);
    });
    if (w_.jobs.n == 0) return DR_OK;
    if (decode_chain(list, run_, w_.jobs))
      return fail(error_, DR_E_INTERNAL, "%s broke its contract while decoding: it returned an error",
                  list.front().codec->name);
    for (size_t j = 0; j < w_.jobs.n; ++j)
      if (w_.jobs.jobs[j].fault->code)
        return fail(error_, DR_E_INTERNAL, "%s does not decode what it encoded: %s", list.front().codec->name,
                    w_.jobs.jobs[j].fault->message);
    return DR_OK;
  }

  // What a row sends, as the receiver will see it.
  struct sent_values {
    const uint32_t* support;
    const void* values;
    uint64_t count;
    bool ascending;
  };
  sent_values sent_of(size_t i) const {
    const row_work& row = w_.rows[i];
    if (w_.wire[i].mode == mode_dense) return {row.support, row.kept, row.count, true};
    if (row.decoded) return {row.order ? row.keys : told(i), row.decoded, row.told, !row.order};
    return {told(i), sent(i), row.told, true};
  }

  uint64_t store_states(size_t i) {
    const unit& u = b_.units[i];
    const unit_work& o = w_.units[i];
    uint64_t bytes = 0;
    for (uint32_t tensor = u.first_tensor; tensor < u.first_tensor + u.tensors; ++tensor) {
      const uint64_t elements = b_.shapes[tensor].elements();
      const residual_state head{residual_state::magic_value, residual_state::version_value, elements};
      std::memcpy(tensors_[tensor].state, &head, sizeof head);
      bytes += residual_size(elements);
    }
    if (!o.acc) {
      for (uint32_t p = 0; p < o.piece_count; ++p) subtract(u, o, p);
      return bytes;
    }
    for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) {
      const sent_values s = sent_of(k);
      subtract_sent(u.dtype, s.support, s.values, s.count, u.width, o.acc + b_.rows[k].first * u.width);
    }
    std::memcpy(residual_of(tensors_[u.first_tensor].state), o.acc, 4 * u.universe * u.width);
    return bytes;
  }

  // What a piece sent leaves its state.
  void subtract(const unit& u, const unit_work& o, uint32_t p) {
    const select_piece& piece = o.pieces[p];
    float* const m = o.sums[p].m;
    const sent_values s = sent_of(u.first_row + piece.range);
    const auto* const values = static_cast<const std::byte*>(s.values);
    if (!s.ascending) {
      for (uint64_t i = 0; i < s.count; ++i)
        if (const uint64_t at = uint64_t{s.support[i]} - piece.position; at < piece.n)
          subtract_sent(u.dtype, nullptr, values + i * value_size(u.dtype), 1, 1, m + at);
      return;
    }
    const uint32_t* const end = s.support + s.count;
    const uint32_t* const from = std::lower_bound(s.support, end, piece.position);
    struct job {
      const unit* u;
      const uint32_t* support;
      const std::byte* values;
      uint64_t count;
      float* m;
      uint32_t position, taken_from;
    } job{&u,
          from,
          values + (from - s.support) * value_size(u.dtype),
          static_cast<uint64_t>(std::lower_bound(from, end, piece.position + piece.n) - from),
          m,
          piece.position,
          o.taken_from};
    static constexpr uint64_t block = 16384;
    const auto one = [](void* arg, size_t item, size_t) {
      const auto& j = *static_cast<const struct job*>(arg);
      const uint64_t first = item * block, n = std::min(block, j.count - first);
      if (j.taken_from)
        clear_sent(j.support + first, j.values + 4 * first, n, j.taken_from, j.m, j.position);
      else
        subtract_sent(j.u->dtype, j.support + first, j.values + first * value_size(j.u->dtype), n, 1, j.m, j.position);
    };
    pool_.run(static_cast<size_t>(ceil_div(job.count, block)), one, &job);
  }

  const batch& b_;
  const encode_call& call_;
  std::span<const tensor_view> tensors_;
  pool& pool_;
  work w_;
  stage_runner run_;
  dr_error& error_;
  bool may_fail_;
};

// To leave tensors to feedback, all must have it.
dr_status check_fit(const batch& b, dr_error& error) {
  for (const unit& u : b.units) {
    if (u.method->keeps_feedback()) continue;
    fail(error, DR_E_ARGUMENT, "tensor %u: DR_CALL_FIT leaves to feedback what does not fit, but its plan has none",
         u.first_tensor);
    error.tensor = u.first_tensor;
    return DR_E_ARGUMENT;
  }
  return DR_OK;
}

bool keeps_feedback(const batch& b) {
  return std::any_of(b.plans.begin(), b.plans.end(), [](const auto& p) { return p->keeps_feedback(); });
}

}  // namespace

uint64_t encode_workspace(const batch& b) {
  arena memory;
  take(memory, b);
  return memory.used();
}

dr_status encode(const batch& b, const encode_call& call, std::span<const tensor_view> tensors, pool& workers,
                 void* workspace, uint64_t workspace_size, uint8_t* frame, uint64_t capacity, encode_result& result,
                 dr_error& error) {
  result = {};
  if (!call.checked)
    if (const dr_status s = check_tensors(b, tensors, false, error)) return s;
  if (call.flags & DR_CALL_FIT)
    if (const dr_status s = check_fit(b, error)) return s;
  // Before anything is laid out in it: half a workspace has pointers to nothing.
  if (workspace_size < b.workspace || (!workspace && b.workspace))
    return fail(error, DR_E_ARGUMENT, "workspace: %" PRIu64 " bytes, but the batch needs %" PRIu64, workspace_size,
                b.workspace);
  arena memory(workspace, workspace_size);
  const work w = take(memory, b);
  if (w.states && !call.checked)
    if (const dr_status s = check_states_apart(b, tensors, w.states, error)) return s;

  encoder e(b, call, tensors, workers, w, capacity, error);
  uint64_t size = 0;
  const auto attempt = [&]() -> dr_status {
    if (const dr_status s = e.sparsify_and_split()) return s;
    if (const dr_status s = e.choose()) return s;
    if (const dr_status s = e.streams()) return s;
    if (const dr_status s = e.first_fault()) return s;
    e.choose_modes();
    if (const dr_status s = e.container(frame, capacity, size)) return s;
    return keeps_feedback(b) ? e.keep_feedback() : DR_OK;
  };
  if (const dr_status s = attempt()) {
    e.roll_back();
    return s;
  }
  result.size = size;
  result.kept = e.kept();
  return DR_OK;
}

}  // namespace dr
