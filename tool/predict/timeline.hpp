// The parts of a step over time.
#pragma once

#include <string>
#include <vector>

namespace dr::predict {

struct interval {
  std::string lane;  // "compute", "link"
  std::string kind;  // forward, backward, encode, merge, rest; allreduce, allgather; or a step of an exchange's program
  std::string name;
  double begin_ns = 0, end_ns = 0;
};

// A modelled step of one rank. Times in ns.
struct outcome {
  double step_ns = 0;
  double encode_ns = 0, merge_ns = 0;  // computing that an uncompressed step lacks
  double link_ns = 0;                  // the link is busy
  double exposed_ns = 0;               // computing waits for the link, or is slowed down by it
  double no_overlap_ns = 0;            // the same parts one after another
  double perfect_ns = 0;               // the longer of computing and the link
  double bytes = 0;                    // that a rank sends
  std::vector<interval> timeline;      // if requested
};

// Computing on one thread beside one link that serves transfers in order. Computing is slower by `slowdown` while the link
// is busy: both use the same cores. A transfer starts `skew_ns` after this rank is ready: when the slowest rank is.
class two_lanes {
 public:
  two_lanes(double slowdown, bool traced, double skew_ns = 0) : slowdown_(slowdown), skew_(skew_ns), traced_(traced) {}

  void compute(double ns, const char* kind, const std::string& name);
  // Starts a transfer, which waits for those before it; returns when it ends. level: the ranks are
  // synchronised.
  double send(double ns, const char* kind, const std::string& name, bool level = false);
  void wait(double until);  // idle
  double now() const { return now_; }

  // `plain_ns`: of computing without any exchange.
  outcome result(double plain_ns, double encode_ns, double merge_ns, double bytes);

 private:
  double slowdown_, skew_;
  bool traced_;
  double now_ = 0, link_free_ = 0, link_busy_ = 0;
  std::vector<interval> timeline_;
};

// As Chrome's trace event JSON: two threads of a process.
std::string chrome_trace(const std::vector<interval>& timeline, const std::string& title);
// As a picture of two rows.
std::string timeline_svg(const std::vector<interval>& timeline, const std::string& title, double step_ns);

}  // namespace dr::predict
