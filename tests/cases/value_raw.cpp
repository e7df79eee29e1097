#include <algorithm>

#include "bench/plugin_test/samples.hpp"
#include "cases/case.hpp"

namespace dr::cases {

// The payload is the values, little-endian.
codec_case value_raw() {
  return {DR_ROLE_VALUE, "raw", {"raw"}, all_values("raw", false, {1, 3}), [](const observation& o) -> std::string {
            return std::ranges::equal(o.payload, o.in.elements) ? "" : "the payload is not the values";
          }};
}

}  // namespace dr::cases
