#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {

// The payload is the values, little-endian.
codec_case value_raw() {
  std::vector<input> inputs = all_values("raw", false, {1, 3});
  for (input& in : all_words("raw", {1, 3})) inputs.push_back(std::move(in));
  return {DR_ROLE_VALUE, "raw", {"raw"}, std::move(inputs), [](const observation& o) -> std::string {
            return std::ranges::equal(o.payload, o.in.elements) ? "" : "the payload is not the values";
          }};
}

}  // namespace dr::cases
