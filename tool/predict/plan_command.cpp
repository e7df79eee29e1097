#include "plan_command.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>

#include "plan_book.hpp"
#include "plan_choice.hpp"
#include "plan_errors.hpp"
#include "predict_command.hpp"
#include "predict_text.hpp"
#include "tool/read/inputs.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/show/output.hpp"
#include "training_evidence.hpp"

namespace dr::predict {
namespace {

using compare::input_error;
using compare::usage_error;
using nlohmann::ordered_json;

// Drops plans with unknown errors if others are known. If none is known, no book is written; as JSON, with a note, it is
// the fastest choice.
choice_problem problem_of(const plan_options& o, predict_case& c, const error_table& errors,
                          std::vector<std::shared_ptr<const plan_work>>& works) {
  choice_problem p;
  const std::vector<tensor_spec>& tensors = c.model.model.tensors;
  p.tensors = tensors.size(), p.options = works.size();
  for (const tensor_spec& t : tensors) p.sizes.push_back(t.elements);
  errors.check_candidates(works);
  std::vector<std::shared_ptr<const plan_work>> known, unknown;
  for (const auto& w : works) {
    const auto misses = [&](const tensor_spec& t) {
      return !travels_exactly(c.model, t, *w) && std::isnan(errors.of(w->text(), t.name, c.notes));
    };
    (std::ranges::any_of(tensors, misses) ? unknown : known).push_back(w);
  }
  const bool named = !o.what.plans.empty() || !o.what.presets.empty();
  if (o.error_budget && !unknown.empty() && (known.empty() || named))
    throw usage_error(
        fmt::format("--error-budget: the error of '{}' is not known{}; give --error 'PLAN: E', or --errors "
                    "rows.json of `compare --per-tensor --plan 'PLAN'`",
                    unknown.front()->text(), errors.has_rows() ? ": --errors has no row of it" : ""));
  if (known.empty()) {
    constexpr const char* sentence =
        "no error of these plans is known: by time alone the smallest plan always wins, and it may not train";
    constexpr const char* remedy = "give --errors rows.json of `compare --per-tensor`, or calibrate again";
    if (o.form == "text") throw usage_error(fmt::format("plan: {}; {}", sentence, remedy));
    c.notes.insert(fmt::format("{}; so this is the fastest choice, not a recommended one: {}", sentence, remedy));
    return p;
  }
  for (const auto& w : unknown) c.notes.insert(fmt::format("'{}' is not a candidate: its error is unknown", w->text()));
  works = known;
  p.options = works.size();
  for (const tensor_spec& t : tensors) {
    std::vector<double>& row = p.error.emplace_back();
    for (const auto& w : works)
      row.push_back(travels_exactly(c.model, t, *w) ? 0 : errors.of(w->text(), t.name, c.notes));
  }
  p.budget = o.error_budget;
  return p;
}

// A line per tensor with another choice than the commonest, and `*` for the others.
book book_of(const choice_result& r, const predict_case& c,
             const std::vector<std::shared_ptr<const plan_work>>& works) {
  std::map<int, size_t> counts;
  for (const int o : r.choice) ++counts[o];
  int common = -1;
  for (const auto& [o, n] : counts)
    if (n > counts[common]) common = o;
  book made;
  const auto add = [&](const std::string& pattern, int o, bool is_name) {
    if (o < 0) return made.add(pattern, nullptr, is_name);
    const plan method(works[static_cast<size_t>(o)]->text());
    made.add(pattern, &method, is_name);
  };
  for (size_t i = 0; i < r.choice.size(); ++i)
    if (r.choice[i] != common) add(c.model.model.tensors[i].name, r.choice[i], true);
  add("*", common, false);
  return made;
}

// Lines for the head of a book.
std::string as_comment(const std::string& words) {
  std::string text = "# ";
  for (const char c : words) text += c == '\n' ? "\n# " : std::string{c};
  return text + '\n';
}

void check_names(const predict_case& c) {
  if (c.model.model.tensors.size() == 1 && c.model.model.tensors[0].name.empty()) return;  // `*` is its line
  std::map<std::string, size_t> seen;
  for (const tensor_spec& t : c.model.model.tensors) {
    try {
      book().add(t.name, nullptr, true);
    } catch (const error& e) {
      throw input_error(
          fmt::format("{}: tensor '{}': a plan book cannot name it: {}", c.model.model.name, t.name, e.detail.message));
    }
    if (++seen[t.name] > 1)
      throw input_error(fmt::format("{}: two tensors have the name '{}'; a plan book cannot distinguish them",
                                    c.model.model.name, t.name));
  }
}

// The book compared with the faster dense ring. `takes`: "the book takes 3 ms".
std::string verdict_line(const std::string& takes, double book_ns, double f32_ns, double bf16_ns) {
  const double dense = std::min(f32_ns, bf16_ns), change = 100 * (book_ns / dense - 1);
  const char* const name = bf16_ns < f32_ns ? "dense bf16" : "dense f32";
  const std::string verdict = verdict_of(book_ns, dense);
  if (verdict == "pays") return fmt::format("It pays: {}, {:.0f} % less than {}.", takes, -change, name);
  if (verdict == "even") return fmt::format("None of these helps: {}, as long as {}, within 3 %.", takes, name);
  return fmt::format("None of these helps: {}, {:.0f} % more than {}.", takes, change, name);
}

// What becomes of the tensors under a choice.
struct coverage {
  size_t planned = 0;     // tensors with a plan
  size_t compressed = 0;  // those of them that do not travel exactly
  size_t tensors;

  coverage(const predict_case& c, const std::vector<int>& choice,
           const std::vector<std::shared_ptr<const plan_work>>& works)
      : tensors(choice.size()) {
    for (size_t i = 0; i < tensors; ++i) {
      if (choice[i] < 0) continue;
      ++planned;
      compressed += !travels_exactly(c.model, c.model.model.tensors[i], *works[static_cast<size_t>(choice[i])]);
    }
  }

  // "4 of 7 tensors compressed; 3 have a plan that sends them exactly (…)"
  std::string text() const {
    std::string words = fmt::format("{} of {} compressed", compressed, count_text(tensors, "tensor"));
    if (planned > compressed)
      words +=
          fmt::format("; {} {} a plan that sends {} exactly (small, or vectors beside factors)", planned - compressed,
                      planned - compressed == 1 ? "has" : "have", planned - compressed == 1 ? "it" : "them");
    return words;
  }
};

}  // namespace

int run_plan(const plan_options& o) {
  compare::check_outputs({{"--output", o.output}}, {files_of(o.what)});
  compare::load_plugins(o.what.plugins);
  predict_case c = read_case(o.what);
  check_names(c);
  std::vector<std::shared_ptr<const plan_work>> works = read_works(o.what, c);
  if (works.empty()) throw usage_error("no plans to choose from: the profile has none; give --plan");
  const error_table errors(o.what, *c.costs, c.model.model.tensors.size());
  choice_problem p = problem_of(o, c, errors, works);
  candidate tried;
  tried.works = works;
  p.step_ns = [&](const std::vector<int>& choice) {
    tried.choice = choice;
    try {
      return c.model.step(tried).step_ns;
    } catch (const unsupported_model&) {
      return std::numeric_limits<double>::infinity();
    }
  };
  const choice_result r = choose(p);
  if (!std::isfinite(r.step_ns)) throw input_error("unsupported: no choice of plans, not even dense, can be modelled");
  tried.choice = r.choice;
  c.model.note(tried, c.notes);
  const double dense = c.model.dense_ns(false), half = c.model.dense_ns(true);
  const bool counted = !p.error.empty();  // whether errors count
  const double judged = counted && !o.error_budget ? whole_ns(r.step_ns, r.error) : r.step_ns;
  std::string takes = fmt::format("the book takes {} a step", time_text(r.step_ns));
  if (counted && !o.error_budget) takes += fmt::format(" and {} for a whole gradient", time_text(judged));
  const std::string uniform = r.best_uniform < 0 ? "dense" : works[static_cast<size_t>(r.best_uniform)]->text();
  const coverage covered(c, r.choice, works);
  const std::string verdict = verdict_line(takes, judged, dense, half);
  if (o.form == "text" &&
      (covered.compressed == 0 || std::string_view(verdict_of(judged, std::min(dense, half))) == "slower"))
    throw std::runtime_error(fmt::format(
        "plan: no book is written. {}{}",
        verdict_line("the best choice" + takes.substr(std::string_view("the book").size()), judged, dense, half),
        o.error_budget && covered.planned == 0
            ? fmt::format(" No plan is both within --error-budget {:g} and shorter", *o.error_budget)
            : ""));
  std::string words = fmt::format(
      "{}, {} ranks, {} each way: {}\n"
      "predicted step: {}; the best uniform plan, {}: {}{}; dense f32: {}; dense bf16: {}\n{}\n{} of {} choices{}",
      c.model.model.name, c.model.net.ranks, rate_text(c.model.net.wire.bits_per_second), covered.text(),
      time_text(r.step_ns), uniform, time_text(r.uniform_step_ns),
      counted ? fmt::format(" at an error of {:.2g}", r.uniform_error) : "", time_text(dense), time_text(half), verdict,
      r.exhaustive ? "best of all: one" : "greedy: best", r.evaluations,
      r.stopped ? "; more were not tried, the largest tensors were first" : "");
  const auto shown = [&](size_t i) {
    const std::string& name = c.model.model.tensors[i].name;
    return name.empty() ? "*" : name;
  };
  auto tensor_errors = ordered_json::array();
  if (counted) {
    size_t worst = 0;
    std::vector<double> of_tensor;
    for (size_t i = 0; i < r.choice.size(); ++i) {
      of_tensor.push_back(r.choice[i] < 0 ? 0 : p.error[i][static_cast<size_t>(r.choice[i])]);
      if (of_tensor[i] > of_tensor[worst]) worst = i;
      tensor_errors.push_back({{"tensor", c.model.model.tensors[i].name}, {"error", of_tensor[i]}});
    }
    words += fmt::format("\nrelative error: {:.4g} by elements; {:.4g}, of '{}', is the largest{}", r.error,
                         of_tensor[worst], shown(worst),
                         o.error_budget ? fmt::format(", of at most {:g}", *o.error_budget) : "");
    for (size_t i = 0; i < of_tensor.size() && covered.planned > 0; ++i)
      words += fmt::format("\n  {:.4g}  {}", of_tensor[i], shown(i));
  }
  if (!o.error_budget)
    words +=
        "\nno error budget: this book minimises the time to transfer a whole gradient; only training shows its loss";
  std::set<int> used(r.choice.begin(), r.choice.end());
  used.erase(-1);
  for (const int choice : used) {
    const plan_work& w = *works[static_cast<size_t>(choice)];
    if (const std::string shown = training_evidence(*w.method()); !shown.empty())
      words += fmt::format("\nin trainings, {}: {}", w.text(), shown);
  }
  for (const std::string& note : c.notes) words += "\nnote: " + note;
  const book chosen = book_of(r, c, works);
  if (o.form == "text") {
    compare::write_output(o.output, as_comment(words) + chosen.text());
    return 0;
  }
  ordered_json document{{"schema", "deepreduce-plan-1"}};
  document.update(case_json(c, o.what));
  document["step_ns"] = std::llround(r.step_ns);
  document["uniform"] = {{"plan", uniform},
                         {"step_ns", std::llround(r.uniform_step_ns)},
                         {"error", counted ? ordered_json(r.uniform_error) : ordered_json(nullptr)}};
  document["dense_step_ns"] = std::llround(dense);
  document["bf16_step_ns"] = std::llround(half);
  document["whole_ns"] = counted ? rounded_json(whole_ns(r.step_ns, r.error)) : ordered_json(nullptr);
  document["verdict"] = verdict_of(judged, std::min(dense, half));
  document["exhaustive"] = r.exhaustive;
  document["evaluations"] = r.evaluations;
  document["stopped"] = r.stopped;
  document["error"] = counted ? ordered_json(r.error) : ordered_json(nullptr);
  document["errors"] = std::move(tensor_errors);
  document["book"] = ordered_json::array();
  for (size_t i = 0; i < chosen.size(); ++i) {
    const dr_book_line line = chosen[i];
    document["book"].push_back({{"pattern", line.pattern}, {"plan", line.plan ? dr_plan_text(line.plan) : "dense"}});
  }
  document["notes"] = c.notes;
  compare::write_output(o.output, json_text(document));
  return 0;
}

}  // namespace dr::predict
