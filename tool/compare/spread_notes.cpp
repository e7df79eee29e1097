#include "spread_notes.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace dr::compare {
namespace {

constexpr double wide = 0.25;
constexpr size_t names_max = 4;
constexpr uint64_t rounds_for_spread = 5;

std::string list_of(std::vector<std::string> names, const char* separator) {
  const size_t all = names.size();
  names.resize(std::min(all, names_max));
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : separator) + name;
  return all > names_max ? text + fmt::format("{}… ({} in all)", separator, all) : text;
}

std::string wide_spreads(std::span<const named_times> rows, bool named) {
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
  if (!named)
    return fmt::format("warning: spread above 25 % in times of {} of {} rows: a quiet machine helps.", names.size(),
                       rows.size());
  return "warning: spread above 25 %: " + list_of(names, "; ") +
         ". A quiet machine or more rounds (--time) would help.";
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

std::vector<std::string> spread_notes(std::span<const named_times> rows, bool named) {
  if (rows.empty()) return {};
  if (const uint64_t rounds = std::ranges::min(rows, {}, &named_times::rounds).rounds; rounds < rounds_for_spread)
    return {fmt::format("warning: {} timed round{}: too few to know the spread of these times.", rounds,
                        rounds == 1 ? "" : "s")};
  std::vector<std::string> notes{wide_spreads(rows, named)};
  std::erase(notes, "");
  return notes;
}

}  // namespace dr::compare
