#include "against.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "tool/show/text_table.hpp"
#include "totals.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

// Relative change of a time between two runs of one program, beyond their spreads; more with fewer rounds.
constexpr double min_change = 0.05, min_change_of_few = 0.2;
constexpr double few_rounds = 9;
constexpr size_t max_listed = 10;  // rows of only one side
constexpr const char* exact_columns[] = {"bytes", "total_error", "relative_l2_error"};

struct pair_of_rows {
  const json_row *now, *old;
};

std::string key_of(const json_row& row, const std::string& input) {
  std::string key = input;
  for (const char* column : {"tensor", "step", "dtype", "d", "plan"})
    key += '\0' + printed(row.value(column, json_row()));
  return key;
}

std::string file_name(const std::string& input) { return std::filesystem::path(input).filename().string(); }

// Rows by key; nullptr for a duplicate key.
template <class Input>
std::map<std::string, const json_row*> by_key(std::span<const json_row* const> rows, Input&& input) {
  std::map<std::string, const json_row*> map;
  for (const json_row* row : rows) {
    const auto [at, added] = map.emplace(key_of(*row, input(text_of(*row, "input"))), row);
    if (!added) at->second = nullptr;
  }
  return map;
}

struct matching {
  std::vector<pair_of_rows> pairs;
  std::vector<const json_row*> only_now, only_old;
};

// By whole inputs, then the rest by the names of files.
matching match(std::span<const json_row> rows, std::span<const json_row> old_rows) {
  matching m;
  for (const json_row& row : rows)
    if (!is_memcpy(row)) m.only_now.push_back(&row);
  for (const json_row& row : old_rows)
    if (!is_memcpy(row)) m.only_old.push_back(&row);
  const auto pass = [&](auto&& input) {
    const auto now = by_key(m.only_now, input), old = by_key(m.only_old, input);
    const auto partner = [&](const json_row* row, const auto& own, const auto& other) {
      const std::string key = key_of(*row, input(text_of(*row, "input")));
      const auto mine = own.find(key), theirs = other.find(key);
      return mine->second != nullptr && theirs != other.end() && theirs->second != nullptr ? theirs->second : nullptr;
    };
    std::vector<const json_row*> rest;
    for (const json_row* row : m.only_now)
      if (const json_row* other = partner(row, now, old))
        m.pairs.push_back({row, other});
      else
        rest.push_back(row);
    std::erase_if(m.only_old, [&](const json_row* row) { return partner(row, old, now) != nullptr; });
    m.only_now = std::move(rest);
  };
  pass([](const std::string& input) { return input; });
  pass(file_name);
  return m;
}

std::string verdict_of(const json_row& now, const json_row& old, const std::string& column, double a, double b) {
  double noise = 1e-9 * std::abs(b);
  if (column.ends_with("_ns")) {
    const auto new_spread = number_in(now, column + "_spread"), old_spread = number_in(old, column + "_spread");
    if (!new_spread || !old_spread) return "same";
    const bool few = std::min(number_in(now, "rounds").value_or(0), number_in(old, "rounds").value_or(0)) < few_rounds;
    noise = std::max({*new_spread * a, *old_spread * b, (few ? min_change_of_few : min_change) * b});
  }
  return std::abs(a - b) <= noise ? "same" : a < b ? "better" : "worse";
}

std::vector<std::string> judged_columns(const json_row& row) {
  std::vector<std::string> columns(std::begin(exact_columns), std::end(exact_columns));
  for (const auto& cell : row.items())
    if (cell.key().ends_with("_ns") && row.contains(cell.key() + "_spread")) columns.push_back(cell.key());
  return columns;
}

ordered_json column_facts(const json_row& now, const json_row& old) {
  auto facts = ordered_json::object();
  for (const std::string& column : judged_columns(now)) {
    const auto a = number_in(now, column), b = number_in(old, column);
    // An error became null, or stopped being null: the decoded tensor is not finite.
    if (a.has_value() != b.has_value() && column.ends_with("_error") && now.contains(column) && old.contains(column))
      facts[column] = {
          {"old", old.at(column)}, {"new", now.at(column)}, {"change", nullptr}, {"verdict", a ? "better" : "worse"}};
    if (!a || !b) continue;
    facts[column] = {{"old", old.at(column)},
                     {"new", now.at(column)},
                     {"change", *b == 0 ? ordered_json(nullptr) : ordered_json((*a - *b) / *b)},
                     {"verdict", verdict_of(now, old, column, *a, *b)}};
  }
  return facts;
}

std::string verdict_over(const ordered_json& columns) {
  bool better = false, worse = false;
  for (const ordered_json& c : columns) better |= c.at("verdict") == "better", worse |= c.at("verdict") == "worse";
  return better && worse ? "mixed" : better ? "better" : worse ? "worse" : "same";
}

ordered_json identity(const json_row& row) {
  ordered_json id;
  for (const char* column : {"input", "tensor", "step", "plan"}) id[column] = row.value(column, json_row());
  return id;
}

ordered_json member(const ordered_json& document, const char* name) {
  return document.is_object() ? document.value(name, ordered_json()) : ordered_json();
}
ordered_json cpu_of(const ordered_json& document) { return member(member(document, "machine"), "cpu"); }

ordered_json notes_of(const ordered_json& now, const ordered_json& old) {
  auto notes = ordered_json::array();
  const auto differ = [&](const char* what, const ordered_json& a, const ordered_json& b, const char* consequence) {
    if (a != b)
      notes.push_back(fmt::format("{} differs: {} before, {} now; {}", what, b.dump(), a.dump(), consequence));
  };
  differ("the machine", cpu_of(now), cpu_of(old), "times do not compare");
  differ("seed", member(now, "seed"), member(old, "seed"),
         "plans that draw random numbers have other bytes and errors");
  differ("threads", member(now, "threads"), member(old, "threads"), "times do not compare");
  differ("ranks", member(now, "ranks"), member(old, "ranks"), "merges of other numbers of frames do not compare");
  differ("segment_rows", member(now, "segment_rows"), member(old, "segment_rows"), "bytes and times do not compare");
  return notes;
}

std::string label(const ordered_json& id) {
  const std::string tensor = text_of(id, "tensor");
  return file_name(text_of(id, "input")) + (tensor.empty() ? "" : " " + tensor);
}

std::string change_text(const ordered_json& columns, const char* name) {
  const auto c = columns.find(name);
  if (c == columns.end()) return {};
  const bool differs = c->at("verdict") != "same";
  if (c->at("change").is_null()) return differs ? c->at("verdict").get<std::string>() : "=";
  const double change = c->at("change").get<double>();
  if (change == 0) return "=";
  // Within the spread: in parentheses.
  const std::string text = fmt::format("{:+.{}f}%", 100 * change, std::abs(change) < 0.01 ? 2 : 1);
  return differs ? text : '(' + text + ')';
}

}  // namespace

ordered_json compare_with(std::span<const json_row> rows, const ordered_json& document,
                          std::span<const json_row> old_rows, const ordered_json& old_document,
                          const std::string& file) {
  const matching m = match(rows, old_rows);
  ordered_json result{
      {"old", {{"file", file}, {"commit", member(old_document, "commit")}, {"cpu", cpu_of(old_document)}}},
      {"rows", ordered_json::array()},
      {"total", ordered_json::object()},
      {"only_old", ordered_json::array()},
      {"only_new", ordered_json::array()},
      {"notes", notes_of(document, old_document)}};
  std::map<std::string, size_t> count;
  std::vector<const json_row*> now, old;
  for (const pair_of_rows& p : m.pairs) {
    ordered_json entry = identity(*p.now);
    ordered_json columns = column_facts(*p.now, *p.old);
    entry["verdict"] = verdict_over(columns);
    entry["columns"] = std::move(columns);
    ++count[entry["verdict"]];
    result["rows"].push_back(std::move(entry));
    now.push_back(p.now);
    old.push_back(p.old);
  }
  ordered_json& total = result["total"];
  total["rows"] = m.pairs.size();
  for (const char* verdict : {"better", "worse", "same", "mixed"}) total[verdict] = count[verdict];
  total["columns"] = now.empty() ? ordered_json::object() : column_facts(combine(now, 0), combine(old, 0));
  total["verdict"] = verdict_over(total["columns"]);
  for (const json_row* row : m.only_old) result["only_old"].push_back(identity(*row));
  for (const json_row* row : m.only_now) result["only_new"].push_back(identity(*row));
  return result;
}

std::string against_text(const ordered_json& result, bool markdown) {
  using enum text_table::align;
  const std::string file = result.at("old").at("file");
  std::string text;
  // In Markdown a line is a paragraph, else lines would be joined.
  const auto say = [&](const std::string& line) { text += markdown ? markdown_text(line) + "\n\n" : line + '\n'; };
  for (const ordered_json& note : result.at("notes")) say("note: " + note.get<std::string>());
  std::vector<std::string> plans, subjects, verdicts;
  std::map<std::string, std::vector<std::string>> changes;
  constexpr std::pair<const char*, const char*> shown[] = {
      {"bytes", "bytes"},          {"error", "total_error"}, {"coding", "relative_l2_error"},
      {"sparsify", "sparsify_ns"}, {"encode", "encode_ns"},  {"decode", "decode_ns"},
      {"merge", "merge_ns"}};
  const auto add = [&](const std::string& plan, const std::string& subject, const ordered_json& entry) {
    plans.push_back(plan);
    subjects.push_back(subject);
    for (const auto& [heading, column] : shown) changes[heading].push_back(change_text(entry.at("columns"), column));
    verdicts.push_back(entry.at("verdict"));
  };
  for (const ordered_json& entry : result.at("rows")) add(text_of(entry, "plan"), label(entry), entry);
  const ordered_json& total = result.at("total");
  const size_t rows = total.at("rows");
  if (rows > 0) add("all", fmt::format("{} row{}", rows, rows == 1 ? "" : "s"), total);
  text_table t;
  t.column("plan", left, std::move(plans));
  t.column("of", left, std::move(subjects));
  for (const auto& [heading, column] : shown) t.column(heading, right, std::move(changes[heading]));
  t.column("verdict", left, std::move(verdicts));
  text += !markdown ? t.text("", 140) : rows > 0 ? t.markdown() + '\n' : "";
  say(fmt::format(
      "Against {} (commit {}): of {} row{} {} better, {} worse, {} the same, {} mixed.", file,
      result.at("old").at("commit").is_string() ? result.at("old").at("commit").get<std::string>() : "unknown", rows,
      rows == 1 ? "" : "s", total.at("better").get<size_t>(), total.at("worse").get<size_t>(),
      total.at("same").get<size_t>(), total.at("mixed").get<size_t>()));
  if (rows > 0) say("Changes are (new - old) / old; those in parentheses are within the spread of their times.");
  for (const char* side : {"only_old", "only_new"}) {
    const std::string where = side == std::string_view("only_old") ? "in " + file : "now";
    const ordered_json& list = result.at(side);
    for (size_t i = 0; i < std::min(list.size(), max_listed); ++i)
      say(fmt::format("only {}: {}: {}", where, label(list[i]), text_of(list[i], "plan")));
    if (list.size() > max_listed) say(fmt::format("only {}: {} more rows", where, list.size() - max_listed));
  }
  return text;
}

bool any_worse(const ordered_json& result) {
  const ordered_json& total =
      result.at("total");  // (its verdict is that of sums, whose spread is smaller than any row's)
  return total.at("worse").get<size_t>() + total.at("mixed").get<size_t>() > 0;
}

}  // namespace dr::compare
