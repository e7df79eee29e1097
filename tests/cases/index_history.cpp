#include "cases/based_inputs.hpp"
#include "cases/split_golomb_size.hpp"

namespace dr::cases {

// Grades are taken where there is something to choose from: never much longer than one class of gaps, and shorter where a
// history tells which words change.
codec_case index_history() {
  return {DR_ROLE_INDEX,
          "history",
          {"history"},
          with_histories(changed_supports("history"), "histories"),
          [](const observation& o) {
            const uint64_t plain = split_golomb_size(words(o.in.elements), o.in.universe, 12, false);
            const bool many = o.in.count >= 2500 && o.in.universe > 4 * o.in.count;
            if (o.payload.size() > plain + 8 + 5 + (o.in.count < 128 ? 0 : 171))
              return "longer than golomb: " + std::to_string(o.payload.size()) + " to " + std::to_string(plain);
            if (many && !o.in.history.empty() && o.payload.size() > plain * 0.8)
              return "hardly shorter than without a history: " + std::to_string(o.payload.size()) + " to " +
                     std::to_string(plain);
            return std::string();
          }};
}

}  // namespace dr::cases
