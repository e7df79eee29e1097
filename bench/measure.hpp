// Times candidates against one another: in one run, in turn, so that what else the machine does hits all alike.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <span>
#include <vector>

namespace dr::bench {

struct timing {
  double median, low, high;  // seconds of one call; low and high are the quartiles
};

// Calls each candidate in turn, `rounds` times after a warm-up; one measurement is as many calls as take `slice` seconds.
inline std::vector<timing> alternate(std::span<const std::function<void()>> candidates, int rounds = 15,
                                     double slice = 2e-3) {
  using clock = std::chrono::steady_clock;
  const auto seconds = [](clock::time_point from) {
    return std::chrono::duration<double>(clock::now() - from).count();
  };
  std::vector<int> calls;
  for (const auto& run : candidates) {
    run();
    const auto from = clock::now();
    int n = 0;
    do run(), ++n;
    while (seconds(from) < slice);
    calls.push_back(n);
  }
  std::vector<std::vector<double>> times(candidates.size());
  for (int round = 0; round < rounds; ++round)
    for (size_t c = 0; c < candidates.size(); ++c) {
      const auto from = clock::now();
      for (int i = 0; i < calls[c]; ++i) candidates[c]();
      times[c].push_back(seconds(from) / calls[c]);
    }
  std::vector<timing> result;
  for (auto& t : times) {
    std::sort(t.begin(), t.end());
    result.push_back({t[t.size() / 2], t[t.size() / 4], t[t.size() - 1 - t.size() / 4]});
  }
  return result;
}

}  // namespace dr::bench
