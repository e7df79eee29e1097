#include "control/controller.hpp"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>

namespace dr {
namespace {

// A trial that fails doubles the wait for the next one, up to so many times the first.
constexpr uint64_t closed_for_max = 8;
constexpr size_t empties_max = 9;
// Bits of the word that identifies the sender's state: rung, digest of the options, decisions.
constexpr unsigned rung_bits = 8, digest_bits = 16;

uint64_t digest_of(std::string_view options, size_t rungs) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325 ^ rungs;
  for (const char c : options) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return h >> 32 & ((1u << digest_bits) - 1);
}

// One number from a word of all ranks. A rank that measured nothing does not count.
uint64_t chosen(rank_choice choice, const uint64_t* all, size_t ranks, size_t word) {
  uint64_t least = UINT64_MAX, largest = 0, count = 0;
  double sum = 0;
  for (size_t i = 0; i < ranks; ++i) {
    const uint64_t* const words = all + i * DR_CONTROL_WORDS;
    if (words[word == 0 ? 1 : word] == 0) continue;
    least = std::min(least, words[word]);
    largest = std::max(largest, words[word]);
    sum += static_cast<double>(words[word]);
    ++count;
  }
  if (count == 0) return 0;
  if (choice == rank_choice::least) return least;
  return choice == rank_choice::largest ? largest
                                        : static_cast<uint64_t>(std::min(sum / static_cast<double>(count), 0x1p60));
}

}  // namespace

void controller::ring::add(uint64_t value) {
  values[next] = value;
  next = (next + 1) % values.size();
  count = std::min(count + 1, values.size());
}

uint64_t controller::ring::median(std::vector<uint64_t>& scratch) const {
  if (!count) return 0;
  std::copy_n(values.begin(), count, scratch.begin());
  const auto middle = scratch.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(scratch.begin(), middle, scratch.begin() + static_cast<std::ptrdiff_t>(count));
  return *middle;
}

dr_status controller::create(std::string_view options, const uint64_t* bytes, size_t rungs, dr_error& error) {
  if (rungs == 0 || rungs > control_rungs_max)
    return fail(error, DR_E_ARGUMENT, "control: a ladder of %zu rungs, not of 1 … %u", rungs, control_rungs_max);
  if (const dr_status s = read_control_options(options, static_cast<uint32_t>(rungs), options_, error)) return s;
  rungs_.resize(rungs);
  uint64_t before = UINT64_MAX;
  for (size_t i = 0; i < rungs && bytes; ++i) {
    rungs_[i].bytes = bytes[i];
    if (bytes[i] >= before)
      return fail(error, DR_E_ARGUMENT,
                  "control: rung %zu has %" PRIu64 " bytes, not fewer than the %" PRIu64
                  " before it: a ladder goes from dense to small",
                  i, bytes[i], before);
    if (bytes[i]) before = bytes[i];
  }
  const size_t steps = std::min(options_.interval, control_window_max);
  times_.values.resize(steps);
  sizes_.values.resize(steps);
  empties_.values.resize(empties_max);
  agreed_.values.resize(options_.window);
  scratch_.resize(std::max({steps, size_t{options_.window}, empties_max}));
  at_smallest_.resize(control_share_window);
  if (options_.law == control_law::fit) fit_.create(options_.samples);
  digest_ = digest_of(options, rungs);
  info_.struct_size = sizeof info_;
  info_.rungs = static_cast<uint32_t>(rungs);
  info_.rung = info_.from = options_.start;
  info_.next_step = options_.interval;
  budget_ = static_cast<double>(rungs_[info_.rung].bytes);
  return DR_OK;
}

void controller::observe(uint64_t bytes, uint64_t transfer_ns) {
  if (bytes == 0) return empties_.add(transfer_ns);
  times_.add(transfer_ns);
  sizes_.add(bytes);
}

controller::words controller::report() const {
  const uint64_t who = (info_.decisions << digest_bits | digest_) << rung_bits | info_.rung;
  return {times_.median(scratch_), sizes_.median(scratch_), empties_.median(scratch_), who};
}

dr_status controller::agree(const uint64_t* all, size_t ranks, dr_error& error) {
  const uint64_t who = report()[3];
  for (size_t i = 0; i < ranks; ++i)
    if (const uint64_t other = all[i * DR_CONTROL_WORDS + 3]; other != who) {
      const bool options = (other >> rung_bits ^ who >> rung_bits) & ((1u << digest_bits) - 1);
      fail(error, DR_E_ARGUMENT,
           "control: rank %zu is at decision %" PRIu64 ", rung %u%s; this one at decision %" PRIu64
           ", rung %u: ranks are out of step",
           i, other >> (rung_bits + digest_bits), static_cast<unsigned>(other & ((1u << rung_bits) - 1)),
           options ? ", with other options" : "", info_.decisions, info_.rung);
      error.frame = i;
      return DR_E_ARGUMENT;
    }
  info_.transfer_ns = chosen(options_.agree, all, ranks, 0);
  info_.bytes = chosen(rank_choice::largest, all, ranks, 1);
  info_.empty_ns = chosen(options_.agree, all, ranks, 2);
  return DR_OK;
}

dr_status controller::decide(uint64_t step, const uint64_t* all, size_t ranks, dr_error& error) {
  if (step < info_.next_step)
    return fail(error, DR_E_ARGUMENT, "control: step %" PRIu64 " is before %" PRIu64 ", at which a decision is due",
                step, info_.next_step);
  if (const dr_status s = agree(all, ranks, error)) return s;
  times_.clear();
  sizes_.clear();
  ++info_.decisions;
  info_.step = step;
  info_.next_step = step + options_.interval;
  info_.from = info_.rung;
  if (options_.law == control_law::steps) {
    by_step();
  } else if (info_.bytes == 0) {
    info_.reason = DR_CONTROL_NOTHING;
  } else {
    rungs_[info_.rung].bytes = info_.bytes;
    agreed_.add(info_.transfer_ns);
    info_.median_ns = agreed_.median(scratch_);
    const uint32_t to = limited(options_.law == control_law::aimd ? by_budget() : by_fit());
    if (to != info_.rung) move(to);
  }
  at_smallest_[info_.decisions % control_share_window] = info_.rung == info_.rungs - 1;
  info_.budget = budget_;
  info_.base_ns = fit_.base_ns;
  info_.per_byte_ns = fit_.per_byte_ns;
  return DR_OK;
}

// Law A: additive increase, multiplicative decrease of the bytes that a step may send.
controller::wish controller::by_budget() {
  const double ns = now_ns(), bytes = static_cast<double>(info_.bytes);
  if (ns > options_.target_ns * (1 + options_.band)) {
    budget_ = options_.decrease * bytes;
    return wish::smaller;
  }
  budget_ = std::max(budget_, bytes);
  if (ns >= options_.target_ns * (1 - options_.band)) {
    info_.reason = DR_CONTROL_IN_BAND;
    return wish::stay;
  }
  if (info_.rung == 0) return wish::denser;  // (there is no denser rung; `limited` handles it)
  uint64_t bytes_max = 0;
  for (const rung& r : rungs_) bytes_max = std::max(bytes_max, r.bytes);
  budget_ += options_.increase * static_cast<double>(bytes_max);
  const double denser = static_cast<double>(rungs_[info_.rung - 1].bytes);  // 0: not known, so it is tried
  if (budget_ < denser) {
    ++denser_votes_;
    info_.reason = DR_CONTROL_NO_ROOM;
    return wish::stay;
  }
  if (denser > 0) budget_ = denser;  // credit is for one rung
  return wish::denser;
}

// Law B: the bytes that meet the target, by t = A + B · bytes.
controller::wish controller::by_fit() {
  const double ns = now_ns(), bytes = static_cast<double>(info_.bytes), target = options_.target_ns;
  // The link has changed: earlier measurements no longer hold.
  if (fit_.count() && std::abs(ns - fit_.at(bytes)) > 2 * options_.band * std::max(ns, fit_.at(bytes))) fit_.clear();
  fit_.add(bytes, ns);
  fit_.solve(static_cast<double>(info_.empty_ns), info_.empty_ns > 0);
  if (ns > target * (1 + options_.band)) return wish::smaller;
  if (ns >= target * (1 - options_.band)) {
    info_.reason = DR_CONTROL_IN_BAND;
    return wish::stay;
  }
  if (info_.rung == 0) return wish::denser;
  const uint64_t denser = rungs_[info_.rung - 1].bytes;
  if (denser == 0 || fit_.at(static_cast<double>(denser)) <= target) {
    no_room_ = 0;
    return wish::denser;
  }
  // The line hangs on an empty transfer, which may take less than the schedule's own messages do, or on none: so a trial
  // now and then.
  if (options_.retry && ++no_room_ >= options_.retry) {
    no_room_ = 0;
    denser_votes_ = options_.patience;
    return wish::denser;
  }
  denser_votes_ = 0;
  info_.reason = DR_CONTROL_NO_ROOM;
  return wish::stay;
}

// Law C: a rung lasts `each` steps, the last one for ever.
void controller::by_step() {
  if (info_.bytes) info_.median_ns = info_.transfer_ns;
  const uint64_t after = info_.step / options_.interval;
  const uint32_t to = after < options_.smallest - options_.densest ? options_.densest + static_cast<uint32_t>(after)
                                                                   : options_.smallest;
  info_.reason = to == info_.rung ? DR_CONTROL_LAST : DR_CONTROL_STEPS;
  if (to != info_.rung) move(to);
}

// What bounds, hysteresis and earlier trials leave of it: the next rung.
uint32_t controller::limited(wish w) {
  const uint32_t at = info_.rung, last = info_.rungs - 1;
  const auto allowed = static_cast<uint32_t>(options_.share * control_share_window + 1e-9);
  const bool share_used = options_.share < 1 && smallest_of_last() >= allowed;
  // A trial lasts until a window is full; the first steps of a rung may not have been measured.
  const bool on_trial = tried_ && info_.decisions - entered_ <= uint64_t{options_.patience} + options_.window;
  if (w != wish::smaller && !on_trial) rungs_[at].closed_for = 0;
  if (w == wish::denser)
    ++denser_votes_;
  else if (w == wish::smaller || info_.reason == DR_CONTROL_IN_BAND)
    denser_votes_ = 0;
  const uint32_t next = next_smaller();
  if (sends_no_less() && (w != wish::smaller || next == at) && !is_closed(rungs_[at - 1], now_ns())) {
    rungs_[at].passed_until = options_.retry ? info_.decisions + options_.retry : UINT64_MAX;
    rungs_[at - 1].before_ns = now_ns();
    info_.reason = DR_CONTROL_NO_LESS;
    return at - 1;
  }
  if (w == wish::smaller) {
    if (next == at) {
      info_.reason = at < options_.smallest ? DR_CONTROL_PASSED : DR_CONTROL_SMALLEST;
    } else if (next == last && share_used) {
      info_.reason = DR_CONTROL_SHARE;
      return at;
    } else {
      rung& r = rungs_[at];
      if (on_trial) {
        r.closed_for = r.closed_for ? std::min(2 * r.closed_for, closed_for_max * options_.retry) : options_.retry;
        r.closed_until = options_.retry ? info_.decisions + r.closed_for : UINT64_MAX;
      } else {
        r.closed_for = r.closed_until = 0;
      }
      info_.reason = DR_CONTROL_SLOW;
      return next;
    }
  }
  if (at == last && at > options_.densest && share_used) {
    info_.reason = DR_CONTROL_SHARE;
    return at - 1;
  }
  if (w != wish::denser) return at;
  if (at <= options_.densest) {
    info_.reason = DR_CONTROL_DENSEST;
  } else if (is_closed(rungs_[at - 1], now_ns())) {
    info_.reason = DR_CONTROL_CLOSED;
  } else if (denser_votes_ < options_.patience) {
    info_.reason = DR_CONTROL_WAITS;
  } else {
    info_.reason = DR_CONTROL_FAST;
    rungs_[at - 1].before_ns = now_ns();
    return at - 1;
  }
  return at;
}

bool controller::is_closed(rung& r, double ns) const {
  if (info_.decisions >= r.closed_until) return false;
  if (2 * ns >= r.before_ns) return true;
  r.closed_until = r.closed_for = 0;  // the link is twice as fast as when it was tried
  return false;
}

// Than the denser rung, where that is allowed: the ladder is not in order.
bool controller::sends_no_less() const {
  if (info_.rung <= options_.densest) return false;
  const uint64_t denser = rungs_[info_.rung - 1].bytes;
  return denser && info_.bytes >= denser;
}

// The next rung, skipping those that sent no less when they were tried; this rung, if there is no other.
uint32_t controller::next_smaller() const {
  for (uint32_t i = info_.rung + 1; i <= options_.smallest; ++i)
    if (info_.decisions >= rungs_[i].passed_until) return i;
  return info_.rung;
}

uint32_t controller::smallest_of_last() const {
  uint32_t count = 0;
  for (size_t i = 0; i < at_smallest_.size(); ++i)  // without the one that this decision replaces
    if (i != info_.decisions % control_share_window) count += at_smallest_[i];
  return count;
}

void controller::move(uint32_t to) {
  tried_ = to < info_.rung && (info_.reason == DR_CONTROL_FAST || info_.reason == DR_CONTROL_NO_LESS);
  info_.rung = to;
  ++info_.changes;
  entered_ = info_.decisions;
  denser_votes_ = no_room_ = 0;
  agreed_.clear();
  budget_ = std::max(budget_, static_cast<double>(rungs_[to].bytes));
}

size_t controller::write_log(char* line, size_t capacity) const {
  const dr_control_info& i = info_;
  const int n = std::snprintf(line, capacity,
                              "{\"step\":%" PRIu64 ",\"decision\":%" PRIu64
                              ",\"from\":%u,\"rung\":%u,\"reason\":\"%s\","
                              "\"transfer_ns\":%" PRIu64 ",\"median_ns\":%" PRIu64 ",\"bytes\":%" PRIu64
                              ",\"empty_ns\":%" PRIu64 ",\"budget\":%.0f,\"base_ns\":%.0f,\"bytes_per_second\":%.0f}",
                              i.step, i.decisions, i.from, i.rung, control_reason(i.reason), i.transfer_ns, i.median_ns,
                              i.bytes, i.empty_ns, i.budget, i.base_ns, i.per_byte_ns > 0 ? 1e9 / i.per_byte_ns : 0.0);
  return n < 0 ? 0 : static_cast<size_t>(n);
}

const char* control_reason(uint32_t reason) {
  switch (reason) {
    case DR_CONTROL_START: return "nothing decided yet";
    case DR_CONTROL_NOTHING: return "stays: nothing was measured";
    case DR_CONTROL_IN_BAND: return "stays: near the target";
    case DR_CONTROL_SLOW: return "too slow: one rung smaller";
    case DR_CONTROL_FAST: return "time to spare: one rung denser";
    case DR_CONTROL_WAITS: return "stays: time to spare, not yet often enough";
    case DR_CONTROL_NO_ROOM: return "stays: time to spare, too little for a denser rung";
    case DR_CONTROL_CLOSED: return "stays: the denser rung was too slow when it was tried";
    case DR_CONTROL_DENSEST: return "stays: time to spare at the densest rung allowed";
    case DR_CONTROL_SMALLEST: return "stays: too slow at the smallest rung allowed";
    case DR_CONTROL_SHARE: return "the smallest rung has had its share";
    case DR_CONTROL_NO_LESS: return "sends no less than the denser rung: one rung denser";
    case DR_CONTROL_STEPS: return "its steps are over: the next rung";
    case DR_CONTROL_LAST: return "stays: the last rung, or its steps are not over";
    case DR_CONTROL_PASSED: return "stays: too slow, and the smaller rungs send no less";
  }
  return "?";
}

}  // namespace dr
