// Plans that are transforms (tool/predict): two all-reduces of factors, in the DDP hook and behind backward.
#include <doctest/doctest.h>

#include "predict_parts.hpp"
#include "tool/predict/study_model.hpp"

using namespace parts;

namespace {

constexpr double ms = 1e6;
const char* const lowrank = "transform=lowrank(rank=4) feedback=residual";

double ring(double bytes, double n, double rate) { return 2 * (n - 1) * 8e9 * bytes / n / rate; }

// A matrix of 1000 x 500 and a vector of 2000: 1 ns an element before the first factor, 2 ns behind it.
toy toy_of(double rate, uint32_t ranks) {
  training model = training_of({5e5, 2000}, 100 * ms);
  model.tensors[0].rows = 1000, model.tensors[1].rows = 2000;
  toy t(std::move(model), rate, ranks);
  nlohmann::json p = profile_json();
  for (const auto& [operation, slope] : {std::pair{"encode", 1.0}, {"decode", 2.0}, {"merge", 2.0}})
    p["costs"].push_back({{"plan", lowrank}, {"operation", operation}, {"base_ns", 0}, {"per_element_ns", slope}});
  t.costs = parse_profile(p, "toy.json");
  return t;
}

}  // namespace

TEST_CASE("the factors of a tensor are those that the library makes") {
  tensor_spec t{.name = "", .elements = 5e5, .rows = 1000};
  CHECK(factors_of(t, 4).first == 4000);
  CHECK(factors_of(t, 4).second == 2000);
  t.rows = 5e5;  // a vector
  CHECK(factors_of(t, 4).first == 5e5);
  CHECK(factors_of(t, 4).second == 0);
  t.elements = 64, t.rows = 8;  // 4 (8 + 8) are as many
  CHECK(factors_of(t, 4).second == 0);
  t.rows = 0;
  CHECK(factors_of(t, 1).guessed);
}

TEST_CASE("a transform in the hook: products, the first factor, products, the second, products") {
  toy t = toy_of(1e9, 4);
  t.model.costs = &t.costs;
  const double marks = 3 * 4, first = 4 * (4 * 1000 + 2000 + marks), second = 4 * 4 * 500, n = 502'000;
  const outcome o = t.model.step(t.uniform(lowrank));
  CHECK(o.step_ns == doctest::Approx(100 * ms + n + ring(first, 4, 1e9) + 2 * n + ring(second, 4, 1e9)));
  CHECK(o.bytes == doctest::Approx(2 * 3 / 4.0 * (first + second)));
  CHECK(o.encode_ns == n);
  CHECK(o.merge_ns == 2 * n);  // whatever the number of ranks
  // The ranks wait for the slowest once: behind the first factor they are level.
  t.model.how.skew_ns = 7 * ms;
  CHECK(t.model.step(t.uniform(lowrank)).step_ns == doctest::Approx(o.step_ns + 7 * ms));
}

TEST_CASE("a transform behind backward takes the same without the hook's marks") {
  toy t = toy_of(1e9, 4);
  t.model.costs = &t.costs;
  t.model.hook = hook_kind::exchange;
  const double first = 4 * (4 * 1000 + 2000), second = 4 * 4 * 500, n = 502'000;
  CHECK(t.model.step(t.uniform(lowrank)).step_ns ==
        doctest::Approx(100 * ms + n + ring(first, 4, 1e9) + 2 * n + ring(second, 4, 1e9)));
}

TEST_CASE("beside frames a transform is a unit of its own") {
  toy t = toy_of(1e8, 2);
  t.model.costs = &t.costs;
  t.model.how.bypass = 1;
  candidate c = t.uniform(lowrank);
  c.works.push_back(t.work(sparse_plan));
  c.choice = {0, 1};
  const double first = 4 * (4 * 1000 + 3 * 2), second = 4 * 4 * 500;  // (and marks of 2 ranks)
  const outcome o = t.model.step(c);
  candidate frames = t.uniform(sparse_plan);
  toy alone(training_of({2000}, 100 * ms), 1e8, 2);
  const double slot = alone.model.step(alone.uniform(sparse_plan)).bytes;
  CHECK(o.bytes == doctest::Approx(first + second + slot));
  CHECK(o.step_ns < t.model.step(dense_candidate(false)).step_ns);
}

TEST_CASE("a transform that the profile does not know costs what --flops says, or is refused") {
  toy t(training_of({1e6}, 0), 1e9, 2);
  CHECK_THROWS_WITH(t.work(lowrank), doctest::Contains("no cost of encode of plan 'transform=lowrank"));
  const plan_work w(t.costs, std::string(dr::plan(lowrank).text()), t.notes, 1e9);
  CHECK(w.encode_ns(1000) + w.merge_ns(1000, 8) == doctest::Approx(6 * 1000 * 4.0));
}

TEST_CASE("PowerSGD by formula takes its products from this library's transform") {
  toy t = toy_of(1e9, 4);
  t.model.costs = &t.costs;
  CHECK(t.model.is_complete(powersgd_candidate(4)));
  CHECK(!t.model.is_complete(powersgd_candidate(2)));
  CHECK(t.model.step(powersgd_candidate(4)).encode_ns == doctest::Approx(3 * 502'000));
}
