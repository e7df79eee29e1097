// The tool's presets are plans.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "client.hpp"
#include "deepreduce/deepreduce.hpp"
#include "tool/read/inputs.hpp"
#include "tool/read/presets.hpp"

TEST_CASE("every preset is a plan, by a name of its own, alone and in its set") {
  using namespace dr::compare;
  std::set<std::string> names;
  for (const dr_preset* p : dr::presets()) {
    CAPTURE(p->name);
    CHECK(names.insert(p->name).second);
    const auto alone = preset_plans(p->name, "sparsify=topr(ratio=0.01)");
    REQUIRE(alone.size() == 1);
    CHECK(dr::plan(p->name).text() == dr::plan(alone[0]).text());
    const auto set = preset_plans(p->set, "sparsify=topr(ratio=0.01)");
    CHECK(std::count(set.begin(), set.end(), alone[0]) == 1);
    dr_error error{sizeof(dr_error)};
    error.struct_size = sizeof error;
    dr_plan* plan = nullptr;
    const dr_status status = dr_plan_parse(alone[0].c_str(), &plan, &error);
    INFO(alone[0] << ": " << std::string(error.message));
    CHECK(status == DR_OK);
    dr_plan_destroy(plan);
  }
  for (const dr_preset* p : dr::presets()) CHECK(names.count(p->set) == 0);
  CHECK(preset_plans("BF-P3", "sparsify=none").empty());
}

namespace {

// The streams and the whole frame, of dense f32.
struct volumes {
  double streams, frame;
};
volumes of_preset(const std::string& name, const client::floats& g) {
  client::context c;
  std::string plan = dr::compare::preset_plans(name, "sparsify=topr(ratio=0.01)").at(0);
  // A first step's residual is empty: the frame is that of the plan without.
  if (const size_t at = plan.find("feedback=residual "); at != plan.npos) plan.erase(at, 18);
  const client::bytes frame = client::encode(c, plan, {client::dense(g)});
  const dr_tensor_info info = client::inspect(frame);
  const double dense = 4 * static_cast<double>(g.size());
  return {static_cast<double>(info.index_size + info.value_size) / dense, static_cast<double>(frame.size()) / dense};
}

}  // namespace

TEST_CASE("SKCompress has the size of Fig. 8, within a tenth, with and without our header") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const volumes v = of_preset("SKCompress", client::laplace(36864, seed));
    CHECK(v.streams == doctest::Approx(0.0034).epsilon(0.1));
    CHECK(v.frame == doctest::Approx(0.0034).epsilon(0.1));
  }
}

// What they miss, and why, is in their notes: these are the sizes that those say.
TEST_CASE("3LC and SketchML have the sizes that their notes say, not Fig. 16's") {
  client::floats gradient;
  for (const auto& t : dr::compare::read_input(DR_DATASETS "/gradients/resnet20_digits_step0150.npz")) {
    const auto* values = reinterpret_cast<const float*>(t.data.data());
    gradient.insert(gradient.end(), values, values + t.elements);
  }
  CHECK(of_preset("3LC", gradient).frame == doctest::Approx(0.00364).epsilon(0.01));
  CHECK(of_preset("SketchML", gradient).frame == doctest::Approx(0.192).epsilon(0.01));
  client::floats zeros(280000);
  zeros[0] = 1;
  const volumes least = of_preset("3LC", zeros);  // as few bytes as the format has for so many elements
  CHECK(least.streams >= 1.0 / 280);
  CHECK(least.streams <= 1.0 / 280 + 1e-5);
  for (const char* name : {"SKCompress", "SketchML", "3LC"}) {
    CHECK(dr::compare::preset_notes(name).starts_with(std::string(name) + ":\n"));
    CHECK(dr::compare::preset_table().find("MinMaxSketch") != std::string::npos);
  }
  CHECK(dr::compare::preset_notes("Top-r").empty());
}
