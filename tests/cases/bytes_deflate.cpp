#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {

codec_case bytes_deflate() {
  return {DR_ROLE_BYTES,
          "deflate",
          {"deflate", "deflate(level=1)", "deflate(level=9)"},
          byte_strings(),
          [](const observation& o) -> std::string {
            return o.in.name.starts_with("zero bytes") && o.payload.size() > 16 + o.in.elements.size() / 100
                       ? "zeros do not shrink"
                       : "";
          }};
}

}  // namespace dr::cases
