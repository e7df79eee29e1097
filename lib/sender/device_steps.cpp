// The steps of a unit of frames on a device. Each enqueues, and waits for nothing; dr_sender_check reads the verdicts.
#include <algorithm>
#include <cinttypes>

#include "api/run_encode.hpp"
#include "pipeline/launch_own.hpp"
#include "sender/rank_sender.hpp"

namespace dr {

dr_status sender::encode_device(unit& u, const dr_call& call, void* slots, dr_sent& result) {
  device_unit& d = *u.device;
  if (d.pending != device_unit::none && d.pending != call.step)
    return fail(c_.error, DR_E_ARGUMENT, "step %" PRIu64 ": call dr_sender_check for it before the next encode",
                d.pending);
  if (reinterpret_cast<uintptr_t>(slots) % 16)
    return fail(c_.error, DR_E_ARGUMENT, "slots: not aligned to 16 bytes on the device");
  if (const dr_status s = side_->begin()) return s;
  const device_side::turn turn{*side_};
  u.step = call.step;
  d.sent = static_cast<std::byte*>(slots);
  d.is_back = false;
  d.summed = device_unit::none;
  const size_t frames = u.frames.size();
  auto* const results = reinterpret_cast<dr_result*>(side_->memory() + d.results_at);
  for (size_t slot = 0; slot < d.ranges; ++slot)
    for (size_t f = 0; f < frames; ++f) {
      device_part& p = d.part(f, slot);
      if (p.empty()) continue;
      bind_device(u, p);
      encode_request r;
      r.call = {call.step, call.seed, call.private_seed};
      r.frame = static_cast<uint8_t*>(slots) + slot * u.room.bound() + d.at[f];
      r.capacity = u.bounds[f];
      r.result = results + slot * frames + f;
      if (const dr_status s = encode_part(u, p, r)) return s;
    }
  const seal_slots::args args{static_cast<uint8_t*>(slots),
                              results,
                              side_->counts(),
                              reinterpret_cast<slot_report*>(side_->memory() + d.report_at),
                              u.room.bound(),
                              tag_of(u, call.step),
                              call.step,
                              static_cast<uint32_t>(d.ranges),
                              static_cast<uint32_t>(frames)};
  device_queue queue = side_->queue();
  if (const dr_status s = side_->launched(launch<seal_slots>(queue.exec(), 1, args))) return s;
  result.size = u.room.bound();
  return side_->end();
}

dr_status sender::encode_part(const unit& u, const device_part& p, encode_request& r) {
  r.where = side_->where();
  r.call.tag = tag_of(u, r.call.step);
  r.call.flags = DR_CALL_TAG | DR_CALL_STATUS_FRAME;
  encode_result made;
  const dr_status s = encode_placed(c_, *p.batch, r, p.views, workspace_, workspace_size_, made);
  if (s) name_tensor(p.pieces);
  return s;
}

// Where the slots of the ranks are: equally spaced, as one collective writes them.
dr_status sender::check_device_slots(const unit& u, const slot_room& room, std::span<const dr_bytes> slots,
                                     uint64_t step, uint64_t& stride) {
  const device_unit& d = *u.device;
  if (slots.size() != options_.ranks)
    return fail(c_.error, DR_E_ARGUMENT, "slots: %zu; the sender is one of %u ranks", slots.size(), options_.ranks);
  const auto at = [&](size_t i) { return reinterpret_cast<uintptr_t>(slots[i].data); };
  stride = slots.size() > 1 ? at(1) - at(0) : room.bound();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].data || slots[i].size < room.bound()) {
      fail(c_.error, DR_E_ARGUMENT, "slots: %zu bytes; a slot of this unit has %" PRIu64 " on a device",
           slots[i].data ? slots[i].size : 0, room.bound());
      name_rank(i);
      return DR_E_ARGUMENT;
    }
    if (at(i) % 16 || at(i) < at(0) || stride < room.bound() || at(i) != at(0) + i * stride)
      return fail(c_.error, DR_E_ARGUMENT,
                  "slots: on a device they are aligned to 16 bytes, equally spaced, one behind the other");
  }
  if (d.pending != device_unit::none && d.pending != step)
    return fail(c_.error, DR_E_ARGUMENT, "step %" PRIu64 ": call dr_sender_check for it before the next merge",
                d.pending);
  return DR_OK;
}

// The frames of all ranks, of one range of a unit's parts.
void sender::request_parts(const unit& u, size_t range, std::span<const dr_bytes> slots) {
  const device_unit& d = *u.device;
  const size_t frames = u.frames.size(), ranks = slots.size();
  requests_.assign(frames, {});
  judged_.assign(frames, {});
  frames_.resize(frames * ranks);
  weights_.resize(frames * ranks);
  for (size_t f = 0; f < frames; ++f) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      frames_[f * ranks + rank] = {static_cast<const std::byte*>(slots[rank].data) + d.at[f], u.bounds[f]};
      weights_[f * ranks + rank] = weight_of(u.frames[f]);
    }
    requests_[f].frames = std::span(frames_).subspan(f * ranks, ranks);
    requests_[f].weights = weights_.data() + f * ranks;
    if (!d.part(f, range).empty()) bind_device(u, d.part(f, range));
  }
}

// The checks of frames of one range; judged_ says what depends on them. results: on the device, or nullptr.
dr_status sender::judge_device(const unit& u, size_t range, dr_result* results, slot_gate* gates, uint32_t& count) {
  const device_unit& d = *u.device;
  count = 0;
  for (size_t f = 0; f < u.frames.size(); ++f) {
    const device_part& p = d.part(f, range);
    if (p.empty()) continue;
    if (const dr_status s = judge_part(p, requests_[f], judged_[f], results ? results + f : nullptr)) return s;
    gates[count++] = gate_of(p, judged_[f], d.at[f]);
  }
  return DR_OK;
}

dr_status sender::judge_part(const device_part& p, const decode_request& request, judged_frames& judged,
                             dr_result* result) {
  device_queue queue = side_->queue();
  return judge_on_device(p.batch->frames, request, p.outs, queue, workspace_ + p.room_at, p.room, result,
                         c_.on_device.decoding, judged, c_.error);
}

slot_gate sender::gate_of(const device_part& p, const judged_frames& judged, uint64_t at) {
  return {&judged.gate->failed,
          &judged.back->failed,
          judged.rows,
          at,
          static_cast<uint32_t>(p.batch->frames.rows.size()),
          0};
}

// What the gates let pass.
dr_status sender::deliver_part(const device_part& p, const decode_request& request, const judged_frames& judged) {
  device_queue queue = side_->queue();
  return deliver_on_device(p.batch->frames, request, p.outs, judged, queue, c_.error);
}

dr_status sender::deliver_device(const unit& u, size_t range) {
  for (size_t f = 0; f < u.frames.size(); ++f)
    if (const device_part& p = u.device->part(f, range); !p.empty())
      if (const dr_status s = deliver_part(p, requests_[f], judged_[f])) return s;
  return DR_OK;
}

// The arguments of settle_slots that all calls have in common; its gates are the caller's.
settle_slots::args sender::settle_args(const unit& u, const dr_call& call, std::span<const dr_bytes> slots,
                                       uint64_t stride, uint64_t report_at, size_t checks, uint64_t bounds_at) const {
  std::byte* const report = side_->memory() + report_at;
  settle_slots::args settle{};
  settle.slots = static_cast<const uint8_t*>(slots[0].data);
  settle.stride = stride;
  settle.tag = tag_of(u, call.step);
  settle.step = call.step;
  settle.report = reinterpret_cast<slot_report*>(report);
  settle.prefixes = reinterpret_cast<uint64_t*>(report + sizeof(slot_report) + checks * sizeof(dr_result));
  settle.bounds = reinterpret_cast<const uint64_t*>(side_->memory() + bounds_at);
  settle.ranks = options_.ranks;
  settle.own = options_.rank;
  settle.frames = static_cast<uint32_t>(u.frames.size());
  return settle;
}

dr_status sender::merge_device(unit& u, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result) {
  device_unit& d = *u.device;
  if (!d.sums.empty()) return merge_sums(u, call, slots, result);
  uint64_t stride = 0;
  if (const dr_status s = check_device_slots(u, u.room, slots, call.step, stride)) return s;
  if (const dr_status s = side_->begin()) return s;
  const device_side::turn turn{*side_};
  const size_t range = d.ranges > 1 ? options_.rank : 0;
  settle_slots::args settle = settle_args(u, call, slots, stride, d.report_at, d.checks(), d.bounds_at);
  settle.counts = side_->counts();
  settle.returns = returns_at_once(u);
  request_parts(u, range, slots);
  for (size_t f = 0; f < u.frames.size() && settle.returns; ++f) {
    requests_[f].residuals = d.part(f, range).residuals;
    requests_[f].own = options_.rank;
  }
  if (const dr_status s =
          judge_device(u, range, results_at(d.report_at + sizeof(slot_report)), settle.gate, settle.gates))
    return s;
  device_queue queue = side_->queue();
  if (const dr_status s = side_->launched(launch<settle_slots>(queue.exec(), 1, settle))) return s;
  if (const dr_status s = deliver_device(u, range)) return s;
  return finish_merge(u, call.step, u.room.bound(), result);
}

// The outputs of other types, and the report.
dr_status sender::finish_merge(unit& u, uint64_t step, uint64_t size, dr_sent& result) {
  device_unit& d = *u.device;
  const bool zeros = options_.flags & DR_SENDER_ZEROS;
  outputs_.clear();
  for (const uint32_t i : u.list.tensors) {
    const bool rounded = is_rounded(i);
    if (!elements_out(u, i) || !(rounded || zeros)) continue;
    const uint32_t dtype = rounded ? tensors_[i].dtype : dr_dtype{DR_F32};
    outputs_.push_back(
        {rounded ? static_cast<const float*>(outs_[i].values) : nullptr, given_outs_[i], elements_out(u, i), 0, dtype});
  }
  if (const dr_status s = finish_values(d.report_at, zeros)) return s;
  device& at = *side_->where().where;
  dr_status s = at.copy(side_->where().stream, side_->host() + d.results_at, side_->memory() + d.results_at,
                        d.end - d.results_at);
  if (!s) s = at.record(d.event, side_->where().stream);
  if (s) return side_->launched(s);
  d.pending = step;
  result.size = size;
  return side_->end();
}

// Finishes outputs_.
dr_status sender::finish_values(uint64_t report_at, bool zeros) {
  device_queue queue = side_->queue();
  const auto* const report = reinterpret_cast<const slot_report*>(side_->memory() + report_at);
  return side_->launched(launch_own<finish_outputs>(
      queue, outputs_, [](const output_job& j) { return ceil_div(j.elements, output_tile); },
      [&](auto& args) {
        args.report = report;
        args.zeros = zeros;
        args.reserved = 0;
      }));
}

// What this rank sent goes back to its residuals, unless it is there.
dr_status sender::take_back_device(unit& u) {
  device_unit& d = *u.device;
  const size_t frames = u.frames.size();
  device_queue queue = side_->queue();
  requests_.assign(frames, {});
  judged_.assign(frames, {});
  frames_.resize(frames);
  for (size_t range = 0; range < d.ranges; ++range) {
    open_returns::args args{};
    for (size_t f = 0; f < frames; ++f) {
      device_part& p = d.part(f, range);
      if (p.empty()) continue;
      bind_device(u, p);
      frames_[f] = {d.sent + range * u.room.bound() + d.at[f], u.bounds[f]};
      requests_[f].frames = std::span(frames_).subspan(f, 1);
      requests_[f].delivers = false;
      requests_[f].residuals = p.residuals;
    }
    if (const dr_status s = judge_device(u, range, nullptr, args.gate, args.gates)) return s;
    args.report = reinterpret_cast<slot_report*>(side_->memory() + d.report_at);
    args.is_last = range + 1 == d.ranges;
    if (const dr_status s = side_->launched(launch<open_returns>(queue.exec(), 1, args))) return s;
    if (const dr_status s = deliver_device(u, range)) return s;
  }
  return return_sums(u);
}

// The same for a unit of which the host has to find out that it failed: its frames are of all ranges, and to decode them in
// every step would cost as much as to merge.
dr_status sender::return_late(unit& u) {
  device_unit& d = *u.device;
  if (returns_at_once(u) || d.is_back || d.pending == device_unit::none) return DR_OK;
  if (const dr_status s = side_->wait_for(d.event)) return s;
  if (!report_of(u).failed) return DR_OK;
  if (const dr_status s = side_->begin()) return s;
  const device_side::turn turn{*side_};
  if (const dr_status s = take_back_device(u)) return s;
  d.is_back = true;
  return side_->end();
}

dr_status sender::take_back_on_device(uint64_t step) {
  if (const dr_status s = side_->begin()) return s;
  const device_side::turn turn{*side_};
  dr_status status = DR_OK;
  for (unit& u : units_) {
    if (u.step != step) continue;
    const dr_status s = take_back_device(u);
    if (!status) status = s;
    u.step = u.device->pending = device_unit::none;
  }
  if (const dr_status s = set_device_counts({side_->counts(), step, 1, 0, 0, 0}); !status) status = s;
  const dr_status s = side_->end();
  return status ? status : s;
}

dr_status sender::set_device_counts(const set_counts::args& args) {
  device_queue queue = side_->queue();
  return side_->launched(launch<set_counts>(queue.exec(), 1, args));
}

}  // namespace dr
