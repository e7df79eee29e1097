#include "exchange/rank_exchange.hpp"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdarg>
#include <new>

#include "api/frame_checks.hpp"
#include "primitive/rng.hpp"

namespace dr {
namespace {

// Shares of the timeout after which this rank stops waiting for frames, for its host, for verdicts, and for what is under way. So the
// verdict of a rank that timed out reaches the others before they time out themselves.
constexpr uint32_t frames_tenths = 7, gather_tenths = 8, verdicts_tenths = 9, drain_tenths = 10;

}  // namespace

uint64_t exchange::now() const {
  if (transport_.now) return transport_.now(transport_.user);
  using namespace std::chrono;
  return static_cast<uint64_t>(duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

uint64_t exchange::gives_up_at() const {
  const uint8_t what = program_.steps[pc_].what;
  switch (what) {
    case DR_STEP_DRAIN: return deadline(drain_tenths);
    case DR_STEP_AGREE: return deadline(verdicts_tenths);
    case DR_STEP_GATHER: return deadline(gather_tenths);
    default: return deadline(frames_tenths);
  }
}

uint32_t exchange::wire_tag(uint32_t tag) const {
  return sequence_ % ((1u << 28) / program_.tags) * program_.tags + tag;
}

uint64_t exchange::frame_tag(const frame_slot& s) const {
  return combine(combine(combine(sequence_, call_.step), s.tag), s.maker);
}

void exchange::spend_on_verdict(uint32_t what) {
  if (transport_.spend) transport_.spend(transport_.user, what, 0, sizeof(verdict));
}

void exchange::spend(const step& s, uint64_t bytes) {
  if (!transport_.spend) return;
  const uint64_t elements = factors_ ? factors_->elements(s.range) : ranges_[s.range].elements();
  transport_.spend(transport_.user, s.what, elements, bytes);
}

// ---- Requests ---------------------------------------------------------------------------------------------

dr_status exchange::start_request(uint32_t message, bool receives, uint32_t peer, uint32_t tag, void* bytes,
                                  size_t size) {
  request& r = requests_[message];
  r = {0, peer, false, receives};
  const dr_status s = receives ? transport_.recv(transport_.user, peer, wire_tag(tag), bytes, size, &r.number)
                               : transport_.send(transport_.user, peer, wire_tag(tag), bytes, size, &r.number);
  r.open = s == DR_OK;
  if (r.open && !receives) {
    info_.sent += size;
    ++info_.messages;
  }
  return s;
}

dr_status exchange::test(request& r, size_t& size) {
  size = 0;
  const dr_status s = transport_.test(transport_.user, r.number, &size);
  if (s == DR_PENDING) return s;
  r.open = false;
  if (s == DR_OK && r.receives) info_.received += size;
  return s;
}

// ---- Failures ---------------------------------------------------------------------------------------------

void exchange::poison(const verdict& why) {
  failed_ = true;
  if (verdict_sent_ || own().code != DR_OK) return;  // the first fault stays
  verdict& v = own();
  const uint64_t commits = v.commits;
  v = why;
  v.sequence = sequence_;
  v.commits = commits;
  v.fingerprint = fingerprint_;
  v.step = call_.step;
}

void exchange::blame_own(dr_status status) {
  if (!verdict_sent_ && own().code == DR_OK) own_status_ = status;
}

// After the ranks have agreed. If the factors are at fault, all ranks see it; otherwise this rank is behind from now on.
void exchange::fail_alone(const verdict& why) {
  failed_ = true;
  outcome_ = why;
  restore_residuals();
}

void exchange::poison(dr_status code, uint32_t culprit, uint32_t depth, const char* format, ...) {
  if (code == DR_E_INTERNAL || code == DR_E_DEVICE) code = DR_E_PEER;  // (a verdict has no such status)
  va_list arguments;
  va_start(arguments, format);
  verdict v = blame_with(culprit, code, format, arguments);
  va_end(arguments);
  v.depth = depth;
  poison(v);
}

void exchange::lose(dr_status reported, uint32_t peer, uint32_t depth, const char* what) {
  if (reported == DR_E_MEMORY) {  // of the transport, here
    blame_own(reported);
    return poison(DR_E_PEER, program_.rank, 0, "its transport is out of memory");
  }
  poison(reported == DR_E_TIMEOUT ? reported : DR_E_PEER, peer, depth, "the transport %s (%s)", what,
         status_name(reported));
}

bool exchange::has_verdict_of(uint32_t rank) {
  request& r = requests_[verdict_message(rank, true)];
  if (!r.open) return arrivals_[rank] != arrival::missing;
  size_t size = 0;
  const dr_status s = test(r, size);
  if (s == DR_PENDING) return false;
  const verdict& v = verdicts_[rank];
  // (No rank has completed more exchanges than were started.)
  const bool sound =
      s == DR_OK && size == sizeof v && v.sound(program_.ranks) && v.sequence == sequence_ && v.commits <= info_.calls;
  if (sound)
    arrivals_[rank] = arrival::sound;
  else if (s == DR_OK || s == DR_E_CAPACITY)
    arrivals_[rank] = arrival::damaged;
  else if (s != DR_E_TIMEOUT)
    arrivals_[rank] = s == DR_E_MEMORY ? arrival::no_memory : arrival::lost;
  return arrivals_[rank] != arrival::missing;
}

bool exchange::loses_verdict_of(uint32_t rank) {
  const bool starves = arrivals_[rank] == arrival::no_memory;
  if (!starves && arrivals_[rank] != arrival::lost) return false;
  lose(starves ? DR_E_MEMORY : DR_E_PEER, rank, 0, "lost it");
  return true;
}

// While waiting for a frame, polls the verdict of one other rank per call. If others give up on this rank, or on one
// that waits for it, then the frame that this rank lacks, of less depth, is nearer to the cause: it reports that frame.
// But only if it has waited for as long as the others listen after they give up; otherwise it may be late itself.
void exchange::poll_verdict(const step& awaited) {
  if (program_.ranks == 1) return;
  if (host_) return poll_verdicts();
  polled_ = (polled_ + 1) % program_.ranks;
  if (polled_ == program_.rank) return;
  if (!has_verdict_of(polled_)) return;
  if (loses_verdict_of(polled_)) return;
  const verdict& news = verdicts_[polled_];
  if (arrivals_[polled_] != arrival::sound || news.code == DR_OK) return;
  const bool waited = now() - last_ns_ >= options_.timeout_ns / 10 * (verdicts_tenths - frames_tenths);
  if (news.code == DR_E_TIMEOUT && news.depth > program_.slots[awaited.slot].depth && waited)
    report_missing(awaited);
  else
    poison(news);
}

void exchange::send_verdict() {
  own().seal();
  verdict_sent_ = true;
  for (uint32_t i = 1; i < program_.ranks; ++i) {
    const uint32_t peer = (program_.rank + i) % program_.ranks;
    spend_on_verdict(DR_STEP_SEND);
    (void)start_request(verdict_message(peer, false), false, peer, 0, &own(), sizeof(verdict));
  }
}

// ---- Agreement --------------------------------------------------------------------------------------------

dr_status exchange::agree() {
  const bool last = now() >= gives_up_at();
  if (!verdict_sent_) {
    // The others no longer wait for this rank, though their frames and verdicts may be here: its findings reach no rank.
    if (last && program_.ranks > 1) {
      if (own().culprit != program_.rank) own().code = DR_OK;
      poison(DR_E_TIMEOUT, program_.rank, 0, "it was too late to agree");
    }
    send_verdict();
  }
  for (; cursor_ < program_.ranks; ++cursor_) {
    const uint32_t i = static_cast<uint32_t>(cursor_);
    if (i == program_.rank || arrivals_[i] != arrival::missing) continue;
    if (!has_verdict_of(i) && requests_[verdict_message(i, true)].open && !last) return DR_PENDING;
  }
  // (Not where they are received, which varies: a rank that waits for frames receives verdicts, too.)
  for (uint32_t i = 1; i < program_.ranks; ++i) spend_on_verdict(DR_STEP_WAIT);
  conclude_all();
  return DR_OK;
}

void exchange::conclude_all() {
  arrivals_[program_.rank] = arrival::sound;
  outcome_ = conclude(verdicts_, arrivals_);
  if (outcome_.code == DR_E_MEMORY && arrivals_[outcome_.culprit] == arrival::no_memory)
    outcome_.culprit = program_.rank;  // (The other ranks have this one's verdict: it fails alone.)
  if (outcome_.code == DR_OK) return;
  hide_controls(outcome_.message, sizeof outcome_.message);
  failed_ = true;
  // Each rank that is behind is reported once.
  if (outcome_.depth == verdict::behind && outcome_.culprit == program_.rank)
    for (const verdict& v : verdicts_) commits_ = std::max(commits_, v.commits);
  restore_residuals();
}

// Undoes all encodes of this exchange, the last first: adds the part that was sent to the residual, and subtracts the
// part of other ranks.
void exchange::restore_residuals() {
  if (factors_) return factors_->restore_residual();
  if (!plans_.method->keeps_feedback() || dry()) return;
  const float one = 1;
  for (size_t i = program_.steps.size(); i-- > 0;) {
    const step& s = program_.steps[i];
    if (!done_[i]) continue;
    const dr_bytes sent{worked_frame(s.slot), slot_size_[s.slot]};
    if (device_) {
      restore_there(s, sent);
      continue;
    }
    range_work& r = ranges_[s.range];
    (void)r.restore_residual(s.residual, program_.slots[s.slot].kind, {&sent, 1}, &one);
    if (s.what == DR_STEP_ENCODE_SUM && summed_[s.range])
      (void)r.restore_residual(s.residual, program_.slots[program_.inputs[s.first]].kind, gather_frames(s),
                               weights(s, -1));
  }
}

// Waits until no request is open. Messages from ranks that sent a verdict will arrive; the others are cancelled.
dr_status exchange::drain() {
  const bool last = now() >= gives_up_at();
  for (; cursor_ < requests_.size(); ++cursor_) {
    request& r = requests_[cursor_];
    size_t size = 0;
    if (!r.open || test(r, size) != DR_PENDING) continue;
    const bool hopeless = r.receives && (arrivals_[r.peer] == arrival::missing || arrivals_[r.peer] == arrival::lost);
    if (!last && !hopeless) return DR_PENDING;
    broken_ |= transport_.cancel(transport_.user, r.number) != DR_OK;
    r.open = false;
  }
  return device_ ? drain_device() : dr_status{DR_OK};
}

// (The owner of an empty range has nothing to do, unlike the other ranks.)
bool exchange::stands_for_all() const {
  const auto has_elements = [](const range_work& r) { return !r.empty(); };
  return dry() && program_.alike && (!program_.owned || std::all_of(ranges_.begin(), ranges_.end(), has_elements));
}

// ---- Calls ------------------------------------------------------------------------------------------------

dr_status exchange::start(const dr_call& call) {
  if (busy()) return fail(c_.error, DR_E_ARGUMENT, "exchange: already under way");
  if (broken_)
    return fail(c_.error, DR_E_ARGUMENT,
                "exchange: the transport still uses memory of an earlier exchange with a rank that is gone; create a "
                "new exchange");
  if (stuck_)
    return fail(c_.error, DR_E_ARGUMENT,
                "exchange: the device failed, or did not finish, in an earlier exchange; create a new exchange%s",
                host_ ? ", with a new communicator on every rank of the host" : "");
  if (factors_) factors_->start();
  call_ = call;
  begin_ns_ = last_ns_ = now();
  std::fill(done_.begin(), done_.end(), 0);
  std::fill(arrivals_.begin(), arrivals_.end(), arrival::missing);
  std::fill(times_.begin(), times_.end(), step_time{});
  failed_ = verdict_sent_ = false;
  own_status_ = DR_OK;
  outcome_ = verdict{};
  own() = verdict{};
  own().sequence = sequence_;
  own().commits = commits_;
  own().step = call_.step;
  own().fingerprint = fingerprint_;
  info_.sent = info_.received = info_.messages = info_.kept = 0;
  info_.waits = 0;
  info_.total_ns = info_.encode_ns = info_.wait_ns = info_.merge_ns = 0;
  for (uint32_t i = 1; i < program_.ranks; ++i) {
    const uint32_t peer = (program_.rank + i) % program_.ranks;
    if (const dr_status s =
            start_request(verdict_message(peer, true), true, peer, 0, &verdicts_[peer], sizeof(verdict))) {
      if (s != DR_E_TIMEOUT && s != DR_E_MEMORY) arrivals_[peer] = arrival::lost;
      lose(s, peer, 0, "cannot receive from it");
    }
  }
  pc_ = cursor_ = decoded_size_ = 0;
  busy_ = true;
  if (!times_.empty()) times_[0].begin_ns = last_ns_;
  return DR_OK;
}

dr_status exchange::run(const step& s) {
  switch (s.what) {
    case DR_STEP_ENCODE:
    case DR_STEP_ENCODE_SUM:
      if (device_) return encode_there(s);
      encode(s);
      break;
    case DR_STEP_SEND: send(s); break;
    case DR_STEP_RECV: recv(s); break;
    case DR_STEP_WAIT: return wait(s);
    case DR_STEP_SUM:
      if (device_) return decode_there(s);
      sum(s);
      break;
    case DR_STEP_ADD:
      if (ranges_[s.range].empty()) break;
      if (device_)
        add_there(s);
      else if (!dry())
        ranges_[s.range].add_gradient();
      spend(s, 0);
      break;
    case DR_STEP_AGREE: return agree();
    case DR_STEP_DECODE:
      if (device_) return decode_there(s);
      decode(s);
      break;
    case DR_STEP_MERGE: merge(s); break;
    case DR_STEP_REDUCE:
    case DR_STEP_GATHER: return collect_there(s);
    default: return drain();
  }
  return DR_OK;
}

// Only a frame of other tensors requires more memory than was allocated.
dr_status exchange::run_guarded(const step& s) {
  try {
    return run(s);
  } catch (const std::bad_alloc&) {
    if (s.what == DR_STEP_SUM && !factors_) ranges_[s.range].clear_sum();
    if (verdict_sent_) {
      fail_alone(blame(program_.rank, DR_E_MEMORY, "out of memory"));
    } else {
      blame_own(DR_E_MEMORY);
      poison(DR_E_PEER, program_.rank, 0, "out of memory");
    }
    return DR_OK;
  }
}

dr_status exchange::advance() {
  if (!busy()) return fail(c_.error, DR_E_ARGUMENT, "exchange: none is under way");
  return run_steps() == DR_PENDING ? dr_status{DR_PENDING} : finish();
}

// Until a step has to wait, or advance_ns are over.
dr_status exchange::run_steps() {
  const uint64_t limit_ns = options_.advance_ns;
  const uint64_t begin = limit_ns ? now() : 0;
  if (!info_.waits && pc_ > 0 && limit_ns) {  // (the time between two calls belongs to no step)
    last_ns_ = begin;
    if (!times_.empty() && pc_ < times_.size()) times_[pc_].begin_ns = begin;
  }
  info_.waits = 0;
  while (pc_ < program_.steps.size()) {
    const step& s = program_.steps[pc_];
    settling_ = false;
    if (run_guarded(s) == DR_PENDING) {
      info_.waits = !settling_;
      return DR_PENDING;
    }
    const uint64_t time = now(), elapsed = time - last_ns_;
    last_ns_ = time;
    switch (s.what) {
      case DR_STEP_ENCODE:
      case DR_STEP_ENCODE_SUM: info_.encode_ns += elapsed; break;
      case DR_STEP_SUM:
      case DR_STEP_ADD:
      case DR_STEP_DECODE:
      case DR_STEP_MERGE: info_.merge_ns += elapsed; break;
      default: info_.wait_ns += elapsed; break;
    }
    if (!times_.empty()) {
      times_[pc_].end_ns = time;
      times_[pc_].bytes = s.slot == no_slot ? 0 : slot_size_[s.slot];
    }
    ++pc_;
    cursor_ = 0;
    if (pc_ == program_.steps.size()) break;
    if (!times_.empty()) times_[pc_].begin_ns = time;
    if (limit_ns && time - begin >= limit_ns) return DR_PENDING;
  }
  return DR_OK;
}

dr_status exchange::finish() {
  busy_ = false;
  ++sequence_;
  ++info_.calls;
  info_.total_ns = last_ns_ - begin_ns_;
  if (outcome_.code == DR_OK) {
    ++commits_;
    return DR_OK;
  }
  ++info_.failures;
  const bool mine = outcome_.culprit == program_.rank;
  const dr_status code = mine && own_status_ ? own_status_ : outcome_.code;
  fail(c_.error, code, "exchange: rank %u%s: %s", outcome_.culprit, mine ? " (this one)" : "", outcome_.message);
  c_.error.frame = outcome_.culprit;
  c_.error.tensor = outcome_.tensor;
  c_.error.stream = outcome_.stream;
  c_.error.where = outcome_.where;
  c_.error.what = outcome_.what;
  return code;
}

dr_status exchange::cancel() {
  if (!busy()) return fail(c_.error, DR_E_ARGUMENT, "exchange: none is under way");
  if (verdict_sent_) return DR_OK;  // too late: the others have its verdict
  poison(DR_E_PEER, program_.rank, 0, "it cancelled the exchange");
  return DR_OK;
}

}  // namespace dr
