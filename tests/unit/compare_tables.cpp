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

TEST_CASE("tables warn of spreads, and of rounds that are too few to know one") {
  const row fast = timed(10000, 0.02), alike = timed(10100, 0.05), wild = timed(90000, 0.4);
  const auto notes = [](const std::vector<std::pair<std::string, const row*>>& rows, bool named = true) {
    std::vector<named_times> times;
    for (const auto& [name, r] : rows) times.push_back(times_of(name, *r));
    std::string all;
    for (const std::string& note : spread_notes(times, named)) all += note + '\n';
    return all;
  };
  CHECK(notes({{"a", &fast}, {"b", &alike}}).empty());
  CHECK(notes({{"w", &wild}}).find("spread above 25 %: w: encode 40 %.") != std::string::npos);
  CHECK(notes({{"a", &fast}, {"w", &wild}}, false).find("25 % in times of 1 of 2 rows:") != std::string::npos);
  const row once = timed(10000, 0, 1);
  CHECK(notes({{"a", &once}}).find("1 timed round:") != std::string::npos);
}

TEST_CASE("a table wraps its first column at spaces, with its indentation, and is no wider than asked") {
  text_table t;
  t.column("plan", text_table::align::left, {"  index=golomb value=log_quant", "memcpy"});
  t.column("pays\nbelow", text_table::align::right, {"12 Gb/s", ""});
  t.before(0, "a heading\n");
  t.bold(1);
  CHECK(t.natural("  ") == 2 + 30 + 2 + 7);
  CHECK(t.text("  ", 40) ==
        "                                    pays\n"
        "  plan                             below\n"
        "a heading\n"
        "    index=golomb                 12 Gb/s\n"
        "      value=log_quant\n" +
            std::string(1, bold_mark) + "  memcpy\n");
  CHECK(t.text("  ").find("    index=golomb value=log_quant  12 Gb/s\n") != std::string::npos);
  CHECK(t.markdown().starts_with("| plan | pays below |\n"));
}

TEST_CASE("sizes and speeds have three digits and one unit") {
  CHECK(size_text(999) == "999 B");
  CHECK(size_text(88600) == "88.6 kB");
  CHECK(size_text(999600) == "1 MB");
  CHECK(speed_text(25.66e9) == "25.7 Gb/s");
  CHECK(speed_text(100e6) == "100 Mb/s");
  CHECK(speed_text(0) == "never");
}
