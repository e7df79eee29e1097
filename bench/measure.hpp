// Times candidates against one another: in one run, in turn, so that what else the machine does hits all alike, and by the thread's CPU
// time, so that what others do in between is not counted. (What they leave of caches and clock rates is.)
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <span>
#include <vector>

namespace dr::bench {

struct timing {
  double median, low, high;  // seconds of one call; low and high are the quartiles
};

inline constexpr const char* clock_name = "CPU time of the thread";
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// For what works on several threads.
inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Calls each candidate in turn, `rounds` times after a warm-up; one measurement is as many calls as take `slice` seconds.
inline std::vector<timing> alternate(std::span<const std::function<void()>> candidates, int rounds = 15,
                                     double slice = 2e-3, double (*now)() = thread_seconds) {
  std::vector<int> calls;
  for (const auto& run : candidates) {
    run();
    const double from = now();
    int n = 0;
    do run(), ++n;
    while (now() - from < slice);
    calls.push_back(n);
  }
  std::vector<std::vector<double>> times(candidates.size());
  for (int round = 0; round < rounds; ++round)
    for (size_t c = 0; c < candidates.size(); ++c) {
      const double from = now();
      for (int i = 0; i < calls[c]; ++i) candidates[c]();
      times[c].push_back((now() - from) / calls[c]);
    }
  std::vector<timing> result;
  for (auto& t : times) {
    std::sort(t.begin(), t.end());
    result.push_back({t[t.size() / 2], t[t.size() / 4], t[t.size() - 1 - t.size() / 4]});
  }
  return result;
}

}  // namespace dr::bench
