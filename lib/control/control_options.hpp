// The options of a controller, as text: aimd(target_ms=20,interval=2), fit(…) or steps(each=100).
#pragma once

#include <string_view>

#include "core/error.hpp"

namespace dr {

enum class control_law { aimd, fit, steps };
enum class rank_choice { least, mean, largest };  // of the ranks' times, the one that counts

struct control_options {
  control_law law = control_law::aimd;
  double target_ns = 0;                    // of the transfers of a step
  double band = 0.2;                       // a time within target · (1 ± band) changes nothing
  uint32_t interval = 1, window = 3;       // steps between decisions (steps: of a rung); decisions of the median
  double increase = 0.25, decrease = 0.5;  // aimd: added to the budget, as a share of the densest rung's bytes; factor
  uint32_t samples = 8;                    // fit: decisions that the line is fitted to
  uint32_t patience = 3;                   // decisions in a row for a denser rung, before it is chosen
  // Decisions before a rung that was too slow is tried again; 0: not before the link is twice as fast.
  uint32_t retry = 50;
  uint32_t densest = 0, smallest = 0, start = 0;  // rungs
  double share = 1;                               // largest share of the last decisions at the smallest rung
  rank_choice agree = rank_choice::least;
};

inline constexpr uint32_t control_rungs_max = 64, control_window_max = 256, control_samples_max = 256;
inline constexpr uint32_t control_share_window = 20;  // decisions

// rungs: of the ladder. ARGUMENT names the option, the value and the allowed range.
dr_status read_control_options(std::string_view text, uint32_t rungs, control_options& out, dr_error& error);

}  // namespace dr
