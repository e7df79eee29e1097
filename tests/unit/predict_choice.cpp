// Plan books, profiles and the choice of plans (tool/predict).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "predict_parts.hpp"
#include "tool/predict/plan_book.hpp"
#include "tool/predict/plan_choice.hpp"

using namespace parts;

namespace {

choice_problem problem_of(toy& t, candidate& tried) {
  choice_problem p;
  p.tensors = t.model.model.tensors.size(), p.options = tried.works.size();
  for (const tensor_spec& each : t.model.model.tensors) p.sizes.push_back(each.elements);
  p.step_ns = [&](const std::vector<int>& choice) {
    tried.choice = choice;
    return t.model.step(tried).step_ns;
  };
  return p;
}

}  // namespace

// ---- Books ---------------------------------------------------------------------------------------------------

TEST_CASE("a book of a file: what no line matches is dense, and lines that no tensor uses are noted") {
  const dr::book book("# a comment\n *.bias : dense # another\nlayer[12].*:value=raw\r\nlayer*: index=golomb\n", "b");
  CHECK(plan_in(book, "layer1.bias").empty());
  CHECK(plan_in(book, "layer1.weight") == "index=raw value=raw");
  CHECK(plan_in(book, "layer3.weight") == "index=golomb value=raw");
  CHECK(plan_in(book, "head").empty());
  const dr::book idle("# x\na*: dense\nab: dense\nc: dense\n*: dense", "b");
  CHECK(idle_lines(idle, "b", {"ab", "abc"}) ==
        std::vector<std::string>{"b line 3: pattern 'ab' is never reached: lines before it match its tensors",
                                 "b line 4: pattern 'c' matches no tensor"});
  CHECK(idle_lines(dr::book(), "b", {"ab"}) == std::vector<std::string>{"b: no line; all tensors are dense"});
  CHECK_THROWS_WITH(read_book("/"), doctest::Contains("directory"));
}

// ---- Choices -------------------------------------------------------------------------------------------------

#ifdef DR_SANITIZED
constexpr int rounds = 10;
#else
constexpr int rounds = 60;
#endif

TEST_CASE("a choice is never worse than the best uniform plan, and the best where all are tried") {
  std::mt19937_64 random(15);
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    const double rate = std::pow(10, std::uniform_real_distribution<double>(8, 11)(random));
    toy t(random_training(random), rate, std::uniform_int_distribution<uint32_t>(2, 64)(random), 10e3);
    candidate tried;
    tried.works = {t.work(sparse_plan), t.work(lossy_plan)};
    const choice_problem p = problem_of(t, tried);
    const choice_result r = choose(p);
    double best = std::numeric_limits<double>::infinity();
    for (int o = -1; o < 2; ++o) best = std::min(best, p.step_ns(std::vector<int>(p.tensors, o)));
    CHECK(r.uniform_step_ns == best);
    CHECK(r.step_ns <= best);
    CHECK(r.step_ns == p.step_ns(r.choice));
    if (p.tensors > 7) continue;
    REQUIRE(r.exhaustive);
    for (int other = 0; other < 200; ++other) {
      std::vector<int> choice;
      for (size_t i = 0; i < p.tensors; ++i) choice.push_back(std::uniform_int_distribution<int>(-1, 1)(random));
      CHECK(p.step_ns(choice) >= r.step_ns);
    }
  }
}

TEST_CASE("a model with a large and many small layers gets a mixed book") {
  // 200 layers of 30,000 elements, each costly to encode, and one of 20 million.
  training model = training_of({2e7}, 50e6);
  for (int i = 0; i < 24; ++i) {
    tensor_spec each;
    each.name = "small" + std::to_string(i), each.elements = 250000, each.ready_ns = 1e6 * (i + 1);
    model.tensors.push_back(each);
  }
  toy t(std::move(model), 10e9, 4);
  candidate tried;
  tried.works = {t.work(sparse_plan), t.work(lossy_plan)};
  const choice_problem p = problem_of(t, tried);
  const choice_result r = choose(p);
  CHECK(!r.exhaustive);
  CHECK(r.step_ns < r.uniform_step_ns);
  CHECK(std::ranges::adjacent_find(r.choice, std::not_equal_to<>()) != r.choice.end());
}

TEST_CASE("a budget of error holds for each tensor, however small its share of the whole") {
  toy t(training_of({3e6, 2e6, 1e6}, 1e6), 1e8, 8);
  candidate tried;
  tried.works = {t.work(sparse_plan), t.work(lossy_plan)};
  choice_problem p = problem_of(t, tried);
  p.error = {{0.02, 0.01}, {0.9, 0.08}, {0.5, 0.3}};
  double before = std::numeric_limits<double>::infinity();
  for (const double budget : {0.0, 0.05, 0.1, 0.4, 0.6, 1.0}) {
    CAPTURE(budget);
    p.budget = budget;
    const choice_result r = choose(p);
    for (size_t i = 0; i < p.tensors; ++i)
      if (r.choice[i] >= 0) CHECK(p.error[i][static_cast<size_t>(r.choice[i])] <= budget);
    CHECK(r.step_ns <= before);
    before = r.step_ns;
    if (budget == 0) CHECK(r.choice == std::vector<int>{-1, -1, -1});
    if (budget == 1) CHECK(r.step_ns == p.step_ns({0, 0, 0}));
  }
  p.budget = 0.1;  // no uniform plan is within it, a mix is
  const choice_result r = choose(p);
  CHECK(r.best_uniform == -1);
  CHECK(r.choice[0] >= 0);
  CHECK(r.choice[1] == 1);
  CHECK(r.choice[2] == -1);
  CHECK(r.error ==
        doctest::Approx(std::sqrt((3 * std::pow(p.error[0][static_cast<size_t>(r.choice[0])], 2) + 2 * 0.0064) / 6)));
}

TEST_CASE("a mix within a budget is found greedily, too, where no uniform plan is") {
  training model = training_of({2e7}, 50e6);
  for (int i = 0; i < 24; ++i) {
    tensor_spec each;
    each.name = "small" + std::to_string(i), each.elements = 250000, each.ready_ns = 1e6 * (i + 1);
    model.tensors.push_back(each);
  }
  toy t(std::move(model), 1e8, 4);
  candidate tried;
  tried.works = {t.work(sparse_plan), t.work(lossy_plan)};
  choice_problem p = problem_of(t, tried);
  p.error.assign(p.tensors, {0.9, 0.2});
  p.error[0] = {0.1, 0.9};  // the large one
  p.budget = 0.2;
  const choice_result r = choose(p);
  CHECK(!r.exhaustive);
  std::vector<int> expected(p.tensors, 1);
  expected[0] = 0;
  CHECK(r.step_ns <= p.step_ns(expected));
}

TEST_CASE("a tensor that gains hardly anything stays with the others") {
  constexpr size_t tensors = 30;
  choice_problem p;
  p.tensors = tensors, p.options = 2, p.sizes.assign(tensors, 1e4);
  p.sizes[0] = 1e6;
  // Option 1 is best for the large tensor, and for a small one by a millionth of the step.
  p.step_ns = [](const std::vector<int>& choice) {
    double step = 1e6 - (choice[0] == 1 ? 6e4 : choice[0] == 0 ? 5e4 : 0);
    for (size_t i = 1; i < tensors; ++i) step -= choice[i] == 0 ? 1000 : choice[i] == 1 ? (i == 7 ? 1001 : 0) : 0;
    return step;
  };
  const choice_result r = choose(p);
  CHECK(!r.exhaustive);
  std::vector<int> expected(tensors, 0);
  expected[0] = 1;
  CHECK(r.choice == expected);
}

TEST_CASE("without a budget it is the book by which a whole gradient arrives soonest") {
  toy t(training_of({3e6, 2e6}, 1e6), 1e8, 2);
  candidate tried;
  tried.works = {t.work(sparse_plan), t.work(lossy_plan)};
  choice_problem p = problem_of(t, tried);
  const double sparse = p.step_ns({0, 0}), lossy = p.step_ns({1, 1});
  REQUIRE(sparse < lossy);
  CHECK(choose(p).choice == std::vector<int>{0, 0});  // no error is known
  p.error.assign(2, {0.95, 0.3});
  const choice_result r = choose(p);
  CHECK(r.choice == std::vector<int>{1, 1});
  CHECK(r.error == doctest::Approx(0.3));
  CHECK(whole_ns(r.step_ns, r.error) == doctest::Approx(lossy / 0.91));
  p.error.assign(2, {0.1, 0.1});
  CHECK(choose(p).choice == std::vector<int>{0, 0});
  p.error.assign(2, {1, 1.5});  // nothing arrives by either
  CHECK(choose(p).choice == std::vector<int>{-1, -1});
}

TEST_CASE("the search stops: its evaluations do not grow with tensors times options") {
  constexpr size_t tensors = 30000;
  choice_problem p;
  p.tensors = tensors, p.options = 3, p.sizes.assign(tensors, 1e4);
  p.sizes[7] = 2e4;
  size_t asked = 0;
  // Uniform choices are weighed in any case, also where every option beats the last: dense is the worst.
  p.step_ns = [&](const std::vector<int>& choice) { return ++asked, 1e3 - choice[7] - choice[8]; };
  const choice_result r = choose(p);
  CHECK(r.stopped);
  CHECK(asked == r.evaluations);
  CHECK(asked <= most_evaluations(tensors) + 4);
  CHECK(r.step_ns == 1e3 - 4);
  CHECK(r.step_ns <= r.uniform_step_ns);
  p.tensors = 20, p.sizes.resize(20);
  CHECK(!choose(p).stopped);
}

// ---- Profiles ------------------------------------------------------------------------------------------------

TEST_CASE("a cost has a floor") {
  const curve c{5000, -2000, 1, 0, 0};
  CHECK(c(100) == 5000);
  CHECK(c(10000) == 8000);
}

TEST_CASE("a plan's costs are found without exchange and bucket, and without feedback with a note") {
  const toy t(training_of({1e6}, 0), 1e9, 2);
  note_list notes;
  const auto canonical = [](const std::string& text) { return std::string(dr::plan(text).text()); };
  CHECK(find_plan(t.costs, canonical(std::string(sparse_plan) + " exchange=owner(parts=4) bucket=flat"), &notes));
  CHECK(notes.empty());
  CHECK(find_plan(t.costs, canonical("sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw"), &notes));
  CHECK(notes.size() == 1);
  CHECK(!find_plan(t.costs, canonical("sparsify=topr(ratio=0.02) index=golomb value=raw"), &notes));
}

TEST_CASE("costs beyond what was measured are noted") {
  toy t(training_of({1e9}, 0), 1e9, 2);
  note_list notes;
  t.model.note(t.uniform(sparse_plan), notes);
  CHECK(std::ranges::any_of(notes, [](const std::string& n) { return n.starts_with("extrapolation: plans"); }));
  toy inside(training_of({1e6}, 0), 1e9, 2);
  notes.clear();
  inside.model.note(inside.uniform(sparse_plan), notes);
  CHECK(notes.empty());
}

TEST_CASE("a profile's fault is reported with its place") {
  nlohmann::json wrong = profile_json();
  wrong["costs"][1]["per_element_ns"] = "fast";
  CHECK_THROWS_WITH(parse_profile(wrong, "p.json"),
                    doctest::Contains("p.json: costs[1]: 'per_element_ns' is \"fast\""));
  wrong = profile_json();
  wrong["costs"][0]["plan"] = "index=none_such";
  CHECK_THROWS_WITH(parse_profile(wrong, "p.json"), doctest::Contains("costs[0]: plan 'index=none_such'"));
  wrong = profile_json();
  wrong["schema"] = "other";
  CHECK_THROWS_WITH(parse_profile(wrong, "p.json"), doctest::Contains("schema 'other'"));
  wrong = profile_json();
  wrong["links"][0]["ranks"] = 1;
  CHECK_THROWS_WITH(parse_profile(wrong, "p.json"), doctest::Contains("links[0]: 'ranks' is 1"));
  wrong["links"][0]["ranks"] = 1e10;
  CHECK_THROWS_WITH(parse_profile(wrong, "p.json"), doctest::Contains("not a number from 2 to 65536"));
}

TEST_CASE("a shape whose product is not a number is refused, like one that is too large") {
  const nlohmann::json model = {{"schema", "deepreduce-model-1"}, {"tensors", {{{"shape", {1e308, 1e308, 0}}}}}};
  CHECK_THROWS_WITH(parse_training(model, "m.json"), doctest::Contains("m.json: tensors[0]: 1e+308 elements; at most"));
  std::string text = "1000,1000000000000000";
  for (int i = 0; i < 21; ++i) text += "x1000000000000000";
  CHECK_THROWS_WITH(sized_training(text + "x0"), doctest::Contains("more than 1e+15 elements"));
}

TEST_CASE("samples are finite and not negative, and none is above that of a larger size") {
  for (const auto& [entry, key, points] : {std::tuple{"costs", "samples", nlohmann::json{{1000, -1e12}}},
                                           {"costs", "samples", {{1000, 1e308}}},
                                           {"costs", "samples", {{-1, 5}}},
                                           {"frames", "sum_growth", {{4, -1}}},
                                           {"frames", "sum_growth", {{4, 1e300}}}}) {
    CAPTURE(points.dump());
    nlohmann::json wrong = profile_json();
    wrong[entry][0][key] = points;
    CHECK_THROWS_WITH(parse_profile(wrong, "p"), doctest::Contains("of numbers from 0 to 1e18"));
  }
  nlohmann::json odd = profile_json();
  odd["overlap"] = {{"slowdown", 1e6}};
  CHECK_THROWS_WITH(parse_profile(odd, "p"),
                    doctest::Contains("'slowdown' is 1000000.0, not a number from 0.5 to 100"));
  odd = profile_json();
  odd["costs"][0]["samples"] = {{1000, 90000}, {4000, 12000}, {16000, 18000}, {8000, 40000}};
  const curve c = *parse_profile(odd, "p").plans[0].encode;
  CHECK(c(1000) == 12000);
  CHECK(c(2000) == 12000);
  CHECK(c(8000) == 18000);
  CHECK(c(16000) == 18000);
}

TEST_CASE("sizes are counts or shapes") {
  const training t = sized_training("10,3x4");
  REQUIRE(t.tensors.size() == 2);
  CHECK(t.tensors[1].elements == 12);
  CHECK(t.tensors[1].rows == 3);
  CHECK(!t.times_known);
  CHECK(sized_training("1e6").tensors[0].elements == 1e6);
  CHECK(sized_training("25.5M,2k").tensors[0].elements == 25.5e6);
  CHECK(sized_training("2kx1e3").tensors[0].elements == 2e6);
  for (const char* wrong : {"1e", "1e400", "1.5x", "2KB", "", "a", "10,", "1.5", "-1", "3x", "x3",
                            "99999999999999999999", "9999999999x9999999999"}) {
    CAPTURE(std::string(wrong));
    CHECK_THROWS_AS(sized_training(wrong), std::invalid_argument);
  }
}
