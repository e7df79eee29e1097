// Chooses a rung of a ladder of plans, from the densest (0) to the smallest, by how long transfers take. After the idea
// of DC2 (Abdelmoniem and Canini, INFOCOM 2021), delay-aware control of compression; its law could not be read, so both
// laws here are ours. No clock, no random numbers, no other inputs: the same inputs lead to the same decisions,
// on every rank. Or by the step alone, one rung after the other: a warm-up of the ratio (DGC, Lin et al. 2018).
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "control/control_options.hpp"
#include "control/transfer_fit.hpp"
#include "deepreduce/control.h"

namespace dr {

class controller {
 public:
  using words = std::array<uint64_t, DR_CONTROL_WORDS>;

  // bytes [rungs]: sent by a step of every rung, 0: not known yet. Those that are known descend.
  dr_status create(std::string_view options, const uint64_t* bytes, size_t rungs, dr_error& error);

  // Records the time of a step, or of an empty transfer (0 bytes), on this rank.
  void observe(uint64_t bytes, uint64_t transfer_ns);
  // This rank's words for all ranks: median ns and bytes of the steps since the last decision (0: no step), median ns of an
  // empty transfer (0: none), and its state: decisions so far, options, rung.
  words report() const;
  // all [ranks][DR_CONTROL_WORDS]: the words of all ranks, in the same order on all. step: the next one.
  dr_status decide(uint64_t step, const uint64_t* all, size_t ranks, dr_error& error);

  const dr_control_info& info() const { return info_; }
  // The last decision as a line of JSON, without an end of line; characters written, below `capacity`.
  size_t write_log(char* line, size_t capacity) const;

 private:
  enum class wish { denser, stay, smaller };
  struct rung {
    uint64_t bytes = 0;
    // While it counts as too slow: the decision at which it may be tried again, how many that took, and the time of the
    // rung behind it when it was tried.
    uint64_t closed_until = 0, closed_for = 0;
    double before_ns = 0;
    // While it counts as sending no less than the denser one: the decision at which it may be tried again.
    uint64_t passed_until = 0;
  };
  // The last values of one kind.
  struct ring {
    std::vector<uint64_t> values;
    size_t count = 0, next = 0;
    void clear() { count = next = 0; }
    void add(uint64_t value);
    uint64_t median(std::vector<uint64_t>& scratch) const;
  };

  dr_status agree(const uint64_t* all, size_t ranks, dr_error& error);
  wish by_budget();
  wish by_fit();
  void by_step();
  uint32_t limited(wish w);
  bool is_closed(rung& r, double ns) const;
  bool sends_no_less() const;
  uint32_t next_smaller() const;
  uint32_t smallest_of_last() const;
  void move(uint32_t to);
  double now_ns() const { return static_cast<double>(info_.median_ns); }

  control_options options_;
  std::vector<rung> rungs_;
  ring times_, sizes_, empties_;           // of this rank; of steps since the last decision
  ring agreed_;                            // times that ranks agreed on since this rung was entered
  mutable std::vector<uint64_t> scratch_;  // of a median
  uint64_t digest_ = 0;                    // of the options
  double budget_ = 0;                      // aimd: bytes a step
  transfer_fit fit_;
  std::vector<uint8_t> at_smallest_;         // the last decisions; a ring
  uint64_t denser_votes_ = 0, no_room_ = 0;  // decisions in a row for a denser rung, and without room for it
  uint64_t entered_ = 0;                     // the decision that entered this rung
  bool tried_ = false;                       // it was entered from a smaller one
  dr_control_info info_{};
};

const char* control_reason(uint32_t reason);

}  // namespace dr
