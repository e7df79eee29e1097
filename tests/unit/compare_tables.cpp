// What the tool's tables cut, and what they warn of.
#include <doctest/doctest.h>

#include <algorithm>

#include "tool/compare/spread_notes.hpp"
#include "tool/show/text_table.hpp"

using namespace dr::compare;

namespace {

row timed(double encode_ns, double spread, uint64_t rounds = 20) {
  row r;
  r.times.rounds = rounds;
  r.times.encode = {encode_ns, spread};
  r.times.sparsify = r.times.decode = r.times.merge = {1000, 0.01};
  return r;
}

std::string without_spaces(const std::string& text) {
  std::string rest = text;
  std::erase(rest, ' ');
  return rest;
}

}  // namespace

TEST_CASE("a text that is too long takes several lines and loses nothing") {
  const std::string plan =
      "index=bloom(policy=p0,fpr=0.00123456789,seed=4000000000) value=fit_poly(degree=4)+deflate(level=9) → index=raw";
  for (size_t width = 3; width < 120; ++width) {
    CAPTURE(width);
    std::string all;
    for (const std::string& line : wrapped(plan, width)) {
      CHECK(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }) <=
            static_cast<std::ptrdiff_t>(width));
      all += line;
    }
    CHECK(without_spaces(all) == without_spaces(plan));
  }
  CHECK(wrapped("golomb", 6) == std::vector<std::string>{"golomb"});
  CHECK(wrapped("index=golomb value=raw", 14) == std::vector<std::string>{"index=golomb", "  value=raw"});
  CHECK(wrapped("index=bloom(policy=p0,fpr=0.1)", 24)[0] == "index=bloom(policy=p0,");
}

TEST_CASE("tables warn of times that do not differ by more than their spread") {
  const row fast = timed(10000, 0.02), slow = timed(12000, 0.02), alike = timed(12100, 0.05), wild = timed(90000, 0.4);
  const auto notes = [](const std::vector<std::pair<std::string, const row*>>& rows, bool one_subject = true) {
    std::vector<named_times> times;
    for (const auto& [name, r] : rows) times.push_back(times_of(name, *r));
    std::string all;
    for (const std::string& note : spread_notes(times, one_subject)) all += note + '\n';
    return all;
  };
  CHECK(notes({{"a", &fast}, {"b", &slow}}).empty());
  const std::string equal = notes({{"a", &fast}, {"b", &slow}, {"c", &alike}});
  CHECK(equal.find("differ by less than the spread: b, c.") != std::string::npos);
  CHECK(notes({{"a", &fast}, {"b", &slow}, {"c", &alike}}, false).empty());
  CHECK(notes({{"w", &wild}}).find("spread above 25 %: w: encode 40 %.") != std::string::npos);
  const row once = timed(10000, 0, 1);
  CHECK(notes({{"a", &once}}).find("1 timed round:") != std::string::npos);
}
