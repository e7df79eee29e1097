#include "spread_notes.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace dr::compare {
namespace {

constexpr double wide = 0.25;
constexpr size_t max_listed = 4;
constexpr uint64_t rounds_for_spread = 5;

std::string list_of(std::vector<std::string> names, const char* separator) {
  const size_t all = names.size();
  names.resize(std::min(all, max_listed));
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : separator) + name;
  return all > max_listed ? text + fmt::format("{}… ({} in all)", separator, all) : text;
}

// The middle half of the rounds lies between low and high.
struct interval {
  double low, middle, high;
  const std::string* name;
};

interval interval_of(const named_times& x) {
  const auto half = [](const timing& t) { return std::isfinite(t.spread) ? t.median * t.spread / 2 : 0; };
  const double middle = x.encode.median + x.decode.median, reach = half(x.encode) + half(x.decode);
  return {middle - reach, middle, middle + reach, &x.name};
}

std::string wide_spreads(std::span<const named_times> rows) {
  std::vector<std::string> names;
  for (const named_times& x : rows) {
    const std::pair<const char*, double> times[] = {{"sparsify", x.sparsify.spread},
                                                    {"encode", x.encode.spread},
                                                    {"decode", x.decode.spread},
                                                    {"merge", x.merge.spread}};
    std::string wide_ones;
    for (const auto& [time, spread] : times)
      if (spread > wide) wide_ones += fmt::format("{}{} {:.0f} %", wide_ones.empty() ? "" : ", ", time, 100 * spread);
    if (!wide_ones.empty()) names.push_back(x.name + ": " + wide_ones);
  }
  if (names.empty()) return {};
  return "warning: spread above 25 %: " + list_of(names, "; ") +
         ". A quiet machine or more rounds (--time) would help.";
}

// Neighbours in time that overlap make a group.
std::string equal_times(std::span<const named_times> rows) {
  std::vector<interval> sorted;
  for (const named_times& x : rows) sorted.push_back(interval_of(x));
  std::ranges::sort(sorted, {}, &interval::middle);
  std::vector<std::string> groups;
  for (size_t i = 0; i < sorted.size();) {
    size_t end = i + 1;
    std::vector<std::string> names{*sorted[i].name};
    for (; end < sorted.size() && sorted[end].low <= sorted[end - 1].high; ++end) names.push_back(*sorted[end].name);
    if (names.size() > 1) groups.push_back(list_of(names, ", "));
    i = end;
  }
  if (groups.empty()) return {};
  return "warning: encode + decode differ by less than the spread: " + list_of(groups, "; ") + ".";
}

}  // namespace

named_times times_of(std::string name, const row& r) {
  const row_times& t = r.times;
  return {std::move(name), t.rounds, t.sparsify, t.encode, t.decode, t.merge};
}

named_times times_of(std::string name, const nlohmann::ordered_json& row) {
  const auto number = [&](const std::string& column) {
    const auto cell = row.find(column);
    return cell != row.end() && cell->is_number() ? cell->get<double>() : std::nan("");
  };
  const auto time = [&](const std::string& column) { return timing{number(column), number(column + "_spread")}; };
  return {std::move(name),     static_cast<uint64_t>(std::isfinite(number("rounds")) ? number("rounds") : 0),
          time("sparsify_ns"), time("encode_ns"),
          time("decode_ns"),   time("merge_ns")};
}

std::vector<std::string> spread_notes(std::span<const named_times> rows, bool one_subject) {
  if (rows.empty()) return {};
  if (const uint64_t rounds = std::ranges::min(rows, {}, &named_times::rounds).rounds; rounds < rounds_for_spread)
    return {fmt::format("warning: {} timed round{}: too few to know the spread of these times.", rounds,
                        rounds == 1 ? "" : "s")};
  std::vector<std::string> notes{wide_spreads(rows)};
  if (one_subject) notes.push_back(equal_times(rows));
  std::erase(notes, "");
  return notes;
}

}  // namespace dr::compare
