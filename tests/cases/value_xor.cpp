#include "cases/based_inputs.hpp"
#include "cases/case.hpp"

namespace dr::cases {

codec_case value_xor() {
  return {DR_ROLE_VALUE, "xor", {"xor"}, changed_values("xor"), [](const observation& o) -> std::string {
            if (o.payload.size() > o.in.elements.size() + 1) return "longer than the words themselves";
            const bool many = o.in.count >= 2000 && word_size(o.in.dtype) > 1;
            return many && o.payload.size() > o.in.elements.size() * 0.7 ? "hardly shorter than the words" : "";
          }};
}

}  // namespace dr::cases
