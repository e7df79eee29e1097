#include "cases/based_inputs.hpp"
#include "cases/case.hpp"

namespace dr::cases {

// Where most words go by a place or two the code is much shorter than the words, which it never exceeds by more than a byte.
codec_case value_ulp() {
  return {DR_ROLE_VALUE, "ulp", {"ulp"}, changed_values("ulp"), [](const observation& o) -> std::string {
            if (o.payload.size() > o.in.elements.size() + 1) return "longer than the words themselves";
            const bool many = o.in.count >= 2000 && word_size(o.in.dtype) > 1;
            return many && o.payload.size() > o.in.elements.size() * 0.5 ? "no shorter than half of the words" : "";
          }};
}

}  // namespace dr::cases
