#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {

// The payload is the keys, little-endian.
codec_case index_raw() {
  return {DR_ROLE_INDEX, "raw", {"raw"}, supports("raw"), [](const observation& o) -> std::string {
            return std::ranges::equal(o.payload, o.in.elements) ? "" : "the payload is not the keys";
          }};
}

}  // namespace dr::cases
