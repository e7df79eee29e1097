// What the tool is asked: conditions on rows, order, Pareto fronts, totals, best plans, two runs compared.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "tool/compare/against.hpp"
#include "tool/compare/best.hpp"
#include "tool/compare/expression.hpp"
#include "tool/compare/layer_kind.hpp"
#include "tool/compare/selection.hpp"
#include "tool/compare/totals.hpp"
#include "tool/read/inputs.hpp"
#include "tool/read/npy.hpp"
#include "tool/read/npz.hpp"
#include "tool/show/array_writer.hpp"

using namespace dr::compare;
using texts = std::vector<std::string>;

namespace {

// A cell of its type in each column.
const json_row columns{{"input", ""},       {"tensor", ""},   {"step", 0},      {"plan", ""}, {"bytes", 0},
                       {"total_error", 0.}, {"encode_ns", 0}, {"decode_ns", 0}, {"d", 0},     {"fallback", ""}};

std::string refusal_of_condition(const std::string& text) {
  try {
    (void)parse_condition("--where", text, columns);
  } catch (const expression_error& e) {
    return e.what();
  }
  return "";
}

bool says(const std::string& message, const char* part) { return message.find(part) != message.npos; }

json_row a_row() {
  return {{"input", "a.npz"}, {"tensor", "conv1.weight"}, {"step", 1},        {"plan", "index=bloom value=raw"},
          {"bytes", 1000},    {"total_error", 0.5},       {"encode_ns", 300}, {"decode_ns", 200},
          {"d", 4000},        {"fallback", nullptr}};
}

bool holds(const std::string& text) { return parse_condition("--where", text, columns).holds(a_row()); }

json_row measured(const std::string& tensor, const std::string& plan, uint64_t bytes, double error, double energy,
                  uint64_t encode_ns = 100) {
  return {{"input", "m.npz"},
          {"tensor", tensor},
          {"kind", nullptr},
          {"step", 1},
          {"dtype", "f32"},
          {"d", 1000},
          {"r", 10},
          {"plan", plan},
          {"bytes", bytes},
          {"relative_volume", static_cast<double>(bytes) / 4000},
          {"encode_ns", encode_ns},
          {"encode_ns_spread", 0.1},
          {"decode_ns", 50},
          {"decode_ns_spread", 0.1},
          {"total_error", error},
          {"gradient_energy", energy},
          {"kept_energy", energy},
          {"max_relative_error", 0.5}};
}

texts column_of(const std::vector<json_row>& rows, const char* column) {
  texts all;
  for (const json_row& row : rows) all.push_back(row.at(column));
  return all;
}

}  // namespace

TEST_CASE("conditions compare numbers, texts and globs, by the usual precedence") {
  CHECK(holds("bytes<=1000"));
  CHECK_FALSE(holds("bytes < 1000"));
  CHECK(holds("total_error = .5 and plan == 'index=bloom value=raw'"));
  CHECK(holds("plan ~ '*bloom*' and not tensor ~ \"fc*\""));
  CHECK(holds("plan !~ 'index=rice*'"));
  CHECK(holds("bytes > 1e6 or encode_ns + decode_ns == 500"));
  CHECK(holds("2 * (encode_ns - decode_ns) / 4 == 50 && !(bytes > 1e3)"));
  CHECK(holds("bytes == 1000 or bytes == 1 and bytes == 2"));
  CHECK_FALSE(holds("(bytes == 1000 or bytes == 1) and bytes == 2"));
  CHECK(holds("-bytes < -999"));
  CHECK(holds("not not bytes == 1000"));
}

TEST_CASE("an empty cell meets no comparison but == null") {
  CHECK_FALSE(holds("fallback == 'none'"));
  CHECK_FALSE(holds("fallback != 'none'"));
  CHECK(holds("fallback == null"));
  CHECK_FALSE(holds("fallback != null"));
  CHECK(holds("bytes != null"));
  CHECK_FALSE(holds("bytes / 0 > 1"));
}

TEST_CASE("the headings of the two errors name their columns") {
  CHECK(holds("error == total_error and error == 0.5"));
  CHECK(says(refusal_of_condition("coding < 1"), "no column 'relative_l2_error'"));  // which these rows have not
}

TEST_CASE("a condition that is none is refused with its place, an unknown column with those alike") {
  CHECK(says(refusal_of_condition("total < 1"), "no column 'total'; similar: total_error"));
  CHECK(says(refusal_of_condition("bytes <"), "ends too early"));
  CHECK(says(refusal_of_condition("bytes"), "not a condition"));
  CHECK(says(refusal_of_condition(""), "ends too early"));
  CHECK(says(refusal_of_condition("bytes < 1 2"), "position 10: '2' is not expected"));
  CHECK(says(refusal_of_condition("1 < bytes < 2"), "join them by 'and'"));
  CHECK(says(refusal_of_condition("(bytes < 1"), "')' is missing"));
  CHECK(says(refusal_of_condition("plan == 'x"), "no closing quote"));
  CHECK(says(refusal_of_condition("bytes < 10k"), "1e6 is a million"));
  CHECK(says(refusal_of_condition("bytes < 1e999"), "not a number"));
  CHECK(says(refusal_of_condition("bytes ; 1"), "';' is not expected"));
  CHECK(says(refusal_of_condition(std::string(100, '(') + "1"), "more than 64 parentheses"));
  CHECK(says(refusal_of_condition("bytes <" + std::string(5000, '-') + "1"), "at most 4096"));
}

TEST_CASE("an operator with operands of a wrong type is refused before there are rows") {
  CHECK(says(refusal_of_condition("bytes > '9'"),
             "--where 'bytes > '9'': '>' compares two numbers or two texts; bytes is a number, \"9\" is a text"));
  CHECK(says(refusal_of_condition("fallback == 3"), "fallback is a text, 3.0 is a number"));
  CHECK(says(refusal_of_condition("(bytes < 1) == (d < 1)"),
             "compares numbers or texts; the result of '<' is a condition"));
  CHECK(says(refusal_of_condition("bytes ~ '1*'"), "'~' requires texts; bytes is a number"));
  CHECK(says(refusal_of_condition("bytes < 1 and plan"), "'and' requires conditions; plan is a text"));
  CHECK(says(refusal_of_condition("bytes + plan < 1"), "'+' requires numbers; plan is a text"));
  CHECK(says(refusal_of_condition("-tensor < 1"), "'-' requires numbers; tensor is a text"));
  CHECK(says(refusal_of_condition("not bytes"), "'not' requires conditions; bytes is a number"));
  CHECK(refusal_of_condition("fallback == null or bytes != null") == "");
  const auto refusal_of = [](const char* sort, const char* pareto) -> std::string {
    try {
      (void)selection("", sort, pareto, columns);
    } catch (const expression_error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refusal_of("plan,-tensor,-bytes", "-bytes,total_error") == "");
  CHECK(refusal_of("bytes < 1", "") == "--sort 'bytes < 1': 'bytes < 1' is a condition, not a value");
  CHECK(refusal_of("", "bytes,plan") == "--pareto 'bytes,plan': 'plan' is a text, not a number");
}

TEST_CASE("a text has no minimum, so none is reported where no row passes") {
  const std::vector<json_row> rows{a_row()};
  CHECK(selection("plan < 'a'", "", "", columns).why_none(rows) == "--where 'plan < 'a'': none of 1 rows");
  CHECK(says(selection("bytes < 1", "", "", columns).why_none(rows), "the least bytes is 1e+03"));
}

TEST_CASE("rows are sorted by several keys, stably, nulls last in either order") {
  std::vector<json_row> rows(5, a_row());
  for (size_t i = 0; i < 5; ++i)
    rows[i]["plan"] = std::string(1, static_cast<char>('a' + i)), rows[i]["bytes"] = 10 * (i % 2);
  rows[2]["bytes"] = nullptr;
  CHECK(column_of(selection("", "bytes", "", columns).apply(rows), "plan") == texts{"a", "e", "b", "d", "c"});
  CHECK(column_of(selection("", "-bytes,-plan", "", columns).apply(rows), "plan") == texts{"d", "b", "e", "a", "c"});
  CHECK(column_of(selection("plan != 'a'", "bytes", "", columns).apply(rows), "plan") == texts{"e", "b", "d", "c"});
}

TEST_CASE("a Pareto front has what nothing beats, of each tensor, against plain search") {
  std::vector<json_row> rows;
  uint64_t state = 1;
  for (int i = 0; i < 200; ++i) {
    json_row row = a_row();
    for (const char* column : {"bytes", "total_error", "encode_ns"})
      row[column] = (state = state * 6364136223846793005u + 1) >> 61;
    row["decode_ns"] = 0;
    row["tensor"] = i % 2 ? "x" : "y";
    row["plan"] = std::to_string(i);
    rows.push_back(row);
  }
  rows.push_back(a_row());
  rows.back()["plan"] = "memcpy";
  rows.back()["bytes"] = 0;
  const auto at_most = [](const json_row& a, const json_row& b) {
    return a["bytes"] <= b["bytes"] && a["total_error"] <= b["total_error"] && a["encode_ns"] <= b["encode_ns"];
  };
  std::vector<json_row> front;  // x after y, as they come, and by bytes
  for (const json_row& row : rows) {
    bool beaten = row["plan"] == "memcpy";
    for (const json_row& other : rows)
      beaten |=
          other["plan"] != "memcpy" && other["tensor"] == row["tensor"] && at_most(other, row) && !at_most(row, other);
    if (!beaten) front.push_back(row);
  }
  const auto first = front[0]["tensor"];
  std::ranges::stable_sort(
      front, {}, [&](const json_row& row) { return std::pair(row["tensor"] != first, row["bytes"].get<uint64_t>()); });
  const texts expected = column_of(front, "plan");
  CHECK(column_of(selection("", "", usual_front, columns).apply(rows), "plan") == expected);
  CHECK(expected.size() < 60);
  const auto largest = selection("", "", "-bytes", columns).apply(rows);
  for (const json_row& row : largest) CHECK(row["bytes"] == 7);
}

TEST_CASE("a total sums bytes and times, and weighs errors by energy") {
  const std::vector<json_row> rows{measured("a", "p", 100, 0.3, 4), measured("b", "p", 50, 0.6, 1, 300)};
  const json_row total = combine(std::vector<const json_row*>{&rows[0], &rows[1]}, 8);
  CHECK(total["bytes"] == 150);
  CHECK(total["d"] == 2000);
  CHECK(total["encode_ns"] == 400);
  CHECK(total["decode_ns"] == 100);
  CHECK(total["relative_volume"].get<double>() == doctest::Approx(150.0 / 8000));
  CHECK(total["total_error"].get<double>() == doctest::Approx(std::sqrt((0.09 * 4 + 0.36 * 1) / 5)));
  CHECK(total["encode_ns_spread"].get<double>() == doctest::Approx(std::sqrt(10.0 * 10 + 30.0 * 30) / 400));
  CHECK(total["max_relative_error"].is_null());
  CHECK(total["plan"] == "p");
  CHECK(total["tensor"].is_null());
  CHECK(total["tensors"] == 2);
  CHECK(total["worst_tensor"] == "b");
  CHECK(total["worst_error"] == 0.6);
}

TEST_CASE("a total's verdict is that of the sums: even within their spread, of all rows alike where a sum is unknown") {
  const auto verdict_of = [](double step_a, double step_b, double spread, const char* missing = "") {
    std::vector<json_row> rows{measured("a", "p", 1, 0, 1, 1000), measured("b", "p", 1, 0, 1, 1000)};
    for (size_t i = 0; i < 2; ++i) {
      json_row& row = rows[i];
      for (const char* time : {"sparsify_ns", "merge_ns"}) row[time] = 0, row[std::string(time) + "_spread"] = 0.0;
      row["encode_ns_spread"] = spread;
      row["step_ns"] = i == 0 ? step_a : step_b;
      row["dense_step_ns"] = 9000, row["bf16_step_ns"] = 5000;
      row["verdict"] = i == 0 ? "slower" : "pays";
      if (*missing) row[missing] = nullptr;
    }
    return combine(std::vector<const json_row*>{&rows[0], &rows[1]}, 8)["verdict"];
  };
  // The spread of the sum is √2 · 1000 · spread, half of it to a side.
  CHECK(verdict_of(9000, 900, 0.1) == "pays");
  CHECK(verdict_of(9000, 900, 0.2) == "even");
  CHECK(verdict_of(9000, 1100, 0.2) == "even");
  CHECK(verdict_of(9000, 1100, 0.1) == "slower");
  CHECK(verdict_of(9000, 900, 0.1, "step_ns").is_null());
  CHECK(verdict_of(9000, 900, 0.1, "merge_ns").is_null());
}

TEST_CASE(
    "a total pays below the bits saved by computing, whatever its rows; of another exchange below the least rate") {
  const auto rate_of = [](const std::string& plan, double a, double b, uint64_t ranks = 8, uint64_t bytes_b = 800) {
    std::vector<json_row> rows{measured("a", plan, 100, 0, 1), measured("b", plan, bytes_b, 0, 1)};
    rows[0]["pays_below"] = a, rows[1]["pays_below"] = std::isnan(b) ? json_row() : json_row(b);
    return combine(std::vector<const json_row*>{&rows[0], &rows[1]}, ranks)["pays_below"];
  };
  const std::string gather = "index=golomb value=raw", owner = gather + " exchange=owner";
  // 100 ns each. b sends 800 + 256 bytes to 7 ranks, a ring 7 times 2 · 4000 / 8.
  CHECK(rate_of(gather, 1e11, 0).get<double>() == doctest::Approx((1e11 * 100 - 8e9 * 7 * 56) / 200));
  CHECK(rate_of("transform=lowrank(rank=2)", 1e11, 0, 8, 4200).get<double>() ==
        doctest::Approx((1e11 * 100 - 8e9 * 7 * 2 * 200 / 8) / 200));
  CHECK(rate_of(gather, 1e6, 0) == 0);
  CHECK(rate_of(gather, 0, 0) == 0);
  CHECK(rate_of(gather, 1e11, 0, 0).is_null());  // of an unknown number of ranks
  CHECK(rate_of(gather, 1e11, NAN).is_null());
  CHECK(rate_of(owner, 3e8, 1e9) == 3e8);
  CHECK(rate_of(owner, 3e8, 0).is_null());
  CHECK(rate_of(owner, 0, 0) == 0);
}

TEST_CASE("a tensor of zeros has no error and no weight; an unknown energy leaves the total's error unknown") {
  std::vector<json_row> rows{measured("a", "p", 1, 0.5, 4), measured("zero", "p", 1, 0, 0)};
  CHECK(combine(std::vector<const json_row*>{&rows[0], &rows[1]}, 8)["total_error"].get<double>() ==
        doctest::Approx(0.5));
  rows[1]["gradient_energy"] = nullptr;
  CHECK(combine(std::vector<const json_row*>{&rows[0], &rows[1]}, 8)["total_error"].is_null());
}

TEST_CASE("totals want a row for each tensor, and name the plans that lack one") {
  const std::vector<json_row> rows{measured("a", "p", 1, 0, 1), measured("a", "q", 1, 0, 1),
                                   measured("b", "p", 2, 0, 1)};
  const total_list list = totals_of(rows, 8);
  CHECK(column_of(list.totals, "plan") == texts{"p"});
  CHECK(list.incomplete == texts{"m.npz: q: 1 row of 2 tensors"});
  CHECK(totals_of(std::vector<json_row>{rows[0], rows[1]}, 8).totals.empty());
}

TEST_CASE("best: the smallest plan that meets the condition in total, and for each kind of layer") {
  const std::vector<json_row> rows{
      measured("conv.weight", "small", 10, 0.5, 1), measured("fc.weight", "small", 10, 0.1, 1),
      measured("conv.weight", "large", 100, 0.1, 1), measured("fc.weight", "large", 100, 0.05, 1),
      measured("conv.weight", "half", 1, 0, 1)};
  const auto answers = find_best(rows, {expression("total_error <= 0.2", columns), expression("bytes", columns)});
  REQUIRE(answers.size() == 3);
  CHECK(answers[0]["scope"] == "model");
  CHECK(answers[0]["plan"] == "large");  // small: sqrt((0.25 + 0.01) / 2) = 0.36
  CHECK(answers[0]["total"]["bytes"] == 200);
  CHECK(answers[1]["kind"] == "conv");
  CHECK(answers[1]["plan"] == "half");
  CHECK(answers[2]["kind"] == "linear");
  CHECK(answers[2]["plan"] == "small");
  CHECK(says(best_text(answers),
             "m.npz (2 tensors): the plan of least bytes with total_error <= 0.2 is 'large': 200 bytes"));
  const auto none = find_best(rows, {expression("total_error <= 0.01", columns), expression("bytes", columns)});
  CHECK(none[0]["plan"].is_null());
  CHECK(none[0]["nearest"] == "large");
  CHECK(says(best_text(none), "no plan has total_error <= 0.01; the nearest is 'large'"));
  CHECK(expression("( (total_error + 1) <= 2)", columns).bounded_sum()->text() == "(total_error + 1)");
}

TEST_CASE("best: of a run's several steps the last counts, whether an input has them all or each is an input") {
  std::vector<json_row> rows;
  for (uint64_t step = 1; step <= 3; ++step)
    for (const char* plan : {"p", "q"}) {
      if (step == 3 && plan[0] == 'q') continue;  // which failed there
      rows.push_back(measured("a", plan, 10 * step + (plan[0] == 'p'), 0.1, 1));
      rows.back()["step"] = step;
    }
  const best_question question{expression("bytes < 1000", columns), expression("bytes", columns)};
  CHECK(find_best(rows, question)[0]["total"]["bytes"] == 31);
  CHECK(find_best(rows, question)[0]["total"]["tensors"] == 1);
  for (json_row& row : rows) row["input"] = "step" + row["step"].dump() + ".npz";
  const auto answers = find_best(rows, question);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0]["input"] == "step3.npz");
  // Another run has its own last step, also with an input of another name and the same tensors.
  for (json_row& row : rows) row["from"] = "steps.json";
  rows.push_back(measured("a", "p", 7, 0.1, 1));
  rows.back()["from"] = "alone.json";
  CHECK(find_best(rows, question).size() == 3);
}

TEST_CASE("tensors and the same tensors joined are not added up") {
  std::vector<json_row> rows{measured("a", "p", 10, 0.1, 1), measured("b", "p", 20, 0.1, 1),
                             measured("*", "p", 29, 0.1, 1), measured("[2 tensors]", "p", 31, 0.1, 1)};
  const auto totals = totals_of(rows, 8).totals;
  REQUIRE(totals.size() == 1);
  CHECK(totals[0]["bytes"] == 30);
  const best_question question{expression("bytes < 1000", columns), expression("bytes", columns)};
  CHECK(find_best(rows, question)[0]["total"]["bytes"] == 30);
  rows = {measured("* (f16)", "p", 10, 0.1, 1), measured("* (f32)", "p", 20, 0.1, 1)};
  CHECK(totals_of(rows, 8).totals[0]["bytes"] == 30);
}

TEST_CASE("each saved run of an input that has all tensors has a total of its own rows") {
  std::vector<json_row> rows;
  const auto add = [&](const char* file, const char* tensor, uint64_t ns) {
    rows.push_back(measured(tensor, "p", 10, 0.1, 1, ns));
    rows.back()["from"] = file;
  };
  add("part.json", "b", 500);
  add("one.json", "a", 100), add("one.json", "b", 100);
  add("two.json", "a", 300), add("two.json", "b", 300);
  add("part.json", "c", 500);
  const total_list list = totals_of(rows, 8);
  REQUIRE(list.totals.size() == 3);
  CHECK(list.totals[0]["encode_ns"] == 1000);
  CHECK(list.totals[1]["encode_ns"] == 200);
  CHECK(list.totals[2]["encode_ns"] == 600);
  CHECK(list.totals[2]["from"] == "two.json");
}

TEST_CASE("the kind of a layer follows from its name and shape") {
  using shape = std::vector<uint64_t>;
  const auto kind = [](const char* name, const shape& s) { return layer_kind(name, s); };
  CHECK(kind("layer3.0.conv2.weight", {64, 64, 3, 3}) == "conv");
  CHECK(kind("features.0.weight", {64, 3, 3, 3}) == "conv");
  CHECK(kind("layer1.0.bn1.weight", {16}) == "norm_bias");
  CHECK(kind("layer1.0.bn1.weight", {}) == "norm_bias");
  CHECK(kind("lstm.weight_ih_l0", {512, 48}) == "recurrent");
  CHECK(kind("lstm.bias_ih_l0", {512}) == "norm_bias");
  CHECK(kind("embedding.weight", {4000, 48}) == "embedding");
  CHECK(kind("user_mlp.weight", {4711, 32}) == "embedding");
  CHECK(kind("layers.0.self_attn.in_proj_weight", {288, 96}) == "attention");
  CHECK(kind("layers.0.linear1.weight", {384, 96}) == "linear");
  CHECK(kind("out.weight", {4000, 48}) == "linear");
  CHECK(kind("finalNorm.weight", {}) == "norm_bias");
  CHECK(kind("something", {}) == "other");
  CHECK(kind("*", {9}).empty());
  CHECK(kind("", {9}).empty());
}

TEST_CASE("two runs: worse and better beyond the spread, rows of one side named") {
  std::vector<json_row> old{measured("a", "p", 100, 0.3, 1, 1000), measured("a", "q", 100, 0.3, 1, 1000),
                            measured("a", "gone", 1, 0, 1)};
  std::vector<json_row> now{measured("a", "p", 100, 0.3, 1, 1090), measured("a", "q", 90, 0.3, 1, 1300),
                            measured("a", "new", 1, 0, 1)};
  for (json_row& row : now) row["input"] = "/elsewhere/m.npz";  // found by the file's name
  const auto result =
      compare_with(now, nlohmann::ordered_json::object(), old, nlohmann::ordered_json::object(), "old.json");
  REQUIRE(result["rows"].size() == 2);
  CHECK(result["rows"][0]["verdict"] == "same");  // 9 % of 1000, and the spread is 10 %
  CHECK(result["rows"][1]["columns"]["bytes"]["verdict"] == "better");
  CHECK(result["rows"][1]["columns"]["encode_ns"]["verdict"] == "worse");
  CHECK(result["rows"][1]["verdict"] == "mixed");
  CHECK(result["only_old"][0]["plan"] == "gone");
  CHECK(result["only_new"][0]["plan"] == "new");
  CHECK(result["total"]["columns"]["bytes"]["change"].get<double>() == doctest::Approx(-0.05));
  CHECK(any_worse(result));
  const std::string text = against_text(result);
  CHECK(says(text, "of 2 rows 0 better, 0 worse, 1 the same, 1 mixed"));
  CHECK(says(text, "only in old.json: m.npz a: gone"));
  CHECK_FALSE(any_worse(compare_with(old, {}, old, {}, "old.json")));
}

TEST_CASE("what decode writes is read again: .npy of each type and shape, .npz of several") {
  const float values[] = {1, -2, 0.5f, 0, 3, 4};
  const auto data = std::as_bytes(std::span(values));
  for (const uint32_t width : {1u, 3u}) {
    const std::string npy = npy_bytes(DR_F32, 6 / width, width, data);
    CHECK((npy.size() - sizeof values) % 64 == 0);
    const tensor t = parse_npy(std::as_bytes(std::span(npy)), "x.npy");
    CHECK(t.shape == (width == 1 ? std::vector<uint64_t>{6} : std::vector<uint64_t>{2, 3}));
    CHECK(std::equal(data.begin(), data.end(), t.data.begin(), t.data.end()));
  }
  const std::vector<std::pair<std::string, std::string>> members{{"tensor_0", npy_bytes(DR_F16, 12, 1, data)},
                                                                 {"tensor_1", npy_bytes(DR_BF16, 4, 3, data)}};
  const std::string npz = npz_bytes(members);
  const auto tensors = parse_npz(std::as_bytes(std::span(npz)), "x.npz");
  REQUIRE(tensors.size() == 2);
  CHECK(tensors[0].type == dtype::f16);
  CHECK(tensors[0].name == "tensor_0");
  CHECK(tensors[1].type == dtype::bf16);
  CHECK(tensors[1].shape == std::vector<uint64_t>{4, 3});
  CHECK(std::equal(data.begin(), data.end(), tensors[1].data.begin(), tensors[1].data.end()));
}
