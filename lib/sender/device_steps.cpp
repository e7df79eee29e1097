// The steps of a unit of frames on a device. Each enqueues, and waits for nothing; dr_sender_check reads the verdicts.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "api/run_encode.hpp"
#include "feedback/residual.hpp"
#include "pipeline/launch_own.hpp"
#include "primitive/rng.hpp"
#include "sender/rank_sender.hpp"

namespace dr {
namespace {

constexpr uint64_t device_mark = 0x646576696365;  // in the digest: slots of the CPU have their frames at other places

// What a message of the pipeline adds for its own callers.
void drop_advice(dr_error& error) {
  if (char* const advice = std::strstr(error.message, "; DR_PLACE_ALLOW_HOST")) *advice = 0;
}

}  // namespace

dr_status sender::prepare_device(unit& u) {
  static constexpr const char* kinds[] = {"",
                                          "exchange=owner",
                                          "a reduce-scatter (DR_SENDER_SCATTER)",
                                          "transform=lowrank",
                                          "a gradient of sparse rows (DR_NAMED_ROWS)",
                                          "an all-reduce of halves (DR_SENDER_HALVES)"};
  const auto refuse = [&](uint32_t tensor, const char* what) {
    fail(c_.error, DR_E_UNSUPPORTED, "%.80s: %s has no path on a device", tensors_[tensor].name.c_str(), what);
    c_.error.tensor = tensor;
    return DR_E_UNSUPPORTED;
  };
  if (!makes_frames(u) || u.list.kind != DR_UNIT_FRAMES) return refuse(u.list.tensors[0], kinds[u.list.kind]);
  if (u.list.frames.size() > gates_max)
    return refuse(u.list.tensors[0], "a unit of more than 64 frames (flat plans, each with its own)");
  u.list.digest = static_cast<uint32_t>(combine(u.list.digest, device_mark) >> 32);
  u.device = std::make_unique<device_unit>();
  uint64_t at = device_prefix(u.list.frames.size());
  for (const auto& list : u.list.frames) {
    frame& f = u.frames.emplace_back();
    f.tensors = list;
    f.votes = plans_.methods[list[0]]->votes;
    auto& d = *u.device->frames.emplace_back(std::make_unique<device_frame>());
    tensor_list tensors;
    for (const uint32_t i : list) {
      tensor_view v = views_[i];
      v.plan = nullptr;
      tensors.views.push_back(v);
      tensors.plans.push_back(plans_.methods[i]);
    }
    dr_status s = d.batch.place(c_.request_for(nullptr, 0), tensors, side_->where(), c_.error);
    if (!s) s = d.batch.load_decode(c_.error, true);
    if (s) {
      drop_advice(c_.error);
      if (c_.error.tensor < list.size()) name_tensor(list[c_.error.tensor]);
      return s;
    }
    d.views = std::move(tensors.views);
    d.at = at;
    u.bounds.push_back(aligned_to_16(d.batch.bound()));
    at += u.bounds.back();
  }
  u.room = slot_room(at, 0, true);
  return DR_OK;
}

// One block: counts, reports and results, which the host has, too; states; f32 sums of the largest unit of another type; a
// workspace for all units.
dr_status sender::take_device_memory() {
  uint64_t mirrored = align(sizeof(step_counts)), states = 0, outputs = 0, workspace = 0;
  for (unit& u : units_) {
    const size_t n = u.frames.size();
    device_unit& d = *u.device;
    d.results_at = mirrored;
    mirrored += align(n * sizeof(dr_result));
    d.report_at = mirrored;
    d.report_size = sizeof(slot_report) + n * sizeof(dr_result) + options_.ranks * device_prefix(n);
    mirrored += align(d.report_size);
    uint64_t room = 0, sums = 0;
    for (const auto& f : d.frames) {
      size_t of_all = 0, of_one = 0;
      if (const dr_status s = f->batch.decode_room(options_.ranks, of_all, c_.error)) return s;
      if (const dr_status s = f->batch.decode_room(1, of_one, c_.error)) return s;
      workspace = std::max<uint64_t>(workspace, f->batch.encode_room());
      f->room_at = room;
      f->room = std::max(of_all, of_one);
      room += align(f->room);
    }
    workspace = std::max(workspace, room);
    for (const uint32_t i : u.list.tensors) {
      if (is_rounded(i)) sums += align(sizeof(float) * tensors_[i].elements);
      if (plans_.methods[i]->keeps_feedback() && !borrows_states(u)) states += align(tensor_info(i).state);
    }
    outputs = std::max(outputs, sums);
  }
  if (const dr_status s = side_->allocate(mirrored, mirrored + states + outputs + align(workspace))) return s;
  block_size_ = side_->size();
  workspace_size_ = workspace;
  workspace_ = side_->memory() + mirrored + states + outputs;
  std::byte* state = side_->memory() + mirrored;
  for (unit& u : units_) {
    device_unit& d = *u.device;
    d.event = side_->make_event();
    if (!d.event) return fail(c_.error, DR_E_MEMORY, "sender: the device makes no event");
    std::byte* sum = side_->memory() + mirrored + states;
    for (const uint32_t i : u.list.tensors) {
      if (is_rounded(i)) {
        outs_[i].values = sum;
        sum += align(sizeof(float) * tensors_[i].elements);
      }
      if (plans_.methods[i]->keeps_feedback() && !borrows_states(u)) {
        views_[i].state = state;
        state += align(tensor_info(i).state);
      }
    }
    for (const uint64_t at : {d.results_at, d.report_at + sizeof(slot_report)})
      for (size_t f = 0; f < u.frames.size(); ++f) {
        const size_t size = sizeof(dr_result);
        std::memcpy(side_->host() + at + f * sizeof(dr_result), &size, sizeof size);
      }
  }
  return side_->start(mirrored + states);
}

// The tensors and outputs of a frame, as they were placed.
void sender::bind_device(const unit& u, size_t f) {
  device_frame& d = *u.device->frames[f];
  const auto& list = u.frames[f].tensors;
  d.outs.clear();
  d.residuals.clear();
  for (size_t k = 0; k < list.size(); ++k) {
    const uint32_t i = list[k];
    d.views[k].values = views_[i].values;
    d.views[k].state = views_[i].state;
    d.views[k].state_size = views_[i].state ? tensor_info(i).state : 0;
    d.outs.push_back(outs_[i]);
    if (!plans_.methods[i]->keeps_residual()) continue;
    tensor_out& residual = d.residuals.emplace_back(outs_[i]);
    residual.values = views_[i].state ? residual_of(views_[i].state) : nullptr;
  }
}

dr_status sender::encode_device(unit& u, const dr_call& call, void* slot, dr_sent& result) {
  device_unit& d = *u.device;
  if (d.pending != device_unit::none && d.pending != call.step)
    return fail(c_.error, DR_E_ARGUMENT, "step %" PRIu64 ": call dr_sender_check for it before the next encode",
                d.pending);
  if (reinterpret_cast<uintptr_t>(slot) % 16)
    return fail(c_.error, DR_E_ARGUMENT, "slots: not aligned to 16 bytes on the device");
  if (const dr_status s = side_->begin()) return s;
  u.step = call.step;
  d.sent = static_cast<std::byte*>(slot);
  auto* const results = reinterpret_cast<dr_result*>(side_->memory() + d.results_at);
  for (size_t f = 0; f < u.frames.size(); ++f) {
    device_frame& frame = *d.frames[f];
    bind_device(u, f);
    encode_request r;
    r.where = side_->where();
    r.call = {call.step, call.seed, call.private_seed, tag_of(u, call.step), DR_CALL_TAG | DR_CALL_STATUS_FRAME};
    r.frame = static_cast<uint8_t*>(slot) + frame.at;
    r.capacity = u.bounds[f];
    r.result = results + f;
    encode_result made;
    if (const dr_status s = encode_placed(c_, frame.batch, r, frame.views, workspace_, workspace_size_, made)) {
      if (c_.error.tensor < u.frames[f].tensors.size()) name_tensor(u.frames[f].tensors[c_.error.tensor]);
      return s;
    }
  }
  const seal_slot::args args{static_cast<uint8_t*>(slot),
                             results,
                             side_->counts(),
                             reinterpret_cast<slot_report*>(side_->memory() + d.report_at),
                             tag_of(u, call.step),
                             call.step,
                             static_cast<uint32_t>(u.frames.size()),
                             0};
  device_queue queue = side_->queue();
  if (const dr_status s = side_->launched(launch<seal_slot>(queue.exec(), 1, args))) return s;
  result.size = u.room.bound();
  return side_->end();
}

// Where the slots of the ranks are: equally spaced, as one all-gather writes them.
dr_status sender::check_device_slots(const unit& u, std::span<const dr_bytes> slots, uint64_t& stride) {
  if (slots.size() != options_.ranks)
    return fail(c_.error, DR_E_ARGUMENT, "slots: %zu; the sender is one of %u ranks", slots.size(), options_.ranks);
  const auto at = [&](size_t i) { return reinterpret_cast<uintptr_t>(slots[i].data); };
  stride = slots.size() > 1 ? at(1) - at(0) : u.room.bound();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].data || slots[i].size < u.room.bound()) {
      fail(c_.error, DR_E_ARGUMENT, "slots: %zu bytes; a slot of this unit has %" PRIu64 " on a device",
           slots[i].data ? slots[i].size : 0, u.room.bound());
      name_rank(i);
      return DR_E_ARGUMENT;
    }
    if (at(i) % 16 || at(i) != at(0) + i * stride)
      return fail(c_.error, DR_E_ARGUMENT, "slots: on a device they are aligned to 16 bytes and equally spaced");
  }
  return DR_OK;
}

// The checks of all frames; `judged` says what depends on them. own: this rank's position in the frames.
dr_status sender::judge_device(unit& u, std::span<const decode_request> requests, std::span<judged_frames> judged,
                               slot_gate* gates, bool reports) {
  device_unit& d = *u.device;
  device_queue queue = side_->queue();
  auto* const results = reinterpret_cast<dr_result*>(side_->memory() + d.report_at + sizeof(slot_report));
  for (size_t f = 0; f < u.frames.size(); ++f) {
    device_frame& frame = *d.frames[f];
    if (const dr_status s =
            judge_on_device(frame.batch.frames, requests[f], frame.outs, queue, workspace_ + frame.room_at, frame.room,
                            reports ? results + f : nullptr, c_.on_device.decoding, judged[f], c_.error))
      return s;
    gates[f] = {&judged[f].gate->failed,
                &judged[f].back->failed,
                judged[f].rows,
                frame.at,
                static_cast<uint32_t>(frame.batch.frames.rows.size()),
                0};
  }
  return DR_OK;
}

// After judge_device: settles what becomes of the unit, and delivers its frames if all are sound.
dr_status sender::deliver_device(unit& u, settle_slots::args& settle) {
  device_unit& d = *u.device;
  settle.counts = side_->counts();
  settle.report = reinterpret_cast<slot_report*>(side_->memory() + d.report_at);
  settle.frames = static_cast<uint32_t>(u.frames.size());
  device_queue queue = side_->queue();
  if (const dr_status s = side_->launched(launch<settle_slots>(queue.exec(), 1, settle))) return s;
  for (size_t f = 0; f < u.frames.size(); ++f)
    if (const dr_status s =
            deliver_on_device(d.frames[f]->batch.frames, requests_[f], d.frames[f]->outs, judged_[f], queue, c_.error))
      return s;
  return DR_OK;
}

dr_status sender::merge_device(unit& u, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result) {
  device_unit& d = *u.device;
  uint64_t stride = 0;
  if (const dr_status s = check_device_slots(u, slots, stride)) return s;
  if (d.pending != device_unit::none && d.pending != call.step)
    return fail(c_.error, DR_E_ARGUMENT, "step %" PRIu64 ": call dr_sender_check for it before the next merge",
                d.pending);
  if (const dr_status s = side_->begin()) return s;
  const size_t frames = u.frames.size(), ranks = slots.size();
  settle_slots::args settle{};
  requests_.assign(frames, {});
  judged_.assign(frames, {});
  frames_.resize(frames * ranks);
  weights_.resize(frames * ranks);
  for (size_t f = 0; f < frames; ++f) {
    bind_device(u, f);
    for (size_t rank = 0; rank < ranks; ++rank) {
      frames_[f * ranks + rank] = {static_cast<const std::byte*>(slots[rank].data) + d.frames[f]->at, u.bounds[f]};
      weights_[f * ranks + rank] = weight_of(u.frames[f]);
    }
    requests_[f].frames = std::span(frames_).subspan(f * ranks, ranks);
    requests_[f].weights = weights_.data() + f * ranks;
    requests_[f].residuals = d.frames[f]->residuals;
    requests_[f].own = options_.rank;
  }
  if (const dr_status s = judge_device(u, requests_, judged_, settle.gate, true)) return s;
  std::byte* const report = side_->memory() + d.report_at;
  settle.slots = static_cast<const uint8_t*>(slots[0].data);
  settle.stride = stride;
  settle.tag = tag_of(u, call.step);
  settle.step = call.step;
  settle.prefixes = reinterpret_cast<uint64_t*>(report + sizeof(slot_report) + frames * sizeof(dr_result));
  settle.ranks = options_.ranks;
  settle.own = options_.rank;
  if (const dr_status s = deliver_device(u, settle)) return s;
  if (const dr_status s = finish_device(u)) return s;
  device& at = *side_->where().where;
  dr_status s = at.copy(side_->where().stream, side_->host() + d.report_at, report, d.report_size);
  if (!s) s = at.record(d.event, side_->where().stream);
  if (s) return side_->launched(s);
  d.pending = call.step;
  result.size = u.room.bound();
  return side_->end();
}

dr_status sender::finish_device(const unit& u) {
  const bool zeros = options_.flags & DR_SENDER_ZEROS;
  outputs_.clear();
  for (const uint32_t i : u.list.tensors) {
    const bool rounded = is_rounded(i);
    if (!tensors_[i].elements || !(rounded || zeros)) continue;
    const uint32_t dtype = rounded ? tensors_[i].dtype : dr_dtype{DR_F32};
    outputs_.push_back({rounded ? static_cast<const float*>(outs_[i].values) : nullptr, given_outs_[i],
                        tensors_[i].elements, 0, dtype});
  }
  device_queue queue = side_->queue();
  const auto* const report = reinterpret_cast<const slot_report*>(side_->memory() + u.device->report_at);
  return side_->launched(launch_own<finish_outputs>(
      queue, outputs_, [](const output_job& j) { return ceil_div(j.elements, output_tile); },
      [&](auto& args) {
        args.report = report;
        args.zeros = zeros;
        args.reserved = 0;
      }));
}

// What this rank sent goes back to its residuals, unless it is there: the unit failed.
dr_status sender::take_back_device(unit& u) {
  device_unit& d = *u.device;
  const size_t frames = u.frames.size();
  settle_slots::args settle{};
  requests_.assign(frames, {});
  judged_.assign(frames, {});
  frames_.resize(frames);
  for (size_t f = 0; f < frames; ++f) {
    bind_device(u, f);
    frames_[f] = {d.sent + d.frames[f]->at, u.bounds[f]};
    requests_[f].frames = std::span(frames_).subspan(f, 1);
    requests_[f].delivers = false;
    requests_[f].residuals = d.frames[f]->residuals;
  }
  if (const dr_status s = judge_device(u, requests_, judged_, settle.gate, false)) return s;
  settle.step = u.step;
  return deliver_device(u, settle);
}

dr_status sender::take_back_on_device(uint64_t step) {
  if (const dr_status s = side_->begin()) return s;
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

dr_status sender::check(uint64_t step, dr_sent& result) {
  dr_error first = no_error();
  for (unit& u : units_) {
    if (!u.device || u.device->pending != step) continue;
    if (const dr_status s = side_->wait_for(u.device->event)) return s;
    u.step = u.device->pending = device_unit::none;
    if (read_report(u, step, result) && !first.code) first = c_.error;
  }
  if (!first.code) return DR_OK;
  c_.error = first;
  return first.code;
}

dr_status sender::read_report(unit& u, uint64_t step, dr_sent& result) {
  const device_unit& d = *u.device;
  const size_t frames = u.frames.size(), ranks = options_.ranks;
  const std::byte* const from = side_->host() + d.report_at;
  slot_report report;
  std::memcpy(&report, from, sizeof report);
  const std::byte* const prefixes = from + sizeof report + frames * sizeof(dr_result);
  std::vector<dr_bytes> slots;
  for (size_t rank = 0; rank < ranks; ++rank)
    slots.push_back({prefixes + rank * device_prefix(frames), device_prefix(frames)});
  failures_ = report.failures;
  failed_ = report.last_failed;
  const slot_limits limits{u.bounds, tensors_.size(), false, false, (words_a_frame - 1) * frames};
  if (const dr_status s = read_prefixes(slots, limits, slots_, c_.error)) {
    name_rank(c_.error.frame);
    return s;
  }
  dr_call call{};
  call.step = step;
  if (const dr_status s = compare(u, call)) {
    if (!is_behind_) return s;
    // (This step failed on all ranks.)
    is_behind_ = false;
    failed_ = step;
    ++failures_;
    if (const dr_status lost = set_device_counts(
            {side_->counts(), 0, 0, static_cast<uint32_t>(failures_), static_cast<uint32_t>(failed_), 0}))
      return lost;
    return s;
  }
  result.size = std::max(result.size, slots_.longest);
  for (size_t f = 0; f < frames; ++f) result.frames += slots_.sizes[options_.rank * frames + f];
  if (!report.failed) return DR_OK;
  if (report.foreign) {
    fail(c_.error, DR_E_ARGUMENT, "its frame is of another step, or of other tensors");
    name_rank(report.foreign - 1);
    return DR_E_ARGUMENT;
  }
  for (size_t f = 0; f < frames; ++f) {
    dr_result r;
    std::memcpy(&r, from + sizeof report + f * sizeof r, sizeof r);
    if (r.status) return explain(u, f, r, prefixes);
  }
  return fail(c_.error, DR_E_INTERNAL, "step %" PRIu64 ": the device refused the slots, and gives no reason", step);
}

// The error of a frame that was refused. prefixes: of all slots.
dr_status sender::explain(const unit& u, size_t f, const dr_result& r, const std::byte* prefixes) {
  const size_t frames = u.frames.size();
  const auto& list = u.frames[f].tensors;
  const batch& b = u.device->frames[f]->batch;
  if (r.status != DR_E_PEER || r.frame >= options_.ranks) {
    dr_result row = r;
    if (row.tensor < b.rows.size()) row.tensor = b.units[b.rows[row.tensor].unit].first_tensor;
    if (row.tensor < list.size()) {
      fail_as_device(b, row, c_.error);
      name_tensor(list[c_.error.tensor]);
    } else {
      fail(c_.error, r.status, "its frame is damaged, or of other tensors (at %" PRIu64 ", value %" PRIu64 ")", r.where,
           r.what);
    }
    if (r.frame < options_.ranks) name_rank(r.frame);
    return c_.error.code = r.status;
  }
  uint64_t why[words_a_frame - 1];
  const size_t first = frames + (words_a_frame - 1) * f;
  std::memcpy(why, prefixes + r.frame * device_prefix(frames) + prefix_size(first), sizeof why);
  dr_result cause{};
  cause.status = static_cast<dr_status>(static_cast<uint32_t>(why[0]));
  cause.stream = static_cast<uint32_t>(why[0] >> 32);
  cause.tensor = why[1];
  cause.where = why[2];
  cause.what = why[3];
  uint64_t at_fault = DR_NO_TENSOR;
  std::string words = "for no known reason";
  if (cause.tensor < list.size()) {
    fail_as_device(b, cause, c_.error);
    at_fault = list[c_.error.tensor];
    name_tensor(list[c_.error.tensor]);
    words = c_.error.message;
  }
  fail(c_.error, DR_E_PEER, "could not encode (%s): %s", status_name(cause.status), words.c_str());
  name_rank(r.frame);
  c_.error.tensor = at_fault;
  return DR_E_PEER;
}

}  // namespace dr
