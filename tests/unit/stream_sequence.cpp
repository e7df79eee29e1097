// In which order the streams of a plan are made: what needs a result of another codec comes after it.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "core/registry.hpp"
#include "pipeline/sequence.hpp"

namespace dr {
namespace {

using steps = std::vector<stream_step>;
using enum stream_step;

steps sequence(const char* index_name, const char* value_name, bool has_order) {
  wire_plan plan;
  const auto set = [&](section s, dr_role role, const char* name) {
    plan.lists[s].stages[0].codec = find_codec(role, name);
    REQUIRE(plan.lists[s].stages[0].codec);
    plan.lists[s].count = 1;
  };
  set(section_index, DR_ROLE_INDEX, index_name);
  set(section_value, DR_ROLE_VALUE, value_name);
  if (has_order) set(section_order, DR_ROLE_ORDER, "bitpack");
  const auto found = sequence_of(plan);
  return {found.begin(), found.end()};
}

TEST_CASE("streams: a replaced support before its values, values before the keys that may carry their order") {
  CHECK(sequence("golomb", "raw", false) == steps{value, reorder, index});
  CHECK(sequence("raw", "fit_poly", false) == steps{value, reorder, index});
  CHECK(sequence("golomb", "fit_poly", true) == steps{value, reorder, index, order});
  CHECK(sequence("bloom", "raw", false) == steps{index, regather, value, reorder});
  CHECK(sequence("bloom", "fit_poly", true) == steps{index, regather, value, reorder, order});
}

}  // namespace
}  // namespace dr
