#include "plan_errors.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "deepreduce/deepreduce.hpp"
#include "study_model.hpp"
#include "tool/read/inputs.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/read/shown_name.hpp"

namespace dr::predict {
namespace {

using compare::input_error;
using compare::usage_error;
using nlohmann::json;

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

std::string canonical(const std::string& option, const std::string& text) try {
  return local_plan(std::string(plan(text).text()));
} catch (const error& e) {
  throw usage_error(fmt::format("--error '{}': {}", option, e.detail.message));
}

// Whether a hook joins the tensors of the plan before it selects (docs/PYTORCH.md).
bool selects_from_all(const plan_work& w) {
  const uint32_t flags = w.method()->info().flags;
  return flags & DR_PLAN_SPARSIFIES && !(flags & (DR_PLAN_TRANSFORMS | DR_PLAN_COEFFICIENTS));
}

}  // namespace

error_table::error_table(const case_options& o, const profile& costs, size_t tensors) : rows_(o.error_rows) {
  for (const std::string& text : o.errors) {
    const size_t colon = text.rfind(':');
    char* end = nullptr;
    const std::string number = colon == text.npos ? "" : text.substr(colon + 1);
    const double e = std::strtod(number.c_str(), &end);
    if (number.empty() || *end != 0 || !std::isfinite(e) || e < 0)
      throw usage_error("--error '" + text + "': not PLAN: E, with E of 0 or more");
    given_[canonical(text, text.substr(0, colon))] = e;
  }
  if (!rows_.empty()) read_rows(tensors);
  for (const plan_profile& known : costs.plans)
    if (known.error) of_profile_[local_plan(known.plan)] = *known.error;
}

void error_table::read_rows(size_t tensors) try {
  const json saved = read_json(rows_, "rows of compare");
  if (!saved.contains("rows") || !saved.at("rows").is_array())
    throw input_error(rows_ + ": no rows; `compare --output` writes them");
  for (const json& row : saved.at("rows")) {
    if (!row.is_object() || text_at(row, "plan") == "memcpy" || !row.contains("total_error") ||
        !row.at("total_error").is_number())
      continue;
    const std::string key = local_plan(text_at(row, "plan"));
    const std::string tensor = compare::name_shown_as(text_at(row, "tensor"));
    joined_ |= tensor == "*" && tensors > 1;
    const double e = number_at(row, "total_error", rows_);
    of_tensor_[key + '\n' + tensor] = e;
    const double n = number_at(row, "d", rows_, 0, number_at(row, "elements", rows_, 0, 1));
    sums_[key].squares += e * e * n, sums_[key].elements += n;
  }
} catch (const std::runtime_error& e) {
  throw input_error(e.what());
}

double error_table::mean_error::error() const { return elements > 0 ? std::sqrt(squares / elements) : unknown; }

void error_table::check_candidates(const std::vector<std::shared_ptr<const plan_work>>& works) const {
  for (const auto& [key, e] : given_)
    // clang 14 and 15 capture a structured binding only under a new name.
    if (std::ranges::none_of(works, [&requested = key](const auto& w) {
          return local_plan(w->text()) == requested || bare_plan(w->text()) == requested;
        }))
      throw usage_error(fmt::format("--error '{}: {:g}': the plan is not a candidate; add it with --plan", key, e));
}

double error_table::known_of(const std::string& key, const std::string& tensor, note_list& notes) const {
  if (const auto known = of_tensor_.find(key + '\n' + tensor); known != of_tensor_.end()) return known->second;
  if (const auto known = given_.find(key); known != given_.end()) return known->second;
  if (const auto known = sums_.find(key); known != sums_.end()) {
    notes.insert(
        rows_ + (joined_ ? " has rows of joined tensors, whose error is by energy, which one layer may have alone; "
                           "`compare --per-tensor --output FILE` has a row for each tensor"
                         : " has no row of some tensors; for these the mean of their plan's rows stands, by elements"));
    return known->second.error();
  }
  const auto known = of_profile_.find(key);
  if (known == of_profile_.end()) return unknown;
  notes.insert(given_.empty() && rows_.empty()
                   ? "errors are those of the profile's data, in one step; --errors rows.json of `compare "
                     "--per-tensor` has yours"
                   : fmt::format("the error of '{}' is that of the profile's data, in one step", key));
  return known->second;
}

double error_table::of(const std::string& plan, const std::string& tensor, note_list& notes) const {
  const std::string &key = local_plan(plan), &bare = bare_plan(plan);
  const double e = known_of(key, tensor, notes);
  if (!std::isnan(e) || bare == key) return e;
  const double first = known_of(bare, tensor, notes);
  if (!std::isnan(first))
    notes.insert(fmt::format("the error of '{}' is that of '{}', which has no feedback", key, bare));
  return first;
}

bool travels_exactly(const step_model& m, const tensor_spec& t, const plan_work& w) {
  return (m.hook == hook_kind::ddp && is_exact(w, t.elements, m.how.bypass)) ||
         (w.factor_rank() > 0 && factors_of(t, w.factor_rank()).second == 0);
}

choice_error error_of(const step_model& m, const candidate& c, const error_table& errors, note_list& notes) {
  choice_error sum{0, 0, nullptr};
  if (c.dense_factor == 1) return sum;
  if (!c.is_plan()) return {unknown, unknown, nullptr};
  double squares = 0;
  for (size_t i = 0; i < m.model.tensors.size(); ++i) {
    const tensor_spec& t = m.model.tensors[i];
    if (c.choice[i] < 0) continue;
    const plan_work& w = *c.works[static_cast<size_t>(c.choice[i])];
    if (travels_exactly(m, t, w)) continue;
    const double e = errors.of(w.text(), t.name, notes);
    if (std::isnan(e)) return {unknown, unknown, nullptr};
    if (m.hook == hook_kind::ddp && m.model.tensors.size() > 1 && selects_from_all(w))
      notes.insert(
          "errors are of tensors that select by themselves; DDPHook selects from all tensors of a unit together "
          "(flat), so small gradients get less and their errors are larger: train to see the loss");
    squares += e * e * t.elements;
    if (e > sum.largest) sum.largest = e, sum.worst = &t;
  }
  sum.mean = std::sqrt(squares / m.model.elements());
  return sum;
}

}  // namespace dr::predict
