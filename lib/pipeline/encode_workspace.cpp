// The workspace of an encode. The same code lays it out and measures it.
#include "patch/base_check.hpp"
#include "pipeline/encoding.hpp"

namespace dr {
namespace {

// Whether the gradient is added to a unit's residual in the state itself, while it is read; otherwise in a buffer,
// before.
bool sums_on_the_way(const batch& b, const unit& u) {
  return u.method->keeps_feedback() && u.width == 1 && !b.shapes[u.first_tensor].sparse();
}

// Whether the rows of a unit that is sent whole are contiguous, in the type in which they are sent.
bool lies_together(const batch& b, const unit& u) {
  return u.tensors == 1 && (u.dtype == DR_F32 || !sums_on_the_way(b, u));
}

// Bytes per worker, a multiple of the alignment.
uint64_t scratch_stride(const batch& b) { return round_up(b.scratch, arena::alignment); }

// Whether the call can fail after the gradient has been added to the states.
bool may_fail(const batch& b, const encode_call& call, uint64_t capacity) {
  const auto total = [](const wire_plan& p) {
    return p.index().total() && p.value().total() && (!p.order().count || p.order().total());
  };
  return capacity < b.layout[(call.flags & DR_CALL_TAG) != 0].frame_bound ||
         std::any_of(b.shapes.begin(), b.shapes.end(), [](const tensor_shape& s) { return s.sparse(); }) ||
         !std::all_of(b.wire.begin(), b.wire.end(), total);
}

}  // namespace

selected_rows selected_rows::lay_out(arena& memory, const batch& b) {
  const size_t units = b.units.size(), rows = b.rows.size();
  selected_rows out{};
  out.sources = {memory.allocate<unit_source>(units)};
  out.unsound = {memory.allocate<dr_error>(units)};
  out.source_rows = {memory.allocate<source_row>(rows)};
  out.sums = {memory.allocate<unit_sums>(units)};
  if (const uint64_t n = squares_max(b)) out.squares = memory.allocate<double>(n);
  out.units = {memory.allocate<selected_unit>(units)};
  out.rows = {memory.allocate<selected_row>(rows)};
  const bool patches = std::any_of(b.units.begin(), b.units.end(), [](const unit& u) { return u.patches(); });
  if (patches) {
    out.patched_units = {memory.allocate<patched_unit>(units)};
    out.patched_rows = {memory.allocate<patched_row>(rows)};
  }
  const bool real = !memory.measures();
  select_scratch scratch{};
  for (size_t i = 0; i < units; ++i) {
    const unit& u = b.units[i];
    const bound_sparsifier sparsifier = u.method->sparsifier();
    const uint64_t target = sparsifier.target(u.universe), row_bytes = uint64_t{u.width} * value_size(u.dtype);
    unit_source source{};
    unit_sums sums{};
    selected_unit selected{};
    patched_unit patched{};
    if (const tensor_shape& shape = b.shapes[u.first_tensor]; shape.sparse()) {
      source.entries = memory.allocate<sparse_entry>(shape.count);
      source.indices = memory.allocate<uint64_t>(shape.count);
      const uint64_t summed_bytes = u.method->keeps_feedback() ? 4 * uint64_t{u.width} : row_bytes;  // load_source: f32
      source.buffer = memory.allocate<std::byte>(shape.count * summed_bytes);
    }
    source.pieces = memory.allocate<select_piece>(u.tensors + u.rows);
    if (u.method->keeps_feedback()) {
      const bool velocity = u.method->feedback_rule().kind.is_velocity();
      if (sums_on_the_way(b, u)) {
        sums.pieces = memory.allocate<summed>(u.tensors + u.rows);
        sums.undo = memory.allocate<float>(u.universe);  // (Not used by a call that cannot fail: may_fail.)
        if (velocity) sums.undo_u = memory.allocate<float>(u.universe);
      } else {
        sums.acc = memory.allocate<float>(u.universe * u.width);
        if (u.dtype != DR_F32) sums.rounded = memory.allocate<std::byte>(u.universe * row_bytes);
        if (velocity) sums.acc_u = memory.allocate<float>(u.universe * u.width);
      }
    }
    if (u.sparse) selected.support = memory.allocate<uint32_t>(u.source_max);
    if (u.patches()) {
      patched.base_sums = memory.allocate<uint64_t>(base_chunks(u.universe * row_bytes));
      if (!u.whole) {
        selected.memory.positions = memory.allocate<uint32_t>(u.universe);
        selected.memory.values = memory.allocate<std::byte>(u.universe * row_bytes);
        patched.based = memory.allocate<std::byte>(u.universe * row_bytes);
        if (u.method->value[0].codec->traits & DR_NEEDS_HISTORY)
          patched.past = memory.allocate<uint8_t>(u.universe * u.width);
      }
    } else if (u.whole) {
      // Nothing is selected.
    } else if (u.width == 1) {
      selected.memory = select_memory::lay_out(memory, u.dtype, u.source_max, std::max(target, u.selected_max), u.rows);
      scratch.grow(u.source_max, target, b.workers > 1);
      selected.scratch = memory.allocate<std::byte>(sparsifier.scratch(u.universe, u.source_max));
    } else if (!u.sparse) {
      selected.memory.positions = memory.allocate<uint32_t>(u.source_max);
      selected.memory.values = memory.allocate<std::byte>(u.source_max * row_bytes);
    }
    if (!real) continue;
    out.sources[i] = source;
    out.sums[i] = sums;
    out.units[i] = selected;
    if (patches) out.patched_units[i] = patched;
  }
  for (size_t i = 0; i < rows; ++i) {
    const batch_row& r = b.rows[i];
    const unit& u = b.units[r.unit];
    selected_row row{};
    if (const uint32_t block = u.method->block; block != 1)
      row.blocks = memory.allocate<uint32_t>(ceil_div(r.count_max, block ? block : 2));
    if (u.whole && !u.patches() && !lies_together(b, u))
      row.copies = memory.allocate<std::byte>(r.support_max * u.width * value_size(u.dtype));
    if (!real) continue;
    out.rows[i] = row;
    if (patches) out.patched_rows[i] = {};
  }
  out.scratch = memory.allocate<select_scratch>(b.workers);
  for (uint32_t k = 0; k < b.workers; ++k) {
    const select_scratch part = scratch.lay_out(memory);
    if (real) out.scratch[k] = part;
  }
  return out;
}

streams streams::lay_out(arena& memory, const batch& b) {
  streams out{{memory.allocate<coded_row>(b.rows.size())},
              job_list::lay_out(memory, b.rows.size()),
              memory.allocate<uint32_t>(b.rows.size())};
  coded_row measured;
  for (size_t i = 0; i < b.rows.size(); ++i) {
    const batch_row& r = b.rows[i];
    const unit& u = b.units[r.unit];
    const wire_plan& wire = b.wire[r.plan];
    coded_row& row = memory.measures() ? measured : out.rows[i];
    row.support = row.order = row.keys = nullptr;
    row.values = nullptr;
    if (wire.replaces_support() && !wire.index().whole()) row.support = memory.allocate<uint32_t>(r.support_max);
    if (wire.replaces_support() && !u.patches() && !u.whole)
      row.values = memory.allocate<std::byte>(r.support_max * u.width * value_size(u.dtype));
    if (wire.value().has(DR_REORDERS)) {
      row.order = memory.allocate<uint32_t>(r.support_max);
      row.keys = memory.allocate<uint32_t>(r.support_max);
    }
    for (uint32_t s = 0; s < section_count; ++s)
      if (wire.lists[s].count) {
        row.slots[s].need = r.need[s];
        row.slots[s].lay_out(memory, wire.lists[s], false);
      }
  }
  return out;
}

framed framed::lay_out(arena& memory, const batch& b) {
  framed out{};
  out.rows = {memory.allocate<wire_row>(b.rows.size())};
  out.by_size = memory.allocate<uint32_t>(b.rows.size());
  if (!b.chooses()) return out;
  out.plans = memory.allocate<wire_plan>(b.wire.size());
  out.bounds = memory.allocate<row_bound>(b.rows.size());
  out.places = memory.allocate<uint32_t>(b.wire.size());
  out.table = memory.allocate<std::byte>(table_max(b));
  return out;
}

encode_work encode_work::lay_out(arena& memory, const batch& b) {
  encode_work w{};
  w.keys = {memory.allocate<draw_keys>(b.rows.size())};
  w.selected = selected_rows::lay_out(memory, b);
  w.chosen = {memory.allocate<chosen_row>(b.rows.size())};
  w.coded = streams::lay_out(memory, b);
  w.wire = framed::lay_out(memory, b);
  w.feedback = {{memory.allocate<fed_back_row>(b.rows.size())}, w.coded.jobs};
  w.scratch = memory.allocate<std::byte>(scratch_stride(b) * b.workers);
  if (const uint64_t n = states_of(b)) w.states = memory.allocate<state_range>(n);
  w.transformed = lay_out_transformed(memory, b);
  const bool real = !memory.measures();
  for (size_t i = 0; i < b.rows.size(); ++i) {
    const batch_row& r = b.rows[i];
    const unit& u = b.units[r.unit];
    const stage_list& value = b.wire[r.plan].value();
    const uint64_t bytes = r.support_max * u.width * value_size(u.dtype);
    const bool chooses_value = r.value_choices > 1;
    std::byte *seen = nullptr, *decoded = nullptr;
    if (chooses_value) {
      stream_slot trial{r.need[section_value]};
      trial.lay_out(memory, value, false);
      seen = memory.allocate<std::byte>(bytes);
      if (real) w.chosen[i].trial = trial;
    }
    if (u.method->keeps_residual() && (chooses_value || !value.exact())) {
      decoded = memory.allocate<std::byte>(bytes);
      stream_slot slot{r.need[section_value]};
      slot.lay_out(memory, value, true);
      if (real) w.feedback.rows[i].slot = slot;
    }
    if (!real) continue;
    w.chosen[i].seen = seen;
    w.feedback.rows[i].decoded = decoded;
  }
  return w;
}

void encode_work::begin(const batch& b, const encode_call& call, std::span<const tensor_view> tensors) {
  for (size_t i = 0; i < b.rows.size(); ++i) {
    const batch_row& r = b.rows[i];
    const unit& u = b.units[r.unit];
    wire_row& row = wire.rows[i] = {};
    row.plan = chosen[i].plan = r.plan;
    row.continues = r.continues;
    row.universe = r.universe;
    row.prefix = u.patches() ? patch_checks_size : 0;
    chosen[i].support_max = r.support_max;
    chosen[i].index = chosen[i].value = false;
    keys[i] = draw_keys::of(call, tensors[u.first_tensor], u.first_tensor, i - u.first_row);
  }
}

encoding::encoding(const batch& batch, const encode_call& of_call, std::span<const tensor_view> callers,
                   std::span<const tensor_view> list, pool& crew, const encode_work& work, uint64_t capacity,
                   dr_error& to)
    : b(batch),
      call(of_call),
      given(callers),
      tensors(list),
      workers(crew),
      w(work),
      error(to),
      may_fail(dr::may_fail(batch, of_call, capacity)),
      run{work.scratch, scratch_stride(batch), &crew} {}

uint64_t encode_workspace(const batch& b) {
  arena memory;
  encode_work::lay_out(memory, b);
  return memory.used();
}

}  // namespace dr
