#include "cases/based_inputs.hpp"
#include "cases/case.hpp"

namespace dr::cases {

// Where most words go by a place or two the code is much shorter than the words, which it never exceeds by more than its head.
codec_case value_history() {
  return {DR_ROLE_VALUE,
          "history",
          {"history"},
          with_histories(changed_values("history"), "histories"),
          [](const observation& o) -> std::string {
            if (o.payload.size() > o.in.elements.size() + 1 + 175) return "longer than the words themselves and a map";
            const bool many = o.in.count >= 2000 && word_size(o.in.dtype) > 1;
            return many && o.payload.size() > o.in.elements.size() * 0.5 ? "no shorter than half of the words" : "";
          }};
}

}  // namespace dr::cases
