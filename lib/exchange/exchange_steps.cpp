// The steps that compute, send and receive. An error becomes this rank's verdict.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "exchange/rank_exchange.hpp"
#include "primitive/rng.hpp"

namespace dr {

encode_request exchange::request_for(const step& s) {
  encode_request r;
  r.call.step = call_.step;
  r.call.seed = call_.seed;
  r.call.private_seed = combine(combine(call_.private_seed, program_.rank), s.what);
  r.call.tag = frame_tag(program_.slots[s.slot]);
  r.call.flags = DR_CALL_TAG;
  r.call.trace = call_.trace;
  r.call.trace_user = call_.trace_user;
  r.frame = reinterpret_cast<uint8_t*>(worked_frame(s.slot));
  r.capacity = slot_room_[s.slot];
  return r;
}

void exchange::finish_encode(const step& s, dr_status status, const encode_result& made) {
  if (!status) {
    slot_size_[s.slot] = made.size;
    info_.kept += made.kept;
    done_[pc_] = 1;
    spend(s, made.size);
    return;
  }
  fail_encode(s, status, c_.error);
}

// This rank cannot encode a range: its verdict has the reason.
void exchange::fail_encode(const step& s, dr_status status, const dr_error& e) {
  blame_own(status);
  slot_size_[s.slot] = 0;
  verdict v;
  v.code = DR_E_PEER;
  v.culprit = program_.rank;
  v.stream = e.stream;
  v.tensor = DR_NO_TENSOR;
  v.where = e.where;
  v.what = e.what;
  const char* why = e.message;
  char which[96] = "";
  const piece_list none, &pieces = factors_ ? none : ranges_[s.range].pieces();
  if (factors_) v.tensor = e.tensor;
  if (e.tensor < pieces.size()) {
    // The sentence counts tensors, and elements, from the range's first.
    const piece& p = pieces[e.tensor];
    v.tensor = p.tensor;
    v.where += p.first;
    if (!std::strncmp(why, "tensor ", 7)) why += 7 + std::strspn(why + 7, "0123456789");
    if (!std::strncmp(why, ", ", 2) || !std::strncmp(why, ": ", 2)) why += 2;
    if (p.first)
      std::snprintf(which, sizeof which, "tensor %u, from row %" PRIu64 " on: ", p.tensor, p.first);
    else
      std::snprintf(which, sizeof which, "tensor %u: ", p.tensor);
  }
  std::snprintf(v.message, sizeof v.message, "it could not encode (%s): %s%.100s", status_name(status), which, why);
  poison(v);
}

// A rank sends its gradient to its head unchanged; if the plan would refuse it, this rank must report that, not the
// head.
bool exchange::finds_fault(const step& s) {
  if (!s.exact) return false;
  dr_error e = no_error();
  size_t piece = 0;
  uint64_t element = 0;
  if (!ranges_[s.range].find_not_finite(piece, element)) return false;
  fail(e, DR_E_ARGUMENT, "element %" PRIu64 " of the gradient is NaN or infinite; the plan requires finite values",
       element);
  e.tensor = piece;
  e.where =
      element / std::max(1u, tensors_[ranges_[s.range].pieces()[piece].tensor].width);  // its row, as of an encode
  fail_encode(s, DR_E_ARGUMENT, e);
  return true;
}

void exchange::encode(const step& s) {
  if (factors_) return encode_factor(s);
  range_work& r = ranges_[s.range];
  slot_size_[s.slot] = 0;
  const bool of_sum = s.what == DR_STEP_ENCODE_SUM;
  // In an exchange that has failed the gradient still goes to the residual: a frame is encoded and then undone.
  const bool has_residual = (!of_sum || s.with_gradient) && plans_.method->keeps_feedback();
  if (r.empty() || (failed() && !has_residual)) return;
  encode_result made;
  if (dry()) {
    made.size =
        std::max<uint64_t>(1, options_.frame_size(options_.frame_size_user, r.elements(), s.exact ? 2u : of_sum));
    return finish_encode(s, DR_OK, made);
  }
  if (finds_fault(s)) return;
  encode_request request = request_for(s);
  const frame_kind kind = of_sum ? frame_kind::sum : s.exact ? frame_kind::exact : frame_kind::part;
  finish_encode(s, r.encode(kind, request, made), made);
}

void exchange::send(const step& s) {
  if (skips(s.range)) return;
  const size_t size = failed() ? 0 : slot_size_[s.slot];
  void* const bytes = dry() ? nullptr : frame_of(s.slot);
  spend(s, size);
  if (const dr_status e = start_request(s.message, false, s.peer, program_.slots[s.slot].tag, bytes, size))
    lose(e, s.peer, program_.slots[s.slot].depth, "cannot send to it");
}

void exchange::recv(const step& s) {
  slot_size_[s.slot] = 0;
  if (skips(s.range)) return;
  void* const bytes = dry() ? nullptr : frame_of(s.slot);
  const size_t room = slot_room_[s.slot];
  if (const dr_status e = start_request(s.message, true, s.peer, program_.slots[s.slot].tag, bytes, room))
    lose(e, s.peer, program_.slots[s.slot].depth, "cannot receive from it");
}

dr_status exchange::wait(const step& s) {
  request& r = requests_[s.message];
  if (skips(s.range) || failed() || !r.open) return DR_OK;
  const frame_slot& slot = program_.slots[s.slot];
  size_t size = 0;
  const dr_status status = test(r, size);
  if (status == DR_OK) {
    judge(s, size);
    return DR_OK;
  }
  if (status == DR_E_CAPACITY) {
    poison(DR_E_CORRUPT, s.peer, slot.depth, "its frame exceeds the bound of the plan");
    return DR_OK;
  }
  if (status != DR_PENDING) {
    lose(status, s.peer, slot.depth, "lost its frame");
    return DR_OK;
  }
  poll_verdict(s);
  if (failed()) return DR_OK;
  if (now() < gives_up_at()) return DR_PENDING;
  report_missing(s);
  return DR_OK;
}

void exchange::report_missing(const step& awaited) {
  poison(DR_E_TIMEOUT, awaited.peer, program_.slots[awaited.slot].depth, "its frame of range %u did not arrive in time",
         awaited.range);
}

// Checks a frame that arrived: complete, sound, of this exchange and of these tensors.
void exchange::judge(const step& s, size_t size) {
  const frame_slot& slot = program_.slots[s.slot];
  if (!size) return poison(DR_E_TIMEOUT, s.peer, verdict::hearsay + slot.depth, "it gave up");
  slot_size_[s.slot] = size;
  if (dry()) return spend(s, size);
  dr_error& e = c_.error;
  if (factors_) {
    if (const dr_status bad = factors_->check(s.range, slot.kind, frame_tag(slot), {frame_of(s.slot), size}, e))
      return poison(bad, s.peer, slot.depth, "range %u: %s", s.range, e.message);
    return spend(s, size);
  }
  const dr_status status = ranges_[s.range].judge(slot.kind, {frame_of(s.slot), size}, frame_tag(slot), view_, e);
  // (A rank that forwards a frame has validated it before.)
  if (status) return poison(status, s.peer, slot.depth, "range %u: %s", s.range, e.message);
  if (device_) take_there(s);
  spend(s, size);
}

std::span<const dr_bytes> exchange::gather_frames(const step& s) {
  for (uint32_t i = 0; i < s.count; ++i) {
    const uint32_t slot = program_.inputs[s.first + i];
    merged_[i] = {dry() ? nullptr : worked_frame(slot), slot_size_[slot]};
  }
  return {merged_.data(), s.count};
}

const float* exchange::weights(const step& s, float factor) {
  // (Votes are counted as they are: a rounded mean could break a tie.)
  const bool mean = s.weight == weighting::mean && !(options_.flags & DR_EXCHANGE_SUM) && !plans_.method->votes;
  std::fill_n(weights_.begin(), s.count, mean ? factor / static_cast<float>(program_.ranks) : factor);
  return weights_.data();
}

// A frame of a sum or merge does not decode: the rank that made it is at fault.
void exchange::blame_maker(const step& s, dr_status status) {
  const uint64_t which = s.count == 1 ? 0 : c_.error.frame;  // (the error of a single frame has no position)
  if (which >= s.count) {
    blame_own(status);
    return poison(DR_E_PEER, program_.rank, 0, "range %u: %s", s.range, c_.error.message);
  }
  const frame_slot& slot = program_.slots[program_.inputs[s.first + which]];
  poison(status, slot.maker, slot.depth, "range %u: %s", s.range, c_.error.message);
}

void exchange::sum(const step& s) {
  if (factors_) return sum_factor(s);
  range_work& r = ranges_[s.range];
  summed_[s.range] = 0;
  if (r.empty()) return;
  const std::span<const dr_bytes> frames = gather_frames(s);
  uint64_t bytes = 0;
  for (const dr_bytes& f : frames) bytes += f.size;
  if (dry()) return failed() ? void() : spend(s, bytes);
  if (!failed()) {
    const frame_kind kind = program_.slots[program_.inputs[s.first]].kind;
    if (const dr_status e = r.sum(kind, frames, weights(s, 1))) {
      blame_maker(s, e);
    } else {
      summed_[s.range] = 1;
      return spend(s, bytes);
    }
  }
  r.clear_sum();
}

// The part of a merge that can fail, before the ranks agree.
void exchange::decode(const step& s) {
  range_work& r = ranges_[s.range];
  if (r.empty() || failed() || dry()) return;
  arena memory = spare_workspace();
  if (const dr_status e = r.decode(gather_frames(s), memory)) return blame_maker(s, e);
  decoded_size_ += memory.used();
}

void exchange::merge(const step& s) {
  if (factors_) return merge_factor(s);
  range_work& r = ranges_[s.range];
  if ((r.empty() && !host_) || failed()) return;
  const std::span<const dr_bytes> frames = gather_frames(s);
  uint64_t bytes = 0;
  for (const dr_bytes& f : frames) bytes += f.size;
  if (!dry()) {
    arena memory = spare_workspace();
    if (const dr_status e = device_ ? merge_there(s) : r.merge(frames, weights(s, 1), memory))
      return fail_alone(blame(program_.rank, e, "range %u: %.160s", s.range, c_.error.message));
  }
  spend(s, bytes);
}

}  // namespace dr
