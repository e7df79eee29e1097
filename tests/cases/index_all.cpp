#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {

codec_case index_all() {
  return {DR_ROLE_INDEX, "all", {"all"}, supports("all", 70000), [](const observation& o) -> std::string {
            return o.payload.empty() && o.told.size() == o.in.universe ? "" : "not the universe for no bytes";
          }};
}

}  // namespace dr::cases
