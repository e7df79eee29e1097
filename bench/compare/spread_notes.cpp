#include "spread_notes.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace dr::compare {
namespace {

constexpr double wide = 0.25;
constexpr size_t listed_most = 4;
constexpr uint64_t rounds_for_spread = 5;

std::string list_of(std::vector<std::string> names, const char* separator) {
  const size_t all = names.size();
  names.resize(std::min(all, listed_most));
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : separator) + name;
  return all > listed_most ? text + fmt::format("{}… ({} in all)", separator, all) : text;
}

// The middle half of the rounds lies between these.
struct interval {
  double least, middle, most;
  const std::string* name;
};

interval interval_of(const named_row& x) {
  const row& r = *x.of;
  const auto half = [](double median, double spread) { return std::isfinite(spread) ? median * spread / 2 : 0; };
  const double middle = r.encode_ns + r.decode_ns;
  const double reach = half(r.encode_ns, r.encode_ns_spread) + half(r.decode_ns, r.decode_ns_spread);
  return {middle - reach, middle, middle + reach, &x.name};
}

std::string wide_spreads(std::span<const named_row> rows) {
  std::vector<std::string> names;
  for (const auto& [name, r] : rows) {
    const std::pair<const char*, double> times[] = {{"sparsify", r->sparsify_ns_spread},
                                                    {"encode", r->encode_ns_spread},
                                                    {"decode", r->decode_ns_spread},
                                                    {"merge", r->merge_ns_spread}};
    std::string wide_ones;
    for (const auto& [time, spread] : times)
      if (spread > wide) wide_ones += fmt::format("{}{} {:.0f} %", wide_ones.empty() ? "" : ", ", time, 100 * spread);
    if (!wide_ones.empty()) names.push_back(name + ": " + wide_ones);
  }
  if (names.empty()) return {};
  return "warning: spread above 25 %: " + list_of(names, "; ") +
         ". A quiet machine or more rounds (--time) would help.";
}

// Neighbours in time that overlap make a group.
std::string equal_times(std::span<const named_row> rows) {
  std::vector<interval> sorted;
  for (const named_row& x : rows) sorted.push_back(interval_of(x));
  std::ranges::sort(sorted, {}, &interval::middle);
  std::vector<std::string> groups;
  for (size_t i = 0; i < sorted.size();) {
    size_t end = i + 1;
    std::vector<std::string> names{*sorted[i].name};
    for (; end < sorted.size() && sorted[end].least <= sorted[end - 1].most; ++end) names.push_back(*sorted[end].name);
    if (names.size() > 1) groups.push_back(list_of(names, ", "));
    i = end;
  }
  if (groups.empty()) return {};
  return "warning: encode + decode differ by less than the spread: " + list_of(groups, "; ") + ".";
}

}  // namespace

std::vector<std::string> spread_notes(std::span<const named_row> rows) {
  if (rows.empty()) return {};
  if (const uint64_t rounds = rows.front().of->rounds; rounds < rounds_for_spread)
    return {fmt::format("warning: {} timed round{}: too few to know how far these times spread.", rounds,
                        rounds == 1 ? "" : "s")};
  std::vector<std::string> notes;
  for (std::string note : {wide_spreads(rows), equal_times(rows)})
    if (!note.empty()) notes.push_back(std::move(note));
  return notes;
}

}  // namespace dr::compare
