#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {

codec_case bytes_zstd() {
  return {DR_ROLE_BYTES,
          "zstd",
          {"zstd", "zstd(level=1)", "zstd(level=9)", "zstd(level=19)"},
          byte_strings(),
          [](const observation& o) -> std::string {
            return o.in.name.starts_with("zero bytes") && o.payload.size() > 24 + o.in.elements.size() / 1000
                       ? "zeros do not shrink"
                       : "";
          }};
}

}  // namespace dr::cases
