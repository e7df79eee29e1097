// Reports the time of a stage if the caller traces.
#pragma once

#include <chrono>

#include "deepreduce/deepreduce.h"

namespace dr {

class trace_span {
 public:
  trace_span(void (*trace)(void*, const dr_trace*), void* user, const char* stage)
      : trace_(trace), user_(user), stage_(stage), begin_(trace ? now() : 0) {}
  ~trace_span() {
    if (!trace_) return;
    const dr_trace t{sizeof(dr_trace), stage_, begin_, now(), bytes};
    trace_(user_, &t);
  }
  trace_span(const trace_span&) = delete;
  trace_span& operator=(const trace_span&) = delete;

  bool listened() const { return trace_; }

  uint64_t bytes = 0;

 private:
  static uint64_t now() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
  }
  void (*trace_)(void*, const dr_trace*);
  void* user_;
  const char* stage_;
  uint64_t begin_;
};

}  // namespace dr
