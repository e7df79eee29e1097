// exchange=owner on a device: an owner adds up the frames of its range and encodes the sum; all merge the sums.
#include "api/run_encode.hpp"
#include "pipeline/launch_own.hpp"
#include "primitive/rng.hpp"
#include "sender/rank_sender.hpp"

namespace dr {

dr_status sender::sum_device(unit& u, const dr_call& call, std::span<const dr_bytes> slots, void* slot,
                             dr_sent& result) {
  device_unit& d = *u.device;
  const size_t frames = u.frames.size(), own = options_.rank;
  uint64_t stride = 0;
  if (const dr_status s = check_device_slots(u, u.room, slots, call.step, stride)) return s;
  if (reinterpret_cast<uintptr_t>(slot) % 16)
    return fail(c_.error, DR_E_ARGUMENT, "slot: not aligned to 16 bytes on the device");
  if (const dr_status s = side_->begin()) return s;
  const device_side::turn turn{*side_};
  settle_slots::args settle = settle_args(u, call, slots, stride, d.sum_report_at, frames, d.bounds_at);
  request_parts(u, own, slots);
  for (size_t f = 0; f < frames; ++f)
    for (size_t k = 0; k < d.part(f, own).pieces.size(); ++k) d.part(f, own).outs[k].values = d.sum(f, own).sums[k];
  dr_result* const judged = results_at(d.sum_report_at + sizeof(slot_report));
  if (const dr_status s = judge_device(u, own, judged, settle.gate, settle.gates)) return s;
  device_queue queue = side_->queue();
  if (const dr_status s = side_->launched(launch<settle_slots>(queue.exec(), 1, settle))) return s;
  if (const dr_status s = deliver_device(u, own)) return s;
  if (const dr_status s = encode_sums(u, call, slot)) return s;
  seal_sums::args args{};
  args.slot = static_cast<uint8_t*>(slot);
  args.made = results_at(d.sum_results_at);
  args.judged = judged;
  args.counts = side_->counts();
  args.report = settle.report;
  args.prefixes = settle.prefixes;
  args.bounds = settle.bounds;
  args.tag = settle.tag;
  args.step = call.step;
  args.ranks = options_.ranks;
  args.own = options_.rank;
  args.frames = static_cast<uint32_t>(frames);
  for (size_t f = 0; f < frames; ++f) args.exist |= uint64_t{!d.part(f, own).empty()} << f;
  if (const dr_status s = side_->launched(launch<seal_sums>(queue.exec(), 1, args))) return s;
  result.size = u.sum_room.bound();
  return side_->end();
}

// Encodes the sums, rounded to the type of their tensors. Without sums they are zeros, and the states stay as they were.
dr_status sender::encode_sums(unit& u, const dr_call& call, void* slot) {
  device_unit& d = *u.device;
  device& where = *side_->where().where;
  outputs_.clear();
  std::vector<state_job>& states = state_jobs_;
  states.clear();
  d.summed = call.step;
  for (size_t f = 0; f < u.frames.size(); ++f) {
    device_part& p = d.sum(f, options_.rank);
    for (size_t k = 0; k < p.pieces.size(); ++k) {
      const uint32_t dtype = tensors_[p.pieces[k].tensor].dtype;
      void* const values = const_cast<void*>(p.views[k].values);
      if (p.pieces[k].rows)
        outputs_.push_back({dtype == DR_F32 ? nullptr : p.sums[k], values, p.pieces[k].rows, 0, dtype});
      if (!p.copies[k]) continue;
      const uint64_t size = p.state_bytes(k);
      if (const dr_status s =
              side_->launched(where.copy(side_->where().stream, p.copies[k], p.views[k].state, align(size))))
        return s;
      states.push_back({static_cast<uint64_t*>(p.views[k].state), reinterpret_cast<const uint64_t*>(p.copies[k]),
                        align(size) / sizeof(uint64_t), 0, 0});
    }
  }
  if (const dr_status s = finish_values(d.sum_report_at, true)) return s;
  for (size_t f = 0; f < u.frames.size(); ++f) {
    const device_part& p = d.sum(f, options_.rank);
    if (p.empty()) continue;
    encode_request r;
    r.call = {call.step, call.seed, combine(call.private_seed, sum_draws)};
    r.frame = static_cast<uint8_t*>(slot) + d.sum_at[f];
    r.capacity = u.sum_bounds[f];
    r.result = results_at(d.sum_results_at) + f;
    if (const dr_status s = encode_part(u, p, r)) return s;
  }
  device_queue queue = side_->queue();
  const auto* const report = reinterpret_cast<const slot_report*>(side_->memory() + d.sum_report_at);
  return side_->launched(launch_own<return_states>(
      queue, states, [](const state_job& j) { return ceil_div(j.words, state_tile); },
      [&](auto& args) { args.report = report; }));
}

// Every range has one frame, of its owner. All gates close together, by the report.
dr_status sender::merge_sums(unit& u, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result) {
  device_unit& d = *u.device;
  uint64_t stride = 0;
  if (const dr_status s = check_device_slots(u, u.sum_room, slots, call.step, stride)) return s;
  if (const dr_status s = side_->begin()) return s;
  const device_side::turn turn{*side_};
  settle_slots::args settle = settle_args(u, call, slots, stride, d.report_at, d.checks(), d.sum_bounds_at);
  settle.counts = side_->counts();
  device_queue queue = side_->queue();
  collect_gates::args gates{settle.slots, stride, settle.tag, settle.report, 0, 0, {}};
  const auto flush = [&] {
    const dr_status s = gates.gates ? side_->launched(launch<collect_gates>(queue.exec(), 1, gates)) : dr_status{DR_OK};
    gates.gates = 0;
    return s;
  };
  requests_.assign(d.sums.size(), {});
  judged_.assign(d.sums.size(), {});
  frames_.resize(d.sums.size());
  for (size_t i = 0; i < d.sums.size(); ++i) {
    device_part& p = *d.sums[i];
    const size_t f = i / d.ranges, owner = i % d.ranges;
    if (p.empty()) continue;
    bind_sum_outputs(p);
    frames_[i] = {static_cast<const std::byte*>(slots[owner].data) + d.sum_at[f], u.sum_bounds[f]};
    requests_[i].frames = std::span(frames_).subspan(i, 1);
    if (const dr_status s = judge_part(p, requests_[i], judged_[i], results_at(d.report_at + sizeof(slot_report)) + i))
      return s;
    gates.gate[gates.gates++] = gate_of(p, judged_[i], owner * stride + d.sum_at[f]);
    if (gates.gates < gates_max) continue;
    if (const dr_status s = flush()) return s;
  }
  if (const dr_status s = flush()) return s;
  if (const dr_status s = side_->launched(launch<settle_slots>(queue.exec(), 1, settle))) return s;
  for (size_t i = 0; i < d.sums.size(); ++i) {
    if (d.sums[i]->empty()) continue;
    static_assert(offsetof(slot_report, failed) == offsetof(gate_state, failed));
    judged_[i].gate = reinterpret_cast<gate_state*>(settle.report);
    if (const dr_status s = deliver_part(*d.sums[i], requests_[i], judged_[i])) return s;
  }
  return finish_merge(u, call.step, u.sum_room.bound(), result);
}

void sender::bind_sum_outputs(device_part& p) {
  p.outs.clear();
  for (const piece& of : p.pieces) {
    tensor_out& o = p.outs.emplace_back(outs_[of.tensor]);
    o.universe = of.rows;
    o.values = static_cast<float*>(o.values) + of.first;
  }
}

// The states of the sums, as they were before the step.
dr_status sender::return_sums(unit& u) {
  device_unit& d = *u.device;
  if (d.summed != u.step) return DR_OK;
  for (size_t f = 0; f < u.frames.size(); ++f) {
    const device_part& p = d.sum(f, options_.rank);
    for (size_t k = 0; k < p.pieces.size(); ++k)
      if (p.copies[k])
        if (const dr_status s = side_->launched(side_->where().where->copy(side_->where().stream, p.views[k].state,
                                                                           p.copies[k], align(p.state_bytes(k)))))
          return s;
  }
  d.summed = device_unit::none;
  return DR_OK;
}

}  // namespace dr
