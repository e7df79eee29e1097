#include "rows_table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "shown_columns.hpp"
#include "spread_notes.hpp"
#include "tool/read/plan_text.hpp"
#include "tool/show/console.hpp"

namespace dr::compare {
namespace {

using enum text_table::align;

// Distinct names of inputs: the name of the file, or its path if two folders have a file of that name.
class input_names {
 public:
  // column: "input", or "from" for the saved files of runs
  explicit input_names(std::span<const json_row> rows, const char* column = "input") : column_(column) {
    for (const json_row& row : rows) inputs_[file_name(row)].insert(text_of(row, column));
  }
  std::string operator()(const json_row& row) const {
    const std::string name = file_name(row);
    return without_controls(inputs_.at(name).size() == 1 ? name : text_of(row, column_));
  }
  bool differ() const { return inputs_.size() > 1 || (inputs_.size() == 1 && inputs_.begin()->second.size() > 1); }

 private:
  std::string file_name(const json_row& row) const {
    const std::string input = text_of(row, column_);
    return input.starts_with("synth:") ? input : std::filesystem::path(input).filename().string();
  }
  const char* column_;
  std::map<std::string, std::set<std::string>> inputs_;
};

// How a table names the subjects of its rows.
struct subject_names {
  input_names inputs, runs;
  bool steps;

  explicit subject_names(std::span<const json_row> rows)
      : inputs(rows), runs(rows, "from"), steps(std::ranges::any_of(rows, [&](const json_row& row) {
          return row.value("step", json_row()) != rows.front().value("step", json_row());
        })) {}
  bool differ() const { return inputs.differ() || runs.differ() || steps; }
};

std::vector<std::string> stages_of(const json_row& row) {
  if (is_book(row)) return {shown_text(row, "plan")};
  std::istringstream words(shown_text(row, "plan"));
  return {std::istream_iterator<std::string>(words), {}};
}

// Stages that all of several plans share, in order; memcpy does not count.
std::vector<std::string> shared_stages(std::span<const json_row> rows) {
  std::optional<std::vector<std::string>> shared;
  bool several = false;
  for (const json_row& row : rows) {
    if (is_memcpy(row)) continue;
    const std::vector<std::string> own = stages_of(row);
    if (!shared) shared = own;
    several |= own != *shared;
    std::erase_if(*shared, [&](const std::string& stage) { return std::ranges::find(own, stage) == own.end(); });
  }
  return several ? *shared : std::vector<std::string>();
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::vector<std::string> without(std::vector<std::string> stages, const std::vector<std::string>& others) {
  std::erase_if(stages, [&](const std::string& stage) { return std::ranges::find(others, stage) != others.end(); });
  return stages;
}

// What selects values, what becomes of the others, and how ranks exchange: a heading has it where several plans share it.
std::vector<std::string> selection_of(const json_row& row) {
  if (!has_plan(row)) return {};
  const plan_reading plan = read_plan(shown_text(row, "plan"));
  std::vector<std::string> stages = stages_of(row);
  std::erase_if(stages,
                [&](const std::string& s) { return s != plan.sparsify && s != plan.feedback && s != plan.exchange; });
  return stages;
}

bool has_sparsifier(const std::vector<std::string>& stages, const json_row& row) {
  return has_plan(row) && std::ranges::find(stages, read_plan(shown_text(row, "plan")).sparsify) != stages.end();
}

// A preset's name, or the stages that are not `shared`.
std::string plan_of(const json_row& row, const std::vector<std::string>& shared, bool wide) {
  if (is_memcpy(row)) return "memcpy (dense)";
  const std::vector<std::string> own = without(stages_of(row), shared);
  std::string text = shown_text(row, "preset");
  if (text.empty()) text = own.empty() ? shown_text(row, "plan") : joined(own);
  if (const std::string choice = shown_text(row, "choice"); wide && !choice.empty()) text += " → " + choice;
  const std::string fallback = shown_text(row, "fallback");
  return fallback.empty() || fallback == "none" ? text : text + " (fell back: " + fallback + ")";
}

template <class F>
bool differ(std::span<const json_row> rows, F&& f) {
  return std::ranges::any_of(rows, [&](const json_row& row) { return f(row) != f(rows.front()); });
}

std::string subject_text(const json_row& row, const subject_names& names, bool alone) {
  const std::string tensor = shown_text(row, "tensor"), kind = shown_text(row, "kind");
  std::string text = alone || names.inputs.differ() || tensor.empty() ? names.inputs(row) : "";
  if (!tensor.empty() && !(alone && tensor == "*")) text += (text.empty() ? "" : "  ") + tensor;
  if (alone && tensor == "*") text += ", its tensors joined (--batch: one by one, as `encode`)";
  if (!kind.empty()) text += ", " + kind;
  if (const std::string d = shown_count(row, "d"); !d.empty()) text += ", d = " + d;
  if (const auto d = number_in(row, "d"); alone && d) text += ", " + size_text(4 * *d) + " as f32";
  if (const std::string type = shown_text(row, "dtype"); alone && !type.empty() && type != "f32") text += ", " + type;
  if (names.steps || (alone && number_in(row, "step").value_or(1) > 1)) text += ", step " + shown_count(row, "step");
  if (names.runs.differ()) text += ", of " + (run_of(row).empty() ? "this run" : names.runs(row));
  return text;
}

std::string lines_of(const std::string& indent, const std::string& text, size_t width) {
  std::string all;
  for (const std::string& line : wrapped(text, width - std::min(indent.size(), width / 2))) all += indent + line + '\n';
  return all;
}

// The share of the energy that plans of one sparsifier send in a step; "": unknown, or all.
std::string energy_text(std::span<const json_row* const> rows) {
  std::optional<double> least;
  for (const json_row* row : rows)
    if (const auto share = number_in(*row, "energy_recall"); share && !is_memcpy(*row))
      least = std::min(least.value_or(1), *share);
  return least && *least < 0.9995 ? ": sends " + share_text(*least) + " of |g|² a step" : std::string();
}

// The rows of one subject, one after another, whose plans select alike.
struct plan_group {
  size_t begin, end;
  std::vector<std::string> selection;  // without what all plans share
  bool headed() const { return end - begin > 1 && !selection.empty(); }
};

class table {
 public:
  table(std::span<const json_row> all, const table_request& request, bool totals)
      : request_(request), totals_(totals), names_(all) {
    const bool tensors = !totals && differ(all, [](const json_row& row) { return text_of(row, "tensor"); });
    subjects_ = names_.differ() || tensors;
    for (const json_row& row : all)
      // The total has the copy of all layers.
      if (!is_memcpy(row) || (request.wide && (!subjects_ || totals))) rows_.push_back(&row);
    plans_ = std::ranges::any_of(rows_, [&](const json_row* row) {
      return row->value("plan", json_row()) != rows_.front()->value("plan", json_row());
    });
    shared_ = shared_stages(all);
  }

  bool has_subjects() const { return subjects_; }

  std::string text() {
    if (rows_.empty()) return "no rows\n";
    if (request_.style == table_style::markdown) return markdown();
    std::string text;
    const bool one_plan = !plans_ && subjects_;
    if (!subjects_) text += lines_of("", subject_text(*rows_.front(), names_, true), request_.width);
    if (one_plan) text += lines_of("", shown_text(*rows_.front(), "plan"), request_.width);
    if (!one_plan && !shared_.empty()) {
      const bool sparsifies =
          std::ranges::any_of(rows_, [&](const json_row* row) { return has_sparsifier(shared_, *row); });
      text += lines_of("", "all plans: " + joined(shared_) + (sparsifies && !subjects_ ? energy_text(rows_) : ""),
                       request_.width);
    }
    const std::vector<std::vector<const json_row*>> blocks = blocks_of();
    for (const auto& block : blocks) ties_.merge(fastest_of(block));
    std::vector<shown_column> columns = request_.wide ? wide_columns() : short_columns(ties_);
    if (totals_) columns.push_back(tensors_column());
    text_table t = filled(columns, one_plan);
    // The size follows from the ratio; then what stands on the right.
    while (!request_.wide && columns.size() > 1 &&
           (columns.front().heading == "size" ? t.natural(indent()) > request_.width
                                              : t.narrowest(indent()) > request_.width)) {
      columns.erase(columns.front().heading == "size" ? columns.begin() : columns.end() - 1);
      t = filled(columns, one_plan);
    }
    return text + t.text(indent(), request_.width) + notes();
  }

 private:
  const std::string& indent() const {
    static const std::string headed = "  ", plain;
    return subjects_ && !plans_ ? plain : headed;
  }

  static shown_column tensors_column() {
    return {"of", right, [](const json_row& row) { return shown_count(row, "tensors"); }};
  }

  std::string subject(const json_row& row) const { return subject_text(row, names_, false); }

  // Rows of one subject, one after another.
  std::vector<std::vector<const json_row*>> blocks_of() const {
    std::vector<std::vector<const json_row*>> blocks;
    std::string before;
    for (const json_row* row : rows_) {
      const std::string name = subject(*row);
      if (blocks.empty() || name != before) blocks.emplace_back();
      blocks.back().push_back(row);
      before = name;
    }
    return blocks;
  }

  std::vector<plan_group> groups_of(size_t begin, size_t end) const {
    std::vector<plan_group> groups;
    for (size_t i = begin; i < end; ++i) {
      const std::vector<std::string> selection =
          is_memcpy(*rows_[i]) ? std::vector<std::string>() : without(selection_of(*rows_[i]), shared_);
      if (groups.empty() || request_.sorted || selection != groups.back().selection)
        groups.push_back({i, i, selection});
      groups.back().end = i + 1;
    }
    return groups;
  }

  text_table filled(const std::vector<shown_column>& columns, bool one_plan) {
    text_table t;
    std::vector<std::string> leads;
    size_t at = 0;
    for (const auto& block : blocks_of()) {
      if (one_plan) {
        leads.push_back(subject(*block.front()));
        leads.resize(at += block.size(), leads.back());
        continue;
      }
      if (subjects_) t.before(at, lines_of("", subject(*block.front()), request_.width));
      for (const plan_group& g : groups_of(at, at + block.size())) {
        std::vector<std::string> left_out = shared_;
        if (g.headed()) {
          const std::span rows = std::span(rows_).subspan(g.begin, g.end - g.begin);
          const bool sparsifies = has_sparsifier(g.selection, *rows_[g.begin]);
          t.before(g.begin,
                   lines_of(indent(), joined(g.selection) + (sparsifies ? energy_text(rows) : ""), request_.width));
          left_out.insert(left_out.end(), g.selection.begin(), g.selection.end());
        }
        for (size_t i = g.begin; i < g.end; ++i)
          leads.push_back((g.headed() ? "  " : "") + plan_of(*rows_[i], left_out, request_.wide));
      }
      at += block.size();
    }
    for (size_t i = 0; i < rows_.size(); ++i)
      if (rows_[i] == request_.winner) t.bold(i);
    t.column(one_plan ? "tensor" : "plan", left, std::move(leads));
    add(t, columns);
    return t;
  }

  void add(text_table& t, const std::vector<shown_column>& columns) const {
    for (const shown_column& c : columns) {
      std::vector<std::string> cells;
      for (const json_row* row : rows_) cells.push_back(c.cell(*row));
      t.column(c.heading, c.side, std::move(cells));
    }
  }

  std::string markdown() {
    const bool one_plan = !plans_ && subjects_;
    std::string text;
    if (one_plan)
      text = shown_text(*rows_.front(), "plan") + "\n\n";
    else if (!shared_.empty())
      text = "all plans: " + joined(shared_) + "\n\n";
    std::vector<shown_column> columns;
    if (!one_plan)
      columns.push_back({"plan", left, [&](const json_row& row) { return plan_of(row, shared_, request_.wide); }});
    if (subjects_) columns.push_back({"tensor", left, [&](const json_row& row) { return subject(row); }});
    for (const auto& block : blocks_of()) ties_.merge(fastest_of(block));
    for (shown_column& c : request_.wide ? wide_columns() : short_columns(ties_)) columns.push_back(std::move(c));
    if (totals_) columns.push_back(tensors_column());
    text_table t;
    add(t, columns);
    return text + t.markdown();
  }

  std::string notes() const {
    std::vector<named_times> times;
    for (const json_row* row : rows_) {
      const std::string name = !plans_ && subjects_ ? subject(*row)
                               : subjects_          ? plan_of(*row, shared_, false) + " (" + subject(*row) + ")"
                                                    : plan_of(*row, shared_, false);
      if (!is_memcpy(*row) && number_in(*row, "rounds") && text_of(*row, "timed") != "python")
        times.push_back(times_of(name, *row));
    }
    std::string text;
    for (const std::string& note : spread_notes(times, request_.wide)) text += lines_of("", note, request_.width);
    return text;
  }

  const table_request& request_;
  bool totals_, subjects_ = false, plans_ = false;
  subject_names names_;
  std::vector<const json_row*> rows_;
  std::vector<std::string> shared_;
  std::set<const json_row*> ties_;
};

// The dense steps that the steps are compared with: a line per input; in Markdown a paragraph.
std::string dense_steps(std::span<const json_row> totals, const char* what, table_style style) {
  const subject_names names(totals);
  std::vector<std::string> lines;
  for (const json_row& total : totals) {
    const auto dense = number_in(total, "dense_step_ns"), half = number_in(total, "bf16_step_ns");
    if (!dense || !half || !number_in(total, "step_ns")) continue;
    const std::string of = names.differ() ? subject_text(total, names, false) + ": " : "";
    const std::string line =
        fmt::format("{}{}: {}{}", of, what, duration(*dense), *half < *dense ? ", in 16 bits " + duration(*half) : "");
    if (std::ranges::find(lines, line) == lines.end()) lines.push_back(line);
  }
  const bool markdown = style == table_style::markdown;
  std::string text = markdown && !lines.empty() ? "\n" : "";
  for (const std::string& line : lines) text += markdown ? markdown_text(line) + "\n\n" : line + '\n';
  return text;
}

// A line per tensor that is the worst of some plan; in Markdown a paragraph after the table.
std::string worst_tensors(std::span<const json_row> totals, table_style style) {
  const bool markdown = style == table_style::markdown;
  struct worst {
    std::string name;
    double low, high;
    std::set<std::string> plans;
  };
  const input_names inputs(totals);
  std::vector<worst> list;
  for (const json_row& total : totals) {
    const auto error = number_in(total, "worst_error");
    const std::string name = (inputs.differ() ? inputs(total) + " " : "") + shown_text(total, "worst_tensor");
    if (!error) continue;
    const auto known = std::ranges::find(list, name, &worst::name);
    worst& w = known == list.end() ? list.emplace_back(worst{name, *error, *error, {}}) : *known;
    w.low = std::min(w.low, *error);
    w.high = std::max(w.high, *error);
    w.plans.insert(text_of(total, "plan"));
  }
  std::string text = markdown && !list.empty() ? "\n" : "";
  for (const worst& w : list) {
    const std::string low = fmt::format("{:.3g}", w.low), high = fmt::format("{:.3g}", w.high);
    text += fmt::format("worst tensor of {} plan{}: {}, error {}{}{}", w.plans.size(), w.plans.size() == 1 ? "" : "s",
                        markdown ? markdown_text(w.name) : w.name, low, high == low ? "" : " to " + high,
                        markdown ? "\n\n" : "\n");
  }
  return text;
}

}  // namespace

std::string rows_table(std::span<const json_row> rows, const table_request& request) {
  if (rows.empty()) return "no rows\n";
  table t(rows, request, false);
  return t.text() + (t.has_subjects() ? "" : dense_steps(rows, "dense step", request.style));
}

std::string totals_table(std::span<const json_row> totals, const table_request& request) {
  return table(totals, request, true).text() + dense_steps(totals, "dense steps of all tensors", request.style) +
         worst_tensors(totals, request.style);
}

std::string whole_plan(const json_row& row) { return is_memcpy(row) ? std::string() : plan_of(row, {}, false); }

}  // namespace dr::compare
