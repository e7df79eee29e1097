// The program of a rank in an exchange: a list of steps in their final order. Compiled once for (schedule, ranks,
// rank); independent of bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/bind.hpp"

namespace dr {

inline constexpr uint32_t no_slot = UINT32_MAX;

// The residual that keeps the part that an encode drops.
enum class residual_kind : uint8_t { none, own, sum };
// The weights of frames in a sum.
enum class weighting : uint8_t { one, mean };

struct step {
  uint8_t what;  // DR_STEP_*
  residual_kind residual = residual_kind::none;
  weighting weight = weighting::one;
  bool exact = false;          // ENCODE: dense and raw, not by the plan
  bool with_gradient = false;  // ENCODE_SUM: the sum has this rank's gradient in it
  uint32_t range = 0;
  uint32_t slot = no_slot;        // the frame that it makes, sends, receives or waits for
  uint32_t peer = 0;              // SEND, RECV
  uint32_t message = 0;           // SEND, RECV: its request; WAIT: that of its RECV
  uint32_t first = 0, count = 0;  // SUM, MERGE: of program::inputs, slots in rank order; ENCODE_SUM: of its SUM
};

// A frame: its range, its maker, and its contents.
enum class frame_kind : uint8_t { part, exact, sum };
struct frame_slot {
  uint32_t range, maker;
  frame_kind kind;
  uint32_t tag;    // of its messages
  uint32_t depth;  // sums that it depends on: a rank that is late at less depth is late first
};

struct program {
  uint32_t ranks = 1, rank = 0, ranges = 1;
  bool alike = true;   // all ranks have the same steps, their peers moved on by their numbers
  bool owned = false;  // range k · ranks + o is rank o's, and tags move on with it
  std::vector<step> steps;
  std::vector<uint32_t> inputs;
  std::vector<frame_slot> slots;
  uint32_t tags = 1;      // tag 0 is that of verdicts
  uint32_t messages = 0;  // requests that steps make
};

// How many ranges the elements are cut into.
uint32_t ranges_of(const exchange_stage& how, uint32_t ranks, bool on_device);
program compile(const exchange_stage& how, uint32_t ranks, uint32_t rank);
// On devices, of which `inner` share a host: range j is that of the ranks of number j / parts in their hosts. There is at
// least one of each: ranks is a multiple of inner.
program compile_by_host(const exchange_stage& how, uint32_t ranks, uint32_t rank);
// Of so many factors that are all-reduced one after the other. Range f · ranks + o is rank o's chunk of factor f.
program compile_factors(uint32_t phases, uint32_t ranks, uint32_t rank);

}  // namespace dr
