// Candidates, their measurement, and the report.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/gpu_peers.hpp"
#include "cuda/place.hpp"

namespace gpu_bench {

struct spread {
  double median = 0, p10 = 0, p90 = 0;
  size_t n = 0;
};

inline spread spread_of(std::vector<double> all) {
  if (all.empty()) return {};
  std::sort(all.begin(), all.end());
  const auto at = [&](double share) {
    return all[static_cast<size_t>(share * static_cast<double>(all.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9), all.size()};
}

// A row of the table. Times in microseconds.
struct row {
  std::string group, name, plan;
  uint64_t elements = 0, kept = 0, tensors = 1;
  uint64_t frame_bytes = 0;
  uint64_t bytes = 0;                            // of device memory that every implementation must read and write
  uint64_t launches = 0;                         // nodes of its graph
  uint64_t launches_most = 0;                    // 0: no gate
  std::string verified;                          // against what
  std::string failed;                            // the reason of a missing time, or ""
  std::string missing;                           // what this build lacks, or ""
  std::optional<double> gate, aim, stream_gate;  // of the median of graph replays, of plain launches
  double gate_times = 0;                         // the gate is so many times what another row takes
  std::string gate_of, gate_rule;                // that row, and the rule in words
  spread graph, stream;
  double back_to_back = 0;  // of consecutive replays; 0: they need other inputs each time
  bool cold = false;        // the caches were evicted before every replay
};

// What is measured: enqueue(set) on the session's stream, for every set of inputs.
struct candidate {
  row about;
  size_t sets = 1;
  bool fits_cache = false;  // all sets together
  std::function<void(size_t set)> enqueue;
  // Not timed, before every call: makes the inputs of a set anew, the n-th time. Caches are evicted then.
  std::function<void(size_t set, uint64_t n)> before;
  std::shared_ptr<void> keeps;  // the owner of its memory
};

struct settings {
  bool quick = false;
  double group_seconds = 0.4;  // of replays, for a group
  size_t replays_most = 200, replays_least = 15;
};

// The stream of all candidates, and memory to evict the caches.
struct session {
  place::stream stream;
  settings how;
  place::buffer large, sink;
  uint64_t large_size;

  explicit session(const settings& s)
      : how(s), sink(64), large_size(std::max<uint64_t>(1 << 12, 3 * cache_size() / 256 * 256)) {
    large = place::buffer(large_size);
    clear(raw(), large.at(), large_size);
    stream.wait();
  }
  void* raw() const { return stream.at().stream; }
  // Prepares a call: its inputs, and the caches.
  void prepare(const candidate& c, size_t set) {
    if (c.before) c.before(set, ++prepared_);
    if (c.fits_cache || c.before) chill();
  }
  void chill() { read_all(raw(), large.at(), large_size, reinterpret_cast<uint64_t*>(sink.at())); }

 private:
  uint64_t prepared_ = 0;
};

// Measures the candidates of a group in turn, so that a change of the machine affects all. Nothing waits between
// replays: a GPU with a queued replay shows no launch latency. Plain launches are measured one at a time, on an idle
// GPU, so that they show it.
inline void measure(session& s, std::vector<candidate>& group) {
  struct timed {
    candidate* what;
    std::vector<std::unique_ptr<place::graph>> graphs;
    std::vector<double> replays, launches;
  };
  std::vector<timed> all;
  for (candidate& c : group) {
    if (!c.about.failed.empty() || !c.about.missing.empty()) continue;
    timed t{&c, {}, {}, {}};
    for (size_t i = 0; i < c.sets; ++i) {
      t.graphs.push_back(std::make_unique<place::graph>(s.stream, [&c, i] { c.enqueue(i); }));
      if (const size_t n = t.graphs.back()->kernels()) c.about.launches = n;
    }
    c.about.cold = c.fits_cache || c.before;
    all.push_back(std::move(t));
  }
  if (all.empty()) return;

  place::stopwatch round;
  for (int i = 0; i < 3; ++i) {  // warms up; the last round measures the time of a round
    s.stream.wait();
    round.start(s.stream);
    for (timed& t : all) {
      s.prepare(*t.what, static_cast<size_t>(i) % t.graphs.size());
      t.graphs[static_cast<size_t>(i) % t.graphs.size()]->launch(s.stream);
    }
    round.stop(s.stream);
  }
  const double round_us = std::max(1.0, round.microseconds());
  const auto replays =
      std::clamp(static_cast<size_t>(1e6 * s.how.group_seconds / round_us), s.how.replays_least, s.how.replays_most);

  std::vector<std::unique_ptr<place::stopwatch>> watches;
  for (size_t i = 0; i < replays * all.size(); ++i) watches.push_back(std::make_unique<place::stopwatch>());
  for (size_t r = 0; r < replays; ++r)
    for (size_t i = 0; i < all.size(); ++i) {
      s.prepare(*all[i].what, r % all[i].graphs.size());
      place::stopwatch& w = *watches[r * all.size() + i];
      w.start(s.stream);
      all[i].graphs[r % all[i].graphs.size()]->launch(s.stream);
      w.stop(s.stream);
    }
  for (size_t i = 0; i < watches.size(); ++i) all[i % all.size()].replays.push_back(watches[i]->microseconds());

  for (size_t r = 0; r < std::min<size_t>(replays, 40); ++r)
    for (timed& t : all) {
      s.prepare(*t.what, r % t.what->sets);
      s.stream.wait();
      round.start(s.stream);
      t.what->enqueue(r % t.what->sets);
      round.stop(s.stream);
      t.launches.push_back(round.microseconds());
    }

  for (timed& t : all) {
    const size_t n = t.what->before ? 0 : std::min<size_t>(replays, 50);
    s.stream.wait();
    round.start(s.stream);
    for (size_t r = 0; r < n; ++r) t.graphs[r % t.graphs.size()]->launch(s.stream);
    round.stop(s.stream);
    if (n) t.what->about.back_to_back = round.microseconds() / static_cast<double>(n);
    t.what->about.graph = spread_of(t.replays);
    t.what->about.stream = spread_of(t.launches);
  }
  s.stream.wait();
}

}  // namespace gpu_bench
