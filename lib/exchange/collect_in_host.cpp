// The steps that the ranks of a host do together, by NCCL. They cannot be cancelled, and end when every rank of the host has
// issued its own: so a rank issues both in each exchange, in one that has failed, too. Nothing waits.
#include "exchange/rank_exchange.hpp"

namespace dr {

// The verdict of a rank whose collective does not end: it does not know which rank is missing. One that lacked the sum of
// its host says so by `hearsay` alone.
void exchange::miss_host(const step& s) {
  const uint32_t inner = plans_.method->exchange.inner, first = program_.rank / inner * inner;
  const auto near = [&](uint32_t places) { return first + (program_.rank - first + places) % inner; };
  uint32_t places = 1;  // to a rank whose verdict is missing, if there is one
  while (places + 1 < inner && arrivals_[near(places)] != arrival::missing) ++places;
  poison(DR_E_TIMEOUT, near(places), verdict::hearsay + (s.what == DR_STEP_GATHER),
         "the %s of its host is not done in time", s.what == DR_STEP_GATHER ? "result" : "sum");
}

// Whether a rank of this host will never take part: its connection is lost, or it has given up. This rank's verdict says
// why then.
bool exchange::is_hopeless(const step& s) {
  polled_ = (polled_ + 1) % program_.ranks;
  if (polled_ == program_.rank || !has_verdict_of(polled_)) return false;
  const uint32_t inner = plans_.method->exchange.inner, host = program_.rank / inner;
  const bool is_near = polled_ / inner == host;
  if (loses_verdict_of(polled_)) return is_near && arrivals_[polled_] == arrival::lost;
  const verdict& news = verdicts_[polled_];
  if (!is_near || arrivals_[polled_] != arrival::sound || news.code == DR_OK) return false;
  const bool guesses = news.code == DR_E_TIMEOUT && news.depth >= verdict::hearsay && news.culprit / inner == host;
  if (s.what == DR_STEP_REDUCE) {
    if (guesses)
      miss_host(s);
    else
      poison(news);
    return true;
  }
  // It lacked the sum, which this rank has: so this is the last that came.
  if (!guesses || news.depth != verdict::hearsay) return false;
  poison(DR_E_TIMEOUT, program_.rank, 0, "it was late: its host did not wait for its part of the sum");
  return true;
}

// Ranks of other hosts miss the frames of all that a late rank holds up: so a rank that waits for a frame hears all, and
// one that names this rank knows more than the others.
void exchange::poll_verdicts() {
  const verdict* late = nullptr;
  bool all = true;
  for (uint32_t i = 0; i < program_.ranks; ++i) {
    if (i == program_.rank) continue;
    if (!has_verdict_of(i)) {
      all = false;
      continue;
    }
    if (loses_verdict_of(i)) return;
    const verdict& news = verdicts_[i];
    if (arrivals_[i] != arrival::sound || news.code == DR_OK) continue;
    if (news.code != DR_E_TIMEOUT || news.culprit == program_.rank) return poison(news);
    if (!late) late = &news;
  }
  if (all && late) poison(*late);
}

dr_status exchange::collect_there(const step& s) {
  enum : size_t { begins, issues, runs };
  const bool sums = s.what == DR_STEP_REDUCE;
  const char* const what = sums ? "the sum of its host" : "the result of its host";
  if (stuck_) return DR_OK;
  const auto blame_this = [&](dr_status status) {
    blame_own(status);
    poison(DR_E_PEER, program_.rank, 0, "%s: %s", what, c_.error.message);
  };
  const auto give_up = [&](dr_status status) {
    stuck_ = true;
    if (status) blame_this(status);
    return dr_status{DR_OK};
  };
  if (cursor_ == begins) {
    // The others' sum goes on without this rank's gradient, which is in no residual then.
    if (const dr_status e = sums ? host_->take_tensors() : dr_status{DR_OK}) {
      blame_this(e);
      (void)host_->clear();
    }
    collects_ = true;
    if (const dr_status e = sums ? host_->sum() : host_->gather()) return give_up(e);
    cursor_ = issues;
  }
  dr_status status = host_->poll();
  if (!status && cursor_ == issues) {
    if ((status = device_->mark())) return give_up(status);
    collects_ = false;
    cursor_ = runs;
  }
  if (!status) status = device_->poll();
  if (!status) {
    spend(s, host_->memory_size());
    return DR_OK;
  }
  if (status != DR_PENDING) return give_up(status);
  if (is_hopeless(s)) return give_up(DR_OK);
  if (now() < gives_up_at()) {
    settling_ = true;
    return DR_PENDING;
  }
  miss_host(s);
  return give_up(DR_OK);
}

}  // namespace dr
