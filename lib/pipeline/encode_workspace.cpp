// The workspace of an encode. The same code lays it out and measures it.
#include "patch/base_check.hpp"
#include "pipeline/draw_keys.hpp"
#include "pipeline/encoding.hpp"

namespace dr {
namespace {

// Whether the gradient is added to a unit's residual in the state itself, while it is read; otherwise in a buffer,
// before.
bool sums_on_the_way(const batch& b, const unit& u) {
  return u.method->keeps_feedback() && u.width == 1 && !b.shapes[u.first_tensor].sparse();
}

// Whether each row of a unit that is sent whole lies together, in the type in which it is sent.
bool lies_together(const batch& b, const unit& u) {
  return u.tensors == 1 && (u.dtype == DR_F32 || !sums_on_the_way(b, u));
}

// Of a worker, so that each begins aligned.
uint64_t scratch_stride(const batch& b) { return round_up(b.scratch, arena::alignment); }

// Whether anything can go wrong once the gradient has joined the states.
bool may_fail(const batch& b, const encode_call& call, uint64_t capacity) {
  const auto total = [](const wire_plan& p) {
    return p.index().total() && p.value().total() && (!p.order().count || p.order().total());
  };
  return capacity < b.layout[(call.flags & DR_CALL_TAG) != 0].frame_bound ||
         std::any_of(b.shapes.begin(), b.shapes.end(), [](const tensor_shape& s) { return s.sparse(); }) ||
         !std::all_of(b.wire.begin(), b.wire.end(), total);
}

}  // namespace

encode_work encode_work::take(arena& memory, const batch& b) {
  encode_work w{};
  w.units = memory.take<unit_work>(b.units.size());
  w.rows = memory.take<row_work>(b.rows.size());
  w.wire = memory.take<wire_row>(b.rows.size());
  w.jobs = job_list::take(memory, b.rows.size());
  w.selected = memory.take<uint32_t>(b.rows.size());
  w.scratch = memory.take<std::byte>(scratch_stride(b) * b.workers);
  if (const uint64_t n = states_of(b)) w.states = memory.take<state_range>(n);
  if (const uint64_t n = squares_max(b)) w.squares = memory.take<double>(n);
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
    const bound_sparsifier sparsifier = u.method->sparsifier();
    const uint64_t target = sparsifier.target(u.universe);
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
      if (u.method->feedback_rule().kind.is_velocity()) o.acc_u = memory.take<float>(u.universe * u.width);
    }
    o.pieces = memory.take<select_piece>(u.tensors + u.rows);
    if (sums_on_the_way(b, u)) {
      o.sums = memory.take<summed>(u.tensors + u.rows);
      o.undo = memory.take<float>(u.universe);  // (Never touched by a call that cannot fail: may_fail.)
      if (u.method->feedback_rule().kind.is_velocity()) o.undo_u = memory.take<float>(u.universe);
    }
    if (u.sparse) o.support = memory.take<uint32_t>(u.source_max);
    if (u.patches()) {
      o.base_sums = memory.take<uint64_t>(base_chunks(u.universe * row_bytes));
      if (!u.whole) {
        o.kept.positions = memory.take<uint32_t>(u.universe);
        o.kept.kept = memory.take<std::byte>(u.universe * row_bytes);
        o.based = memory.take<std::byte>(u.universe * row_bytes);
        if (u.method->value[0].codec->traits & DR_NEEDS_HISTORY) o.past = memory.take<uint8_t>(u.universe * u.width);
      }
    } else if (u.whole) {
      // Nothing is selected.
    } else if (u.width == 1) {
      o.kept = select_memory::take(memory, u.dtype, u.source_max, std::max(target, u.kept_max), u.rows);
      scratch.grow(u.source_max, target, b.workers > 1);
      o.scratch = memory.take<std::byte>(sparsifier.scratch(u.universe, u.source_max));
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
    if (const uint32_t block = u.method->block; block != 1)
      o.blocks = memory.take<uint32_t>(ceil_div(r.count_max, block ? block : 2));
    if (wire.replaces_support()) {
      if (!wire.index().whole()) o.tell = memory.take<uint32_t>(r.support_max);
      if (!u.patches() && (!u.whole || !lies_together(b, u)))
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
    if (u.method->keeps_residual() && (chooses_value || !wire.value().exact())) {
      o.decoded = memory.take<std::byte>(r.support_max * row_bytes);
      o.decode_slot = stream_slot::take(memory, wire.value(), r.need[section_value], true);
    }
    if (real) w.rows[i] = o;
  }
  return w;
}

encoding::encoding(const batch& batch, const encode_call& of_call, std::span<const tensor_view> list, pool& crew,
                   const encode_work& work, uint64_t capacity, dr_error& said)
    : b(batch),
      call(of_call),
      tensors(list),
      workers(crew),
      w(work),
      error(said),
      may_fail(dr::may_fail(batch, of_call, capacity)),
      norm(0),
      run{work.scratch, scratch_stride(batch), &crew} {
  for (size_t i = 0; i < b.rows.size(); ++i) {
    const batch_row& r = b.rows[i];
    const unit& u = b.units[r.unit];
    w.wire[i] = wire_row{};
    w.wire[i].plan = r.plan;
    w.wire[i].continues = r.continues;
    w.wire[i].universe = r.universe;
    w.wire[i].prefix = u.patches() ? patch_checks_size : 0;
    const draw_keys keys = draw_keys::of(call, tensors[u.first_tensor], u.first_tensor, i - u.first_row);
    w.rows[i].plan = r.plan;
    w.rows[i].support_max = r.support_max;
    w.rows[i].index_chosen = w.rows[i].value_chosen = false;
    w.rows[i].shared_key = keys.shared;
    w.rows[i].private_key = keys.own;
  }
}

uint64_t encode_workspace(const batch& b) {
  arena memory;
  encode_work::take(memory, b);
  return memory.used();
}

}  // namespace dr
