// A toy profile and toy models for the tests of tool/predict.
#pragma once

#include <memory>
#include <random>
#include <string>

#include "tool/predict/step_model.hpp"

namespace parts {

using namespace dr::predict;

inline const char* const sparse_plan = "sparsify=topr(ratio=0.01) index=golomb value=raw";
inline const char* const lossy_plan = "sparsify=topr(ratio=0.1) index=golomb value=log_quant";

// Costs are lines without floors, but for those of `floor_ns`.
inline nlohmann::json profile_json(double floor_ns = 0) {
  using nlohmann::json;
  const auto cost = [&](const char* plan, const char* operation, double base, double slope) {
    return json{{"plan", plan},    {"operation", operation},  {"floor_ns", floor_ns},
                {"base_ns", base}, {"per_element_ns", slope}, {"from", 1000},
                {"to", 1e7}};
  };
  const auto frame = [](const char* plan, double slope) {
    return json{{"plan", plan}, {"base_bytes", 60}, {"per_element_bytes", slope}, {"from", 1000}, {"to", 1e7}};
  };
  return {{"schema", "deepreduce-profile-1"},
          {"date", "2026-11-22T00:00:00Z"},
          {"machine", {{"cpu", "toy"}, {"cores", 2}}},
          {"costs",
           {cost(sparse_plan, "encode", 8000, 0.5), cost(sparse_plan, "merge", 3000, 0.05),
            cost(lossy_plan, "encode", 8000, 1), cost(lossy_plan, "merge", 3000, 0.2),
            cost("index=all value=raw", "encode", 0, 0.25), cost("index=all value=raw", "merge", 0, 0.25)}},
          {"frames", {frame(sparse_plan, 0.04), frame(lossy_plan, 0.2)}},
          {"links",
           {{{"transport", "gloo"},
             {"ranks", 2},
             {"latency_ns", 30000},
             {"bits_per_second", 2e10},
             {"allreduce", {{"base_ns", 200000}, {"per_byte_ns", 0.5}}},
             {"allgather", {{"base_ns", 150000}, {"per_byte_ns", 0.6}}}}}}};
}

// Tensors of such sizes in the model's order, the last one ready first, at equal intervals of backward.
inline training training_of(std::initializer_list<double> sizes, double backward_ns) {
  training t;
  t.name = "toy", t.batch = 64, t.backward_ns = backward_ns, t.times_known = t.ready_known = true;
  const double n = static_cast<double>(sizes.size());
  double i = 0;
  for (const double size : sizes) {
    tensor_spec each;
    each.name = "t" + std::to_string(static_cast<int>(i));
    each.elements = size, each.ready_ns = backward_ns * (n - i++) / n;
    t.tensors.push_back(each);
  }
  return t;
}

struct toy {
  profile costs = parse_profile(profile_json(), "toy.json");
  note_list notes;
  step_model model;

  toy(training t, double bits_per_second, uint32_t ranks, double latency_ns = 0) {
    model.costs = &costs;
    model.model = std::move(t);
    model.net.ranks = ranks;
    model.net.wire = {bits_per_second, latency_ns, true};
    model.exact = std::make_shared<const plan_work>(plan_work::exact(costs, notes));
  }
  std::shared_ptr<const plan_work> work(const std::string& text) {
    return std::make_shared<const plan_work>(costs, std::string(dr::plan(text).text()), notes);
  }
  candidate uniform(const std::string& text) { return uniform_candidate(work(text), model.model.tensors.size()); }
};

// Of 1 to 12 tensors of very different sizes.
inline training random_training(std::mt19937_64& random) {
  training t;
  t.name = "random";
  const int n = std::uniform_int_distribution<int>(1, 12)(random);
  t.backward_ns = std::uniform_real_distribution<double>(0, 2e8)(random);
  t.times_known = t.ready_known = true;
  for (int i = 0; i < n; ++i) {
    tensor_spec each;
    each.name = "t" + std::to_string(i);
    each.elements = std::floor(std::pow(10, std::uniform_real_distribution<double>(1, 7.3)(random)));
    each.ready_ns = t.backward_ns * std::uniform_real_distribution<double>(0, 1)(random);
    t.tensors.push_back(each);
  }
  return t;
}

}  // namespace parts
