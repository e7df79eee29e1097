// The tool's presets are plans.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "bench/compare/presets.hpp"
#include "client.hpp"

namespace {

// Allowance until the codecs that presets name are all in this build: a plan may be refused only for what is missing.
bool is_missing(const std::string& plan) {
  const auto has = [](dr_role role, const std::string& name) {
    for (size_t i = 0; i < dr_codec_count(); ++i)
      if (const dr_codec* c = dr_codec_at(i); c->role == role && name == c->name) return true;
    return false;
  };
  const auto bloom_has = [](const char* policy) {
    for (size_t i = 0; i < dr_codec_count(); ++i)
      if (const dr_codec* c = dr_codec_at(i); c->role == DR_ROLE_INDEX && std::string("bloom") == c->name)
        return std::string(c->params[0].choices).find(policy) != std::string::npos;
    return false;
  };
  const auto names = [&](const char* part) { return plan.find(part) != std::string::npos; };
  return (names("policy=p1") && !bloom_has("p1")) || (names("policy=p2") && !bloom_has("p2")) ||
         (names("index=rle") && !has(DR_ROLE_INDEX, "rle")) ||
         (names("index=delta_varint") && !has(DR_ROLE_INDEX, "delta_varint")) ||
         (names("+huffman") && !has(DR_ROLE_BYTES, "huffman")) ||
         (names("value=fit_dexp") && !has(DR_ROLE_VALUE, "fit_dexp")) ||
         (names("sparsify=random") && !has(DR_ROLE_SPARSIFY, "random")) ||
         (names("sparsify=dgc") && !has(DR_ROLE_SPARSIFY, "dgc"));
}

}  // namespace

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
    dr_error error{};
    error.struct_size = sizeof error;
    dr_plan* plan = nullptr;
    const dr_status status = dr_plan_parse(alone[0].c_str(), &plan, &error);
    INFO(alone[0] << ": " << std::string(error.message));
    if (!is_missing(alone[0])) CHECK(status == DR_OK);
    dr_plan_destroy(plan);
  }
  for (const preset& p : presets()) CHECK(names.count(p.set) == 0);
  CHECK(preset_plans("BF-P3", "sparsify=none").empty());
}
