#include "outer_text.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "predict_text.hpp"
#include "tool/show/console.hpp"
#include "tool/show/text_table.hpp"

namespace dr::predict {
namespace {

using compare::text_table;
using nlohmann::ordered_json;

constexpr size_t widest_line = 80;
constexpr double shown_share = 0.01;  // of a round: less is not worth a sentence

std::string percent(double share) { return fmt::format("{:.{}f} %", 100 * share, share < 0.0995 ? 1 : 0); }

double number(const ordered_json& row, const char* key) { return row.at(key).get<double>(); }

// Within the width. A number and the word behind it stay together.
std::string lines_of(std::string text, const std::string& indent = "") {
  constexpr char joint = '\x01';
  for (size_t i = 1; i + 1 < text.size(); ++i)
    if (text[i] == ' ' && std::isdigit(static_cast<unsigned char>(text[i - 1]))) text[i] = joint;
  std::string all;
  for (std::string line : compare::wrapped(text, widest_line - indent.size())) {
    std::ranges::replace(line, joint, ' ');
    all += indent + line + '\n';
  }
  return all;
}

// The rows of one H, each with the number of its candidate.
struct numbered_row {
  size_t number;
  const ordered_json* row;
};
using round_rows = std::vector<numbered_row>;

std::vector<round_rows> rounds_of(const ordered_json& rows) {
  std::vector<round_rows> all;
  for (const ordered_json& row : rows) {
    if (all.empty() || all.back().front().row->at("every") != row.at("every")) all.emplace_back();
    all.back().push_back({all.back().size() + 1, &row});
  }
  return all;
}

std::string below_text(const ordered_json& row) {
  const ordered_json &to = row.at("pays_below"), &from = row.at("pays_above");
  if (from.is_number()) return "above " + rate_text(from.get<double>());
  return to.is_number() ? rate_text(to.get<double>()) : to.is_string() ? to.get<std::string>() : "";
}

std::string table_of(const round_rows& round) {
  text_table t;
  const auto column = [&](const char* heading, const char* key, const auto& text) {
    std::vector<std::string> cells;
    for (const auto& [i, row] : round) cells.push_back(row->at(key).is_number() ? text(number(*row, key)) : "");
    t.column(heading, text_table::align::right, std::move(cells));
  };
  std::vector<std::string> plans, rates;
  for (const auto& [i, row] : round) {
    plans.push_back(fmt::format("[{}]", i));
    rates.push_back(below_text(*row));
  }
  t.column("plan", text_table::align::left, std::move(plans));
  column("sent", "sent_bytes", bytes_text);
  column("exchange", "exchange_ns", time_text);
  column("round", "round_ns", time_text);
  column("waits", "waiting", percent);
  column("10 % at", "waits_10_percent_from", [](double h) { return fmt::format("{:.0f}", h); });
  column("pays to", "pays_to_every", [](double h) { return h > 0 ? fmt::format("{:.0f}", h) : "never"; });
  t.column("pays below", text_table::align::right, std::move(rates));
  column("error", "relative_error", [](double e) { return fmt::format("{:.2g}", e); });
  return t.text("  ", widest_line);
}

struct best_rows {
  const numbered_row *plan = nullptr, *dense = nullptr;  // of the shortest rounds
};

best_rows best_of(const round_rows& round) {
  best_rows best;
  for (const numbered_row& each : round) {
    const ordered_json& row = *each.row;
    if (!row.at("round_ns").is_number()) continue;
    const numbered_row*& place = row.at("verdict").is_string() ? best.plan : best.dense;
    if (!place || number(row, "round_ns") < number(*place->row, "round_ns")) place = &each;
  }
  return best;
}

// DDP's shorter dense steps.
std::string ddp_text(const round_rows& round) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& [i, row] : round)
    if (!row->at("verdict").is_string() && row->at("ddp_ns").is_number()) best = std::min(best, number(*row, "ddp_ns"));
  return std::isfinite(best) ? fmt::format(" DDP, exchanging in every step: {}.", time_text(best)) : "";
}

// "3.2 s, of which 4 % waits"
std::string length_text(const ordered_json& row) {
  return fmt::format("{}, of which {} waits", time_text(number(row, "round_ns")), percent(number(row, "waiting")));
}

std::string round_text(const round_rows& round) {
  const std::string start = fmt::format("Every {} steps: ", round.front().row->at("every").get<uint32_t>());
  const auto [plan, dense] = best_of(round);
  if (!dense) return start + "no round could be modelled.";
  const std::string rest = length_text(*dense->row) + "." + ddp_text(round);
  if (!plan) return start + fmt::format("no plan could be modelled. [{}], dense: {}", dense->number, rest);
  const std::string best = length_text(*plan->row);
  if (plan->row->at("verdict") == "pays")
    return start +
           fmt::format("[{}] has the shortest round: {}. [{}], dense: {}", plan->number, best, dense->number, rest);
  return start +
         fmt::format("no plan helps. The shortest, [{}]: {}. [{}], dense: {}", plan->number, best, dense->number, rest);
}

// Of the plan with the shortest exchange, at the smallest H where it matters.
std::string limits_text(const round_rows& round) {
  const auto [plan, dense] = best_of(round);
  if (!plan || !dense) return "";
  const ordered_json &row = *plan->row, &below = row.at("pays_below");
  for (const ordered_json* each : {&row, dense->row})  // (null: beyond any count)
    if (!each->at("waits_10_percent_from").is_number()) return "";
  if (!row.at("pays_to_every").is_number()) return "";
  const double to = number(row, "pays_to_every"), ten = number(*dense->row, "waits_10_percent_from");
  std::string text;
  if (ten > 1)
    text = fmt::format("Less than 10 % of a round waits from {:.0f} steps on with [{}], from {:.0f} on with [{}]. ",
                       number(row, "waits_10_percent_from"), plan->number, ten, dense->number);
  if (to < 1) return text;
  text += fmt::format("[{}], dense, does as well as [{}], within 3 %, from {:.0f} steps on", dense->number,
                      plan->number, to + 1);
  if (below.is_number() && below.get<double>() > 0)
    text += fmt::format(", and every {} steps on a link of {} or more", row.at("every").get<uint32_t>(),
                        rate_text(below.get<double>()));
  return text + ".";
}

std::string overlap_text(const round_rows& round) {
  const auto [plan, dense] = best_of(round);
  const numbered_row* const best = plan ? plan : dense;
  if (!best) return "";
  const ordered_json& row = *best->row;
  const double whole = number(row, "round_ns"), over = number(row, "overlapped_ns");
  if (over > (1 - shown_share) * whole) return "";
  return fmt::format("Every {} steps with overlap={:.0f}, the round of [{}] is {} long: training goes on meanwhile.",
                     row.at("every").get<uint32_t>(), number(row, "overlap"), best->number, time_text(over));
}

}  // namespace

std::vector<std::string> rounds_verdict(const ordered_json& d) {
  std::vector<std::string> lines;
  const std::vector<round_rows> rounds = rounds_of(d.at("rows"));
  for (const round_rows& round : rounds) lines.push_back(round_text(round));
  for (const std::string& line : {limits_text(rounds.front()), overlap_text(rounds.front())})
    if (!line.empty()) lines.push_back(line);
  lines.push_back("These are times. What H or a plan does to the loss, only training shows (docs/OUTER.md).");
  return lines;
}

std::string rounds_table(const ordered_json& d) {
  const ordered_json &model = d.at("model"), &link = d.at("link"), &rows = d.at("rows");
  const std::string source = link.at("source").get<std::string>();
  std::string text =
      lines_of(fmt::format(
          "{}: {} in {}; a step computes {}; {} workers over {}, link {} each way ({}); costs of {}",
          model.at("name").get<std::string>(), count_text(model.at("elements").get<uint64_t>(), "element"),
          count_text(model.at("tensors").get<size_t>(), "tensor"), time_text(d.at("step_ns")),
          d.at("ranks").get<uint32_t>(), d.at("transport") == "folder" ? "a Folder" : "torch.distributed",
          rate_text(link.at("bits_per_second")), source, d.at("profile").at("machine").get<std::string>())) +
      "\n";
  const std::vector<round_rows> rounds = rounds_of(rows);
  for (const auto& [i, row] : rounds.front()) {
    const std::string name = row->at("candidate");
    const bool named = name == "dense f32" || name == "dense bf16";
    text += lines_of(fmt::format("[{}] {}{}", i, name,
                                 !named   ? ""
                                 : i == 1 ? ": plan None"
                                          : ": index=all value=half(type=bf16)"),
                     "  ");
  }
  for (const round_rows& round : rounds) {
    const uint32_t every = round.front().row->at("every").get<uint32_t>();
    text += fmt::format("\nEvery {} steps, {} of training:\n", every, time_text(every * number(d, "step_ns"))) +
            table_of(round);
  }
  text += "\n" +
          lines_of(
              "waits: the exchange's share of the round. 10 % at: H from which that is 10 %. pays to: H up to which a "
              "round is over 3 % shorter than the shorter dense one; pays below: the link's rate, likewise.");
  for (const auto& [i, row] : rounds.front())
    if (row->at("error").is_string()) text += lines_of(fmt::format("[{}]: {}", i, row->at("error").get<std::string>()));
  for (const ordered_json& note : d.at("notes")) text += lines_of("note: " + note.get<std::string>());
  text += '\n';
  for (const ordered_json& line : d.at("verdict")) text += lines_of(line.get<std::string>());
  return compare::plain(compare::without_controls(text, true));
}

}  // namespace dr::predict
