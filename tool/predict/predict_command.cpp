#include "predict_command.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <unistd.h>

#include "outer_command.hpp"
#include "plan_book.hpp"
#include "plan_choice.hpp"
#include "plan_errors.hpp"
#include "predict_text.hpp"
#include "tool/read/inputs.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/show/console.hpp"
#include "tool/show/output.hpp"
#include "training_evidence.hpp"
#include "what_if.hpp"

namespace dr::predict {
namespace {

using compare::usage_error;
using nlohmann::ordered_json;

// The source of a candidate's step.
const char* source_of(const candidate& c, hook_kind hook) {
  if (c.powersgd_rank) return "formula";
  if (hook == hook_kind::exchange) return c.is_plan() ? "program" : "formula";
  return "events";
}

struct judged {
  candidate what;
  double step_ns = std::numeric_limits<double>::infinity();
  double error = std::numeric_limits<double>::quiet_NaN();  // over elements; NaN: unknown
  bool rival = false;                                       // of the dense rings

  double whole() const { return whole_ns(step_ns, error); }  // NaN: unknown error
};

ordered_json row_of(judged& j, predict_case& c, const error_table& errors, bool break_even) {
  const step_model& m = c.model;
  j.rival = j.what.dense_factor == 0 && m.is_complete(j.what);
  ordered_json row{{"candidate", j.what.name}, {"by", source_of(j.what, m.hook)}};
  outcome o;
  ordered_json error;
  double dense = 0;
  paying_range rates, batches;
  const bool rival = j.rival, by_batch = break_even && m.model.batch > 0 && m.model.compute_ns() > 0;
  // (f32 is exact; the error of bf16 is not counted.)
  const choice_error lost = error_of(m, j.what, errors, c.notes);
  j.error = lost.mean;
  const double stretch = std::isnan(j.error) ? 1 : whole_ns(1, j.error);
  try {
    o = m.step(j.what);
    dense = m.best_dense_ns();
    if (rival && break_even) rates = break_even_rate(m, j.what, stretch);
    if (rival && by_batch) batches = break_even_batch(m, j.what, stretch);
    j.step_ns = o.step_ns;
  } catch (const unsupported_model& e) {
    error = e.what();
  }
  const bool known = error.is_null();
  const ordered_json figures = outcome_json(o);
  for (const auto& [key, value] : figures.items()) row[key] = known ? value : ordered_json(nullptr);
  row["relative_error"] = std::isnan(lost.mean) ? ordered_json(nullptr) : ordered_json(lost.mean);
  row["worst_error"] = std::isnan(lost.mean) ? ordered_json(nullptr) : ordered_json(lost.largest);
  row["worst_tensor"] = lost.worst ? ordered_json(lost.worst->name) : ordered_json(nullptr);
  row["whole_ns"] = known && !std::isnan(j.error) ? rounded_json(j.whole()) : ordered_json(nullptr);
  const double speedup = known ? m.dense_ns(false) / o.step_ns : INFINITY;
  row["speedup"] = std::isfinite(speedup) ? ordered_json(std::round(1e4 * speedup) / 1e4) : ordered_json(nullptr);
  const bool of_rates = known && rival && break_even, of_batches = known && rival && by_batch;
  row["pays_below"] = of_rates ? upper_json(rates) : ordered_json(nullptr);
  row["pays_above"] = of_rates ? lower_json(rates) : ordered_json(nullptr);
  row["pays_to_batch"] = of_batches ? upper_json(batches, m.model.batch) : ordered_json(nullptr);
  row["pays_from_batch"] = of_batches ? lower_json(batches, m.model.batch) : ordered_json(nullptr);
  // (A dense ring is what others are compared with; of PowerSGD without costs of its products a part is missing.)
  row["verdict"] = known && rival                      ? ordered_json(verdict_of(stretch * o.step_ns, dense))
                   : known && j.what.powersgd_rank > 0 ? ordered_json("incomplete")
                                                       : ordered_json(nullptr);
  row["error"] = error;
  return row;
}

// "3 ms a step, of an error of 0.46, so 4 ms for a whole gradient"
std::string takes_text(const judged& j) {
  if (std::isnan(j.error)) return fmt::format("{} a step, of an error that is not known", time_text(j.step_ns));
  return fmt::format("{} a step, of an error of {:.2g}, so {} for a whole gradient", time_text(j.step_ns), j.error,
                     std::isinf(j.whole()) ? "no time" : time_text(j.whole()));
}

// Rivals with the shortest step, and with the shortest time for a whole gradient. nullptr: there is none.
struct chosen {
  const judged *fastest = nullptr, *best = nullptr;

  explicit chosen(const std::vector<judged>& all) {
    for (const judged& j : all) {
      if (!j.rival || !std::isfinite(j.step_ns)) continue;
      if (!fastest || j.step_ns < fastest->step_ns) fastest = &j;
      if (!std::isnan(j.error) && (!best || j.whole() < best->whole())) best = &j;
    }
  }
};

// What trainings showed for the recommended plan and the fastest one, of which the verdict speaks.
ordered_json evidence_json(const std::vector<judged>& all) {
  auto lines = ordered_json::array();
  const chosen of(all);
  for (const judged* j : {of.best, of.fastest == of.best ? nullptr : of.fastest}) {
    if (!j || j->what.works.size() != 1) continue;
    const std::string words = training_evidence(*j->what.works[0]->method());
    if (!words.empty() && (lines.empty() || lines[0].at("evidence") != words))
      lines.push_back({{"plan", j->what.name}, {"evidence", words}});
  }
  return lines;
}

// Names the fastest candidate and the recommended one, which does not depend on time alone.
std::string verdict_text(const std::vector<judged>& all, double dense_f32, double dense_bf16) {
  const double dense = std::min(dense_f32, dense_bf16);
  const char* const dense_name = dense_bf16 < dense_f32 ? "dense bf16" : "dense f32";
  const auto [fastest, best] = chosen(all);
  if (!fastest) return fmt::format("No plan could be modelled; {} takes {}.", dense_name, time_text(dense));
  const std::string change =
      fmt::format("{:.0f} %", std::abs(100 * ((best ? best->whole() : fastest->step_ns) / dense - 1)));
  if (!best) {
    const std::string verdict = verdict_of(fastest->step_ns, dense);
    if (verdict == "pays")
      return fmt::format(
          "{} is the fastest: {} a step, {} less than {} ({}). No error is known, so none is recommended: by time "
          "alone the smallest plan always wins, and it may not train. Give --errors rows.json of `compare "
          "--per-tensor`, or calibrate again.",
          fastest->what.name, time_text(fastest->step_ns), change, dense_name, time_text(dense));
    if (verdict == "even")
      return fmt::format(
          "None of these helps: the fastest, {}, takes {} a step, {} {}. The difference is too small to count.",
          fastest->what.name, time_text(fastest->step_ns), dense_name, time_text(dense));
    return fmt::format("None of these helps: {} takes {} a step; the fastest of the others, {}, takes {}, {} more.",
                       dense_name, time_text(dense), fastest->what.name, time_text(fastest->step_ns), change);
  }
  const std::string verdict = verdict_of(best->whole(), dense);
  const std::string rest = fastest == best
                               ? " It is the fastest, too."
                               : fmt::format(" The fastest is {}: {}.", fastest->what.name, takes_text(*fastest));
  if (verdict == "pays")
    return fmt::format("Recommended: {}: {}, {} less than {} ({}).{}", best->what.name, takes_text(*best), change,
                       dense_name, time_text(dense), rest);
  if (verdict == "even")
    return fmt::format("None of these helps: the best, {}, takes {}; {} {}. The difference is too small to count.{}",
                       best->what.name, takes_text(*best), dense_name, time_text(dense), rest);
  const std::string more = std::isinf(best->whole()) ? "" : fmt::format(", {} more", change);
  return fmt::format("None of these helps: {} takes {} a step; the best of the others, {}, {}{}.{}", dense_name,
                     time_text(dense), best->what.name, takes_text(*best), more, rest);
}

const judged& shown_candidate(const predict_options& o, const std::vector<judged>& all) {
  if (!o.show.empty()) {
    for (const judged& j : all)
      if (j.what.name == o.show) return j;
    for (size_t i = 0; i < all.size(); ++i)
      if (o.show == std::to_string(i + 1)) return all[i];
    throw usage_error(
        fmt::format("--show '{}': no such candidate; they are named, and numbered, in the table", o.show));
  }
  const judged* best = &all[0];
  for (const judged& j : all)
    if (j.what.is_plan() && (!best->what.is_plan() || j.step_ns < best->step_ns)) best = &j;
  return *best;
}

// That of the terminal; of a file or a pipe what all columns take.
size_t table_width(const std::string& output) {
  constexpr size_t whole = 170;
  return output.empty() ? std::min(whole, compare::terminal_width(STDOUT_FILENO, whole)) : whole;
}

void write_pictures(const predict_options& o, const predict_case& c, const std::vector<judged>& all,
                    const ordered_json& document) {
  if (!o.trace.empty() || !o.timeline.empty()) {
    const judged& j = shown_candidate(o, all);
    if (!std::isfinite(j.step_ns)) throw usage_error(fmt::format("--show '{}': it could not be modelled", j.what.name));
    const outcome step = c.model.step(j.what, true);
    const std::string title = fmt::format("{}, {} ranks: {}", c.model.model.name, c.model.net.ranks, j.what.name);
    if (!o.trace.empty()) compare::write_output(o.trace, chrome_trace(step.timeline, title));
    if (!o.timeline.empty()) compare::write_output(o.timeline, timeline_svg(step.timeline, title, step.step_ns));
  }
  if (o.curves.empty()) return;
  for (const ordered_json& what_if : document.at("what_if")) {
    std::string path = o.curves;
    const std::string kind = what_if.at("kind");
    if (o.what_ifs.size() > 1) {
      const size_t dot = path.rfind(".svg");
      path = path.substr(0, dot) + "-" + kind + ".svg";
    }
    compare::write_output(path,
                          curves_svg(what_if, fmt::format("{}, {} ranks", c.model.model.name, c.model.net.ranks)));
  }
}

}  // namespace

ordered_json upper_json(const paying_range& r, double unit) {
  if (!std::isinf(r.below)) return r.below * unit;
  return r.above > 0 ? ordered_json(nullptr) : ordered_json("always");
}

ordered_json lower_json(const paying_range& r, double unit) {
  return r.above > 0 ? ordered_json(r.above * unit) : ordered_json(nullptr);
}

ordered_json rounded_json(double x) {
  return std::abs(x) < 9e18 ? ordered_json(static_cast<int64_t>(std::llround(x))) : ordered_json(nullptr);
}

ordered_json case_json(const predict_case& c, const case_options& o) {
  const step_model& m = c.model;
  return {
      {"profile",
       {{"file", c.costs->where}, {"machine", c.costs->machine}, {"date", c.costs->date}, {"commit", c.costs->commit}}},
      {"model",
       {{"name", m.model.name},
        {"tensors", m.model.tensors.size()},
        {"elements", static_cast<uint64_t>(m.model.elements())},
        {"batch", m.model.batch > 0 ? ordered_json(m.model.batch) : ordered_json(nullptr)},
        {"forward_ns", rounded_json(m.model.forward_ns)},
        {"backward_ns", rounded_json(m.model.backward_ns)},
        {"rest_ns", rounded_json(m.model.rest_ns)},
        {"ready_known", m.model.ready_known}}},
      {"link",
       {{"text", o.link_text.empty() ? ordered_json(nullptr) : ordered_json(o.link_text)},
        {"source", c.link_source},
        {"bits_per_second", m.net.wire.bits_per_second},
        {"latency_ns", m.net.wire.latency_ns}}},
      {"ranks", m.net.ranks},
      {"ranks_per_host", m.net.ranks_per_host},
      {"hook", o.hook},
      {"bucket_mb", o.bucket_mb},
      {"bypass", o.bypass ? ordered_json(*o.bypass) : ordered_json(nullptr)},
      {"slowdown", m.how.slowdown},
      {"skew_ns", rounded_json(m.how.skew_ns)},
      {"hook_ns", rounded_json(m.how.hook_ns)}};
}

ordered_json outcome_json(const outcome& o) {
  return {{"step_ns", rounded_json(o.step_ns)},
          {"exposed_ns", rounded_json(o.exposed_ns)},
          {"encode_ns", rounded_json(o.encode_ns)},
          {"merge_ns", rounded_json(o.merge_ns)},
          {"link_ns", rounded_json(o.link_ns)},
          {"bytes", rounded_json(o.bytes)},
          {"no_overlap_ns", rounded_json(o.no_overlap_ns)},
          {"perfect_ns", rounded_json(o.perfect_ns)}};
}

candidate book_candidate(const std::string& path, predict_case& c) {
  candidate book;
  book.name = "book " + path;
  try {
    const dr::book lines = read_book(path);
    std::vector<std::string> names;
    for (const tensor_spec& t : c.model.model.tensors) names.push_back(t.name);
    for (std::string& line : idle_lines(lines, path, names)) c.notes.insert(std::move(line));
    for (const tensor_spec& t : c.model.model.tensors) {
      const std::string text = plan_in(lines, t.name);
      const auto known = std::ranges::find_if(book.works, [&](const auto& w) { return w->text() == text; });
      book.choice.push_back(text.empty() ? -1 : static_cast<int>(known - book.works.begin()));
      if (!text.empty() && known == book.works.end()) book.works.push_back(read_work(c, text));
    }
  } catch (const std::runtime_error& e) {
    throw compare::input_error(e.what());
  }
  return book;
}

std::string json_text(const ordered_json& document) {
  return document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

int run_predict(const predict_options& o) {
  if (!o.show.empty() && o.timeline.empty() && o.trace.empty())
    throw usage_error("--show requires --timeline or --trace");
  if (!o.every.empty()) return run_rounds(o);
  if (!o.curves.empty() && o.what_ifs.empty()) throw usage_error("--curves requires --what-if");
  compare::check_outputs(
      {{"--output", o.output}, {"--trace", o.trace}, {"--timeline", o.timeline}, {"--curves", o.curves}},
      {files_of(o.what), o.books});
  compare::load_plugins(o.what.plugins);
  predict_case c = read_case(o.what);
  const error_table errors(o.what, *c.costs, c.model.model.tensors.size());
  std::vector<judged> all;
  for (const bool half : {false, true}) all.push_back({.what = dense_candidate(half)});
  auto works = read_works(o.what, c);
  errors.check_candidates(works);
  const bool transforms = std::ranges::any_of(works, [](const auto& w) { return w->factor_rank() > 0; });
  for (const uint32_t rank : !o.powersgd.empty() ? o.powersgd : std::vector<uint32_t>(transforms ? 0 : 1, 4))
    all.push_back({.what = powersgd_candidate(rank)});
  for (auto& work : works) all.push_back({.what = uniform_candidate(std::move(work), c.model.model.tensors.size())});
  for (const std::string& path : o.books) all.push_back({.what = book_candidate(path, c)});
  ordered_json document{{"schema", prediction_schema}};
  document.update(case_json(c, o.what));
  auto rows = ordered_json::array();
  size_t plans = 0, known = 0;
  for (judged& j : all) {
    rows.push_back(row_of(j, c, errors, o.break_even));
    c.model.note(j.what, c.notes);
    plans += j.what.is_plan(), known += j.what.is_plan() && std::isfinite(j.step_ns);
  }
  document["rows"] = std::move(rows);
  document["verdict"] = verdict_text(all, all[0].step_ns, all[1].step_ns);
  document["training"] = evidence_json(all);
  std::vector<candidate> candidates;
  for (const judged& j : all) candidates.push_back(j.what);
  document["what_if"] = ordered_json::array();
  for (const std::string& kind : o.what_ifs) {
    document["what_if"].push_back(what_if(kind, c.model, candidates));
    if (kind == "ranks" && c.model.net.uses_measured())
      c.notes.insert(
          "--what-if ranks: the link is the profile's of the nearest number of ranks, in proportion to hops");
  }
  document["notes"] = c.notes;
  write_pictures(o, c, all, document);
  compare::write_output(o.output, o.form == "json"  ? json_text(document)
                                  : o.form == "csv" ? prediction_csv(document)
                                                    : prediction_table(document, table_width(o.output)));
  return plans > 0 && known == 0 ? 77 : 0;
}

}  // namespace dr::predict
