#include "plan_command.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "bench/compare/compare_command.hpp"
#include "bench/compare/inputs.hpp"
#include "bench/compare/output.hpp"
#include "bench/compare/plan_list.hpp"
#include "plan_book.hpp"
#include "plan_choice.hpp"
#include "predict_command.hpp"
#include "predict_text.hpp"

namespace dr::predict {
namespace {

using compare::input_error;
using compare::usage_error;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

// Relative errors of plans: of a tensor where rows have them, else of any.
class error_table {
 public:
  void read(const plan_options& o) {
    for (const std::string& text : o.errors) {
      const size_t colon = text.rfind(':');
      char* end = nullptr;
      const std::string number = colon == text.npos ? "" : text.substr(colon + 1);
      const double e = std::strtod(number.c_str(), &end);
      if (number.empty() || *end != 0 || !std::isfinite(e) || e < 0)
        throw usage_error("--error '" + text + "': not PLAN: E, with E of 0 or more");
      given_[canonical(text, text.substr(0, colon))] = e;
    }
    if (!o.error_rows.empty()) read_rows(o.error_rows);
  }

  // An error that was given for what is not among the plans.
  void check_candidates(const std::vector<std::shared_ptr<const plan_work>>& works) const {
    for (const auto& [key, e] : given_)
      // clang 14 and 15 capture no structured binding, but by a name of its own.
      if (std::ranges::none_of(works, [&wanted = key](const auto& w) {
            const std::string own = without_stages(w->text(), {"exchange", "bucket"});
            return own == wanted || without_stages(own, {"feedback"}) == wanted;
          }))
        throw usage_error(fmt::format("--error '{}: {:g}': the plan is no candidate; give it as --plan, too", key, e));
  }

  // Without one of a plan with feedback that of the plan without: it is the first step's.
  double of(const std::string& plan, const std::string& tensor, note_list& notes) const {
    const std::string key = without_stages(plan, {"exchange", "bucket"}), bare = without_stages(key, {"feedback"});
    const double e = known_of(key, tensor);
    if (!std::isnan(e) || bare == key) return e;
    const double first = known_of(bare, tensor);
    if (!std::isnan(first))
      notes.insert(fmt::format("the error of '{}' is that of '{}', which has no feedback", key, bare));
    return first;
  }
  double energy(const std::string& tensor) const {
    const auto known = energies_.find(tensor);
    return known == energies_.end() ? unknown : known->second;
  }

 private:
  double known_of(const std::string& key, const std::string& tensor) const {
    if (const auto known = of_tensor_.find(key + '\n' + tensor); known != of_tensor_.end()) return known->second;
    if (const auto known = given_.find(key); known != given_.end()) return known->second;
    const auto known = sums_.find(key);
    return known == sums_.end() ? unknown : known->second.error();
  }

  static std::string canonical(const std::string& option, const std::string& text) try {
    return without_stages(std::string(plan(text).text()), {"exchange", "bucket"});
  } catch (const error& e) {
    throw usage_error(fmt::format("--error '{}': {}", option, e.detail.message));
  }

  void read_rows(const std::string& path) try {
    const json saved = read_json(path, "rows of compare");
    if (!saved.contains("rows") || !saved.at("rows").is_array())
      throw input_error(path + ": no rows; `compare --output` writes them");
    for (const json& row : saved.at("rows")) {
      if (!row.is_object() || text_at(row, "plan") == "memcpy" || !row.contains("total_error") ||
          !row.at("total_error").is_number())
        continue;
      const std::string key = without_stages(text_at(row, "plan"), {"exchange", "bucket"}),
                        tensor = text_at(row, "tensor");
      const double e = number_at(row, "total_error", path),
                   energy = number_at(row, "gradient_energy", path, 0, unknown);
      of_tensor_[key + '\n' + tensor] = e;
      if (!std::isnan(energy)) energies_[tensor] = energy;
      sums_[key].add(e, energy, number_at(row, "d", path, 0, number_at(row, "elements", path, 0, 1)));
    }
  } catch (const std::runtime_error& e) {
    throw input_error(e.what());
  }

  // Of a plan's rows: by energies, if all are known and not all 0, else by elements.
  struct error_sum {
    double by_energy = 0, energies = 0, by_elements = 0, elements = 0;
    void add(double e, double energy, double n) {
      by_energy += e * e * energy, energies += energy;
      by_elements += e * e * n, elements += n;
    }
    double error() const {
      if (energies > 0) return std::sqrt(by_energy / energies);
      return elements > 0 ? std::sqrt(by_elements / elements) : unknown;
    }
  };

  std::map<std::string, double> given_, of_tensor_, energies_;
  std::map<std::string, error_sum> sums_;
};

// Leaves the profile's plans out whose errors are not known, if others' are.
choice_problem problem_of(const plan_options& o, predict_case& c,
                          std::vector<std::shared_ptr<const plan_work>>& works) {
  choice_problem p;
  const std::vector<tensor_spec>& tensors = c.model.model.tensors;
  p.tensors = tensors.size(), p.options = works.size();
  for (const tensor_spec& t : tensors) p.sizes.push_back(t.elements);
  if (!o.error_budget) {
    if (!o.errors.empty() || !o.error_rows.empty())
      throw usage_error("--error and --errors say what --error-budget is spent on; give that, too");
    return p;
  }
  error_table errors;
  errors.read(o);
  errors.check_candidates(works);
  // (Small tensors travel exactly, whatever their plan.)
  const auto passes = [&](const tensor_spec& t) {
    return c.model.hook == hook_kind::ddp && t.elements < c.model.how.bypass;
  };
  std::vector<double> weights;
  double sum = 0;  // NaN: an energy is not known
  for (const tensor_spec& t : tensors) {
    const double energy = t.energy > 0 ? t.energy : errors.energy(t.name);
    sum += weights.emplace_back(std::isnan(energy) && passes(t) ? 0 : energy);
  }
  if (!(sum > 0)) {
    sum = c.model.model.elements();
    weights = p.sizes;
    c.notes.insert("the error weighs tensors by their elements: not all energies are known");
  }
  std::vector<std::shared_ptr<const plan_work>> known, unknown;
  for (const auto& w : works) {
    const auto misses = [&](const tensor_spec& t) { return std::isnan(errors.of(w->text(), t.name, c.notes)); };
    (std::ranges::any_of(tensors, misses) ? unknown : known).push_back(w);
  }
  if (!unknown.empty() && (known.empty() || !o.what.plans.empty() || !o.what.presets.empty()))
    throw usage_error(
        fmt::format("--error-budget: the error of '{}' is not known{}; give --error 'PLAN: E', or --errors "
                    "rows.json of `compare --per-tensor --plan 'PLAN'`",
                    unknown.front()->text(), o.error_rows.empty() ? "" : ": --errors has no row of it"));
  for (const auto& w : unknown) c.notes.insert(fmt::format("'{}' is no candidate: its error is not known", w->text()));
  works = known;
  p.options = works.size();
  for (const tensor_spec& t : tensors) {
    std::vector<double>& row = p.error.emplace_back();
    for (const auto& w : works) {
      const double e = errors.of(w->text(), t.name, c.notes);
      row.push_back(passes(t) ? 0 : e * e * weights[p.error.size() - 1] / sum);
    }
  }
  p.budget = *o.error_budget * *o.error_budget;
  return p;
}

// A line for each tensor that has not the most common choice, and `*` for the others.
plan_book book_of(const choice_result& r, const predict_case& c,
                  const std::vector<std::shared_ptr<const plan_work>>& works) {
  std::map<int, size_t> counts;
  for (const int o : r.choice) ++counts[o];
  int common = -1;
  for (const auto& [o, n] : counts)
    if (n > counts[common]) common = o;
  const auto text = [&](int o) { return o < 0 ? std::string() : works[static_cast<size_t>(o)]->text(); };
  plan_book book;
  for (size_t i = 0; i < r.choice.size(); ++i)
    if (r.choice[i] != common) book.push_back({pattern_of(c.model.model.tensors[i].name), text(r.choice[i])});
  book.push_back({"*", text(common)});
  return book;
}

void check_names(const predict_case& c) {
  std::map<std::string, size_t> seen;
  for (const tensor_spec& t : c.model.model.tensors) {
    constexpr std::string_view blanks = " \t";
    if (t.name.empty() || t.name.find_first_of("\n\r#") != std::string::npos ||
        blanks.find(t.name.front()) != blanks.npos || blanks.find(t.name.back()) != blanks.npos)
      throw input_error(fmt::format("{}: tensor '{}': a plan book cannot name it", c.model.model.name, t.name));
    if (++seen[t.name] > 1)
      throw input_error(fmt::format("{}: two tensors are called '{}'; a plan book cannot tell them apart",
                                    c.model.model.name, t.name));
  }
}

// The book against the faster dense ring.
std::string verdict_line(double book_ns, double f32_ns, double bf16_ns) {
  const double dense = std::min(f32_ns, bf16_ns), change = 100 * (book_ns / dense - 1);
  const char* const name = bf16_ns < f32_ns ? "dense bf16" : "dense f32";
  const std::string verdict = verdict_of(book_ns, dense);
  if (verdict == "pays") return fmt::format("It pays: {:.0f} % less than {}.", -change, name);
  if (verdict == "even") return fmt::format("None of these helps: the book takes as long as {}, within 3 %.", name);
  return fmt::format("None of these helps: the book takes {:.0f} % more than {}.", change, name);
}

}  // namespace

int run_plan(const plan_options& o) {
  compare::load_plugins(o.what.plugins);
  predict_case c = read_case(o.what);
  check_names(c);
  std::vector<std::shared_ptr<const plan_work>> works = read_works(o.what, c);
  if (works.empty()) throw usage_error("no plans to choose from: the profile has none; give --plan");
  choice_problem p = problem_of(o, c, works);
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
  const std::string uniform = r.best_uniform < 0 ? "dense" : works[static_cast<size_t>(r.best_uniform)]->text();
  size_t planned = 0;
  for (const int each : r.choice) planned += each >= 0;
  std::string words = fmt::format(
      "{}, {} ranks, {} each way: {} of {} tensors have a plan\n"
      "predicted step: {}; the best uniform plan, {}: {}; dense f32: {}; dense bf16: {}\n{}\n{} of {} choices{}",
      c.model.model.name, c.model.net.ranks, rate_text(c.model.net.wire.bits_per_second), planned, r.choice.size(),
      time_text(r.step_ns), uniform, time_text(r.uniform_step_ns), time_text(dense), time_text(half),
      verdict_line(r.step_ns, dense, half), r.exhaustive ? "best of all: one" : "greedy: best", r.evaluations,
      r.stopped ? "; more were not tried, the largest tensors were first" : "");
  if (o.error_budget)
    words += fmt::format("\nrelative error: {:.4g}, of at most {:g}", std::sqrt(r.error), *o.error_budget);
  for (const std::string& note : c.notes) words += "\nnote: " + note;
  const plan_book book = book_of(r, c, works);
  if (o.form == "text") {
    compare::write_output(o.output, book_text(book, words));
    return 0;
  }
  ordered_json document{{"schema", "deepreduce-plan-1"}};
  document.update(case_json(c, o.what));
  document["step_ns"] = std::llround(r.step_ns);
  document["uniform"] = {{"plan", uniform}, {"step_ns", std::llround(r.uniform_step_ns)}};
  document["dense_step_ns"] = std::llround(dense);
  document["bf16_step_ns"] = std::llround(half);
  document["verdict"] = verdict_of(r.step_ns, std::min(dense, half));
  document["exhaustive"] = r.exhaustive;
  document["evaluations"] = r.evaluations;
  document["stopped"] = r.stopped;
  document["error"] = o.error_budget ? ordered_json(std::sqrt(r.error)) : ordered_json(nullptr);
  document["book"] = ordered_json::array();
  for (const book_line& line : book)
    document["book"].push_back({{"pattern", line.pattern}, {"plan", line.plan.empty() ? "dense" : line.plan}});
  document["notes"] = c.notes;
  compare::write_output(o.output, json_text(document));
  return 0;
}

}  // namespace dr::predict
