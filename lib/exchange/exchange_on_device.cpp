// The steps that compute, on a device: each enqueues, and a later call sees that it is done. Nothing waits.
#include <cinttypes>

#include "exchange/rank_exchange.hpp"

namespace dr {

dr_status exchange::settle() {
  dr_status s = device_->poll();
  if (s == DR_PENDING && now() < gives_up_at()) {
    settling_ = true;
    return s;
  }
  if (s == DR_PENDING) s = fail(c_.error, DR_E_TIMEOUT, "device: what was enqueued is not done in time");
  stuck_ |= s != DR_OK;
  return s;
}

// The size of the frame comes to the host, then so many bytes of it. So a frame is under way while the next is encoded,
// and one of another exchange beside it.
dr_status exchange::encode_there(const step& s) {
  enum : size_t { begins, encodes, copies };
  device_range* const r = device_ranges_[s.range].get();
  const size_t result = result_of(s);
  const frame_kind kind = program_.slots[s.slot].kind;
  const auto give_up = [&](dr_status status) {
    fail_encode(s, status, c_.error);
    if (stuck_) return dr_status{DR_OK};
    (void)r->undo_encode(kind);
    (void)device_->mark();
    return dr_status{DR_OK};
  };
  if (cursor_ == begins) {
    slot_size_[s.slot] = 0;
    // As on the CPU: in an exchange that has failed the gradient still goes to the residual.
    const bool has_residual = (s.what == DR_STEP_ENCODE || s.with_gradient) && plans_.method->keeps_feedback();
    if (!r || stuck_ || (failed() && !has_residual)) return DR_OK;
    encode_request request = request_for(s);
    request.capacity = round_up(slot_room_[s.slot], arena::alignment);  // (it asks for 64 bytes at least)
    request.result = result_there(result);
    dr_status status = r->encode(kind, request);
    if (!status) status = copy_result(result);
    if (!status) status = device_->mark();
    if (status) return give_up(status);
    cursor_ = encodes;
  }
  const dr_status settled = settle();
  if (settled == DR_PENDING) return settled;
  if (settled) return give_up(settled);
  const dr_result& told = result_here(result);
  if (cursor_ == encodes) {
    if (told.status) return give_up(r->explain_encode(kind, told));
    slot_size_[s.slot] = told.size;
    dr_status status = device_->copy(frame_of(s.slot), frame_there(s.slot), told.size);
    if (!status) status = device_->mark();
    if (status) {
      done_[pc_] = 1;  // what the frame has goes back to the residual
      blame_own(status);
      poison(DR_E_PEER, program_.rank, 0, "range %u: %s", s.range, c_.error.message);
      return DR_OK;
    }
    cursor_ = copies;
    return encode_there(s);
  }
  encode_result made;
  made.size = told.size;
  view_.clear();
  if (!read_header(reinterpret_cast<const uint8_t*>(frame_of(s.slot)), made.size, made.size, view_, c_.error))
    for (const wire_row& row : view_.rows) made.kept += row.count;
  finish_encode(s, DR_OK, made);
  return DR_OK;
}

// A frame that came, and is sound.
void exchange::take_there(const step& s) {
  if (const dr_status e = device_->copy(frame_there(s.slot), frame_of(s.slot), slot_size_[s.slot])) {
    blame_own(e);
    poison(DR_E_PEER, program_.rank, 0, "range %u: %s", s.range, c_.error.message);
  }
}

// Frames to a sum, or the checks of those that go to the outputs.
dr_status exchange::decode_there(const step& s) {
  device_range* const r = device_ranges_[s.range].get();
  const bool sums = s.what == DR_STEP_SUM;
  const auto clear = [&] {  // what a gradient is added to
    if (sums && r && !stuck_) (void)r->clear_sum();
    return dr_status{DR_OK};
  };
  if (sums) summed_[s.range] = 0;
  if (!r || failed()) return clear();
  const auto give_up = [&](dr_status status) {
    blame_own(status);
    poison(DR_E_PEER, program_.rank, 0, "range %u: %s", s.range, c_.error.message);
    return clear();
  };
  const size_t result = result_of(s);
  const frame_kind kind = program_.slots[program_.inputs[s.first]].kind;
  if (cursor_ == 0) {
    const auto frames = gather_frames(s);
    dr_status status = sums ? r->sum(kind, frames, weights(s, 1), result_there(result))
                            : r->decode(frames, weights(s, 1), result_there(result));
    if (!status) status = copy_result(result);
    if (!status) status = device_->mark();
    if (status) return give_up(status);
    cursor_ = 1;
  }
  const dr_status settled = settle();
  if (settled == DR_PENDING) return settled;
  if (settled) return give_up(settled);
  const dr_result& told = result_here(result);
  if (told.status) {
    blame_maker(s, r->explain_decode(kind, told));
    return clear();
  }
  if (sums) {
    summed_[s.range] = 1;
    uint64_t bytes = 0;
    for (const dr_bytes& f : gather_frames(s)) bytes += f.size;
    spend(s, bytes);
  }
  return DR_OK;
}

void exchange::add_there(const step& s) {
  device_range* const r = device_ranges_[s.range].get();
  if (!r || stuck_) return;
  if (const dr_status e = r->add_gradient()) {
    blame_own(e);
    poison(DR_E_PEER, program_.rank, 0, "range %u: %s", s.range, c_.error.message);
  }
}

dr_status exchange::merge_there(const step& s) {
  const dr_status status =
      host_ ? host_->write_outputs() : device_ranges_[s.range]->merge(gather_frames(s), weights(s, 1));
  const dr_status marked = device_->mark();
  return status ? status : marked;
}

// (Frames that were decoded before, or encoded here: nothing of it can fail but the device.)
void exchange::restore_there(const step& s, const dr_bytes& sent) {
  if (stuck_) return;
  const float one = 1;
  device_range& r = *device_ranges_[s.range];
  (void)r.restore_residual(s.residual, program_.slots[s.slot].kind, {&sent, 1}, &one);
  if (s.what == DR_STEP_ENCODE_SUM && summed_[s.range])
    (void)r.restore_residual(s.residual, program_.slots[program_.inputs[s.first]].kind, gather_frames(s),
                             weights(s, -1));
  (void)device_->mark();
}

// The outputs hold the result, and tensors may change, when it ends.
dr_status exchange::drain_device() {
  if (stuck_) return DR_OK;
  const dr_status settled = settle();
  if (settled == DR_PENDING) return settled;
  if (settled && outcome_.code == DR_OK) {
    failed_ = true;
    own_status_ = settled;
    outcome_ = blame(program_.rank, DR_E_PEER, "%.160s", c_.error.message);
  }
  return DR_OK;
}

// ---- Making it --------------------------------------------------------------------------------------------

dr_status exchange::prepare_device_ranges(const std::vector<range_uses>& uses, const tensor_plans& plans) {
  for (size_t j = 0; j < ranges_.size(); ++j) {
    auto& r = device_ranges_.emplace_back();
    if (ranges_[j].empty() || (host_ && !uses[j].encodes[at(frame_kind::part)])) continue;
    r = std::make_unique<device_range>(c_, *device_, ranges_[j], uses[j], host_.get(), static_cast<uint32_t>(j));
    if (const dr_status s = r->prepare(plans, memory(), ranges_.size() == 1)) return s;
  }
  if (host_) host_->lay_out(ranges_);
  return DR_OK;
}

// There: results, states, sums, what a host sums up, frames, a workspace. Here, pinned: results and frames.
dr_status exchange::allocate_on_device() {
  const size_t results = program_.slots.size() + 2 * ranges_.size();
  const uint64_t result_size = round_up(results * sizeof(dr_result), arena::alignment);
  const uint64_t of_host = host_ ? round_up(host_->memory_size(), arena::alignment) : 0;
  uint64_t states = 0, sums = 0, workspace = 0, stored = 0, again = 0, frames = 0;
  for (const auto& r : device_ranges_) {
    if (!r) continue;
    r->place(nullptr, states, nullptr, sums);
    workspace = std::max(workspace, r->workspace());
    if (r->stores())
      stored += round_up(r->decode_room(), arena::alignment);
    else
      again = std::max(again, r->decode_room());
  }
  workspace = round_up(std::max(workspace, stored + again), arena::alignment);
  for (size_t i = 0; i < slot_at_.size(); ++i)
    frames = std::max(frames, slot_at_[i] + round_up(slot_room_[i], arena::alignment));
  const uint64_t size = result_size + states + sums + of_host + frames + workspace;
  if (const dr_status s = device_->allocate(size, result_size + states, result_size + frames)) return s;
  info_.memory += size + result_size + frames;
  for (size_t i = 0; i < results; ++i)
    new (device_->host() + i * sizeof(dr_result)) dr_result{sizeof(dr_result), 0, DR_OK, 0, 0, 0, 0, 0, 0, 0};
  if (const dr_status s = device_->copy_now(device_->memory(), device_->host(), results * sizeof(dr_result))) return s;
  frames_ = device_->host() + result_size;
  device_frames_ = device_->memory() + result_size + states + sums + of_host;
  if (host_) host_->place(device_frames_ - of_host);
  std::byte *const state = device_->memory() + result_size, *const common = device_frames_ + frames;
  uint64_t decoded = 0, of_states = 0, of_sums = 0;
  for (const auto& r : device_ranges_) {
    if (!r) continue;
    r->place(state, of_states, state + states, of_sums);
    r->lend_workspace(common, common + (r->stores() ? decoded : stored));
    if (r->stores()) decoded += round_up(r->decode_room(), arena::alignment);
  }
  return bind_ranges();
}

}  // namespace dr
