// Files and texts that `predict` reads: each error names the file, the place in it and the value.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "predict_parts.hpp"
#include "tool/predict/link_text.hpp"
#include "tool/predict/plan_book.hpp"
#include "tool/predict/profile.hpp"
#include "tool/predict/training_model.hpp"

using namespace parts;

namespace {

// A file while it lives.
struct written {
  std::string path;
  explicit written(const std::string& text)
      : path(std::filesystem::temp_directory_path() / ("deepreduce-predict-" + std::to_string(getpid()))) {
    std::ofstream(path) << text;
  }
  ~written() { std::remove(path.c_str()); }
  written(const written&) = delete;
  written& operator=(const written&) = delete;
};

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

nlohmann::json model_json() {
  return {{"schema", "deepreduce-model-1"},
          {"tensors", {{{"elements", 100}, {"ready_ns", 5}}, {{"shape", {20, 3}}, {"dtype", "f32"}}}},
          {"backward_ns", 50},
          {"skew_ns", 4},
          {"ranks", 2}};
}

}  // namespace

TEST_CASE("profiles, models and books are read from files, and what cannot be read is named") {
  {
    const written file(profile_json().dump());
    CHECK(read_profile(file.path).plans.size() == 3);
    CHECK(error_of([&] { read_training(file.path); }).find(file.path + ": schema 'deepreduce-profile-1' is not") == 0);
  }
  {
    const written file(model_json().dump());
    const training t = read_training(file.path), half = t.scaled(0.5);
    CHECK(t.elements() == 160);
    CHECK(half.backward_ns == 25);
    CHECK(half.tensors[0].ready_ns == 2.5);
    CHECK(half.skew_ns == 2);
  }
  {
    const written file("*: value=raw\n");
    CHECK(plan_in(read_book(file.path), "a") == "index=raw value=raw");
  }
  {
    const written file("a: value=nothing\n");
    CHECK(error_of([&] { read_book(file.path); }).find(file.path + ": line 1: ") == 0);
    CHECK(error_of([&] { read_profile(file.path); }) ==
          file.path + ": not a profile (`deepreduce calibrate -o profile.json` writes one): byte 1 is not JSON");
    CHECK(error_of([&] { read_training(file.path); }).find(file.path + ": not a model (DDPHook(") == 0);
  }
  CHECK(error_of([] { read_book("/nowhere/book"); }) == "/nowhere/book: cannot be opened: No such file or directory");
  CHECK(error_of([] { read_profile("/nowhere/p"); }) == "/nowhere/p: cannot be opened: No such file or directory");
  CHECK(error_of([] { read_profile("/"); }) == "/: is a directory, not a profile");
  CHECK(error_of([] { parse_json("[1]", "x", "profile"); }) ==
        "x: not a profile (`deepreduce calibrate -o profile.json` writes one): no JSON object");
  CHECK(error_of([] { parse_json(std::string(40, '['), "x", "profile"); }).find("more than 32 deep") !=
        std::string::npos);
  CHECK(error_of([] { parse_json("{\"a\": \"\xff\"}", "x", "list"); }).find("x: ") == 0);
}

TEST_CASE("a profile with a wrong entry is refused by its place, and errors of plans are read") {
  auto good = profile_json();
  good["errors"] = {{{"plan", lossy_plan}, {"error", 0.25}}};
  CHECK(find_plan(parse_profile(good, "p"), lossy_plan)->error == 0.25);
  const auto refused = [&](auto&& change) {
    auto text = profile_json();
    change(text);
    return error_of([&] { parse_profile(text, "p"); });
  };
  CHECK(refused([](auto& t) { t["costs"] = 3; }) == "p: 'costs' is not a list");
  CHECK(refused([](auto& t) { t["costs"][0]["operation"] = "sing"; }) ==
        "p: costs[0]: operation 'sing' is not encode, merge, decode or add");
  CHECK(refused([](auto& t) {
          t["errors"] = {{{"plan", lossy_plan}, {"error", "much"}}};
        }).find("p: errors[0]: ") == 0);
  CHECK(refused([](auto& t) { t["links"][0]["ranks"] = 1; }).find("p: links[0]: ") == 0);
}

TEST_CASE("a model with a wrong entry is refused by its place") {
  const auto refused = [&](auto&& change) {
    auto text = model_json();
    change(text);
    return error_of([&] { parse_training(text, "m"); });
  };
  CHECK(refused([](auto& t) { t["tensors"][1]["dtype"] = "f64"; }) ==
        "m: tensors[1]: dtype \"f64\": unsupported, the model of a step knows f32 only");
  CHECK(refused([](auto& t) { t["tensors"][1]["shape"] = {-1, 3}; }).find("m: tensors[1]: ") == 0);
  CHECK(refused([](auto& t) { t["tensors"][0]["shape"] = {"a"}; }).find("m: tensors[0]: ") == 0);
  CHECK(refused([](auto& t) { t["tensors"] = nlohmann::json::array(); }) == "m: no list 'tensors', or an empty one");
  CHECK(refused([](auto& t) { t["tensors"][0]["elements"] = 1e17; }).find("elements; at most") != std::string::npos);
  CHECK(refused([](auto& t) { t["tensors"][0]["shape"] = {-1, 100}; }) == "m: tensors[0]: shape has -1, not a count");
  CHECK(refused([](auto& t) { t["tensors"] = nlohmann::json::array_t(1'000'001); }) ==
        "m: 1000001 tensors; at most 1000000 are read");
}

TEST_CASE("times and rates have units, and a text without one is told what it may have meant") {
  CHECK(parse_time("122ms") == 122e6);
  CHECK(parse_time("1.5 s") == 1.5e9);
  CHECK(parse_time("40us") == 40e3);
  CHECK(error_of([] { parse_time("12 parsecs"); }).find("parsecs") != std::string::npos);
  CHECK(error_of([] { parse_time("1e30s"); }) != "no error");
  CHECK(error_of([] { parse_link("10Gb"); }).find("is it 10Gb/s?") != std::string::npos);
  CHECK(error_of([] { parse_link("10GB"); }).find("is it 10GB/s?") != std::string::npos);
  CHECK(error_of([] { parse_link("10 furlongs"); }).find("is not a unit of a rate") != std::string::npos);
  CHECK(error_of([] { parse_time("12"); }) == "'12': 12 of what? 12us, say; units of a time: ns, us, ms, s");
  CHECK(error_of([] { parse_time("fast"); }) == "'fast': 'fast' does not begin with a number above 0");
  CHECK(error_of([] { parse_time("-1ms"); }) == "'-1ms': '-1ms' does not begin with a number above 0");
  CHECK(error_of([] { parse_link("10"); }).find("'10': 10 of what? 10Gb/s, say; units of a rate: b/s, ") == 0);
  CHECK(error_of([] { parse_link("0Gb/s"); }) == "'0Gb/s': '0Gb/s' does not begin with a number above 0");
}

TEST_CASE("a link is a rate, and perhaps a latency behind a comma") {
  const dr::predict::link plain = parse_link("10Gb/s"), far = parse_link("1.5 KB/s,40 us"),
                          near = parse_link("25Gbps,0ns");
  CHECK(plain.bits_per_second == 1e10);
  CHECK(!plain.has_latency);
  CHECK(far.bits_per_second == 12000);
  CHECK(far.has_latency);
  CHECK(far.latency_ns == 40e3);
  CHECK(near.bits_per_second == 25e9);
  CHECK(near.has_latency);
  CHECK(near.latency_ns == 0);
  CHECK(error_of([] { parse_link("10Gb/s,40"); }) ==
        "'10Gb/s,40': 40 of what? 40us, say; units of a latency: ns, us, ms, s");
  CHECK(error_of([] { parse_link("10Gb/s,4 parsecs"); }) ==
        "'10Gb/s,4 parsecs': 'parsecs' is not a unit of a latency; known: ns, us, ms, s");
  CHECK(error_of([] { parse_link("10Gb/s,"); }).find("'10Gb/s,': '' does not begin with a number") == 0);
  CHECK(error_of([] { parse_link("2e19b/s"); }) == "'2e19b/s': above 1e18 bit/s");
}

TEST_CASE("a model of sizes has shapes or numbers of elements") {
  const training t = sized_training("100,20x3");
  CHECK(t.elements() == 160);
  CHECK(t.tensors[1].rows == 20);
  CHECK(error_of([] { sized_training("10,ab"); }) == "'ab' is neither a number of elements nor a shape");
  CHECK(error_of([] { sized_training("1000000x1000000x1000000"); }).find("more than") != std::string::npos);
}
