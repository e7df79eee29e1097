// The tool's presets are plans.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "bench/compare/presets.hpp"
#include "client.hpp"

TEST_CASE("every preset is a plan, by a name of its own, alone and in its set") {
  using namespace dr::compare;
  std::set<std::string> names;
  for (const preset& p : presets()) {
    CAPTURE(p.name);
    CHECK(names.insert(p.name).second);
    const auto alone = preset_plans(p.name, "sparsify=topr(ratio=0.01)");
    REQUIRE(alone.size() == 1);
    const auto set = preset_plans(p.set, "sparsify=topr(ratio=0.01)");
    CHECK(std::count(set.begin(), set.end(), alone[0]) == 1);
    dr_error error{sizeof(dr_error)};
    error.struct_size = sizeof error;
    dr_plan* plan = nullptr;
    const dr_status status = dr_plan_parse(alone[0].c_str(), &plan, &error);
    INFO(alone[0] << ": " << std::string(error.message));
    CHECK(status == DR_OK);
    dr_plan_destroy(plan);
  }
  for (const preset& p : presets()) CHECK(names.count(p.set) == 0);
  CHECK(preset_plans("BF-P3", "sparsify=none").empty());
}
