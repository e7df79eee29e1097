#include "compare_command.hpp"

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "against.hpp"
#include "best.hpp"
#include "columns.hpp"
#include "compare.hpp"
#include "document.hpp"
#include "html_report.hpp"
#include "render.hpp"
#include "selection.hpp"
#include "shown_columns.hpp"
#include "tool/predict/plan_book.hpp"
#include "tool/predict/plan_work.hpp"
#include "tool/read/inputs.hpp"
#include "tool/read/number.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/read/plan_text.hpp"
#include "tool/read/presets.hpp"
#include "tool/read/shown_name.hpp"
#include "tool/show/output.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

constexpr int fine = 0, failed = 1;
constexpr size_t wide_width = 180;  // what all columns take

// Selection and conditions of the options, parsed before the measurement.
struct questions {
  selection shown;
  std::optional<best_question> best;
};

questions read_questions(const compare_options& o, const json_row& columns, uint64_t ranks) {
  try {
    questions q{selection(o.where, o.sort, o.pareto, columns), {}};
    if (!o.best.empty()) {
      std::vector<expression> by = parse_numbers("--best-by", o.best_by, columns);
      if (by.size() != 1) throw expression_error("--best-by '" + o.best_by + "': one value, not a list");
      q.best.emplace(best_question{parse_condition("--best", o.best, columns), std::move(by[0]), ranks});
    }
    return q;
  } catch (const expression_error& e) {
    throw usage_error(e.what());
  }
}

ordered_json link_json(const compare_options& o) {
  if (!o.over) return nullptr;
  return {{"text", o.link_text}, {"bits_per_second", o.over->bits_per_second}, {"latency_ns", o.over->latency_ns}};
}

ordered_json settings_of(const compare_options& o) {
  return {{"seed", o.seed},
          {"repeat", o.repeat ? ordered_json(o.repeat) : ordered_json(nullptr)},
          {"seconds", o.repeat ? ordered_json(nullptr) : ordered_json(o.seconds)},
          {"threads", o.threads},
          {"ranks", o.ranks},
          {"link", link_json(o)},
          {"segment_rows", o.segment_rows},
          {"steps", o.steps},
          {"batch", o.subjects.batch},
          {"selection",
           {{"tensors", o.subjects.globs},
            {"per_tensor", o.subjects.per_tensor},
            {"flat", o.subjects.flat},
            {"cast", o.subjects.cast ? ordered_json(name_of(*o.subjects.cast)) : ordered_json(nullptr)},
            {"each_step", o.each_step},
            {"plugins", o.plugins}}}};
}

class comparison {
 public:
  explicit comparison(const compare_options& o) : o_(o), document_(empty_document(settings_of(o))) {}

  int run() {
    const std::vector<std::string> plans = expand_plans(o_.plans, o_.limit);
    check_presets();
    if (!o_.book.empty()) try {
        book_ = predict::read_book(o_.book);
      } catch (const std::runtime_error& e) {
        throw input_error(e.what());
      }
    read_saved();
    std::vector<json_row> known = rows_;
    known.insert(known.begin(), column_types());
    known.push_back({{"tensors", 0}, {"worst_tensor", ""}, {"worst_error", 0}});  // of totals
    questions_ = read_questions(o_, columns_of(known), ranks_);
    if (!o_.against.empty()) old_ = read_document(o_.against);
    if (measures()) {
      try {
        measure(plans);
      } catch (const interrupted& e) {
        signal_ = e.signal;
      }
      console_.clear();
    }
    return finish();
  }

 private:
  // Without an INPUT, --from only shows saved rows.
  bool measures() const { return o_.from.empty() || !o_.subjects.inputs.empty(); }

  void check_presets() const {
    for (const std::string& name : o_.presets) {
      const std::vector<std::string> texts = preset_plans(name, "sparsify=none");
      if (texts.empty()) throw usage_error("--preset '" + name + "': no such name; `deepreduce presets` lists them");
      for (const std::string& text : texts) (void)parse_plan(text);
    }
  }

  void read_saved() {
    std::set<uint64_t> ranks;
    if (measures()) ranks.insert(o_.ranks);
    for (const std::string& path : o_.from) {
      const ordered_json saved = read_document(path);
      const ordered_json its = saved.value("ranks", ordered_json());
      ranks.insert(its.is_number_unsigned() ? its.get<uint64_t>() : 0);
      const bool joined = measures() || o_.from.size() > 1;
      for (json_row& row : joined ? rows_with_origin(saved) : rows_of(saved)) {
        if (joined && !row.contains("from")) row["from"] = path;
        rows_.push_back(std::move(row));
      }
      for (const char* list : {"subjects", "failures"})
        for (const ordered_json& entry : saved.at(list)) document_[list].push_back(entry);
      // One file alone: the document has the facts of its run.
      if (!measures() && o_.from.size() == 1)
        for (const auto& fact : saved.items())
          if (!fact.value().is_array() && fact.key() != "best" && fact.key() != "against")
            document_[fact.key()] = fact.value();
    }
    if (ranks.size() == 1) ranks_ = *ranks.begin();
    if (o_.resume.empty()) return;
    resumed_.emplace(o_.resume, empty_document(settings_of(o_)));
    for (const std::string& note : resumed_->notes()) console_.line("note: --resume " + note);
  }

  // The plans of the command line; by default a set that depends on `like`, one subject for all subjects of an input, since a
  // total requires the same plans for all.
  std::vector<std::string> plans_for(const std::vector<std::string>& plans, const subject& like) const {
    if (o_.plans.empty() && o_.presets.empty()) return default_plans(like);
    std::vector<std::string> texts = plans;
    for (const std::string& name : o_.presets)
      for (std::string& text : preset_plans(name, default_sparsifier(like))) texts.push_back(std::move(text));
    return texts;
  }

  // `dense` in a book means an exact frame. tensor: as rows show it
  std::vector<std::string> book_plan(const std::string& tensor) const {
    const std::string text = predict::plan_in(*book_, name_shown_as(tensor));
    return {text.empty() ? predict::exact_text : text};
  }

  // The canonical text of the book's plan for a tensor, as in rows.
  std::function<std::string(const std::string&)> canonical_of_book() const {
    return [this](const std::string& tensor) { return std::string(parse_plan(book_plan(tensor)[0]).text()); };
  }

  // The columns that identify the rows of a gradient for --resume, without the plan and the digest.
  static json_row identity_row(const subject& g, uint32_t step) {
    row r;
    r.input = g[0].input;
    r.tensor = name_of(g);
    r.step = step;
    r.dtype = types_of(g);
    r.d = elements_of(g);
    return to_json(r);
  }

  // The identity of every sequence. Repeated names and values (one input twice) get a number.
  std::vector<json_row> identity_rows(std::span<const std::vector<subject>> sequences) const {
    std::vector<json_row> rows;
    std::map<json_row, unsigned> seen;
    const uint32_t last = std::max(o_.steps, 1u) - 1;
    for (const auto& gradients : sequences) {
      json_row identity = identity_row(gradients[last % gradients.size()], last + 1);
      const std::string digest = digest_of(gradients);
      identity["data"] = digest;
      if (const unsigned times = ++seen[identity]; times > 1) identity["data"] = fmt::format("{}-{}", digest, times);
      rows.push_back(std::move(identity));
    }
    return rows;
  }

  void forget_overwritten(std::span<const std::vector<subject>> sequences, std::span<const json_row> identities) {
    std::vector<json_row> now;
    for (size_t i = 0; i < sequences.size(); ++i)
      for (const subject& g : sequences[i]) now.emplace_back(identity_row(g, 1))["data"] = identities[i].at("data");
    if (const size_t gone = resumed_->forget_others(now))
      console_.line(
          fmt::format("note: --resume {}: {} rows were measured on other values of these inputs and were dropped",
                      o_.resume, gone));
  }

  // Parses the texts; drops duplicates.
  static std::vector<plan> distinct_plans(const std::vector<std::string>& texts) {
    std::vector<plan> plans;
    std::set<std::string> known;
    for (const std::string& text : texts)
      if (plan p = parse_plan(text); known.emplace(p.text()).second) plans.push_back(std::move(p));
    return plans;
  }

  // Whether --resume has the plan's row.
  bool is_resumed(const plan& p, json_row identity) const {
    identity["plan"] = p.text();
    return resumed_ && resumed_->has(identity);
  }

  void measure(const std::vector<std::string>& plan_texts) {
    context context(o_.threads);
    subject_options subject_choice = o_.subjects;
    subject_choice.inputs = expand_inputs(subject_choice.inputs, o_.limit);
    std::vector<subject> subjects = read_frames(subject_choice, console_);
    const bool alone = o_.steps == 0;
    const std::vector<std::vector<subject>> sequences =
        alone ? apart(std::move(subjects)) : in_steps(std::move(subjects));
    const std::map<std::string, const subject*> like = densest(sequences);
    std::vector<json_row> identities(sequences.size());
    if (resumed_) {
      identities = identity_rows(sequences);
      forget_overwritten(sequences, identities);
    }

    if (!o_.book.empty() && o_.subjects.globs == std::vector<std::string>{"*"}) {
      std::vector<std::string> names;
      for (const auto& gradients : sequences) names.push_back(name_shown_as(gradients[0][0].name));
      for (const std::string& line : predict::idle_lines(*book_, o_.book, names)) console_.line("note: " + line);
    }
    std::vector<std::vector<plan>> plans;
    std::vector<double> work{0};
    size_t max_plans = 0, saved = 0;  // plans of an input; rows that --resume has
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto& gradients = sequences[i];
      if (!alone && gradients.size() > o_.steps)
        throw usage_error(fmt::format("--steps {}: there are {} inputs", o_.steps, gradients.size()));
      const std::vector<std::string> texts =
          o_.book.empty() ? plans_for(plan_texts, *like.at(gradients[0][0].input)) : book_plan(gradients[0][0].name);
      plans.push_back(distinct_plans(texts));
      max_plans = std::max(max_plans, plans.back().size());
      saved += std::erase_if(plans.back(), [&](const plan& p) { return is_resumed(p, identities[i]); });
      work.push_back(work.back() +
                     static_cast<double>(elements_of(gradients[0])) * static_cast<double>(plans.back().size() + 1));
    }
    const char* const unit = like.size() == sequences.size() ? "input" : "tensor";
    announce(max_plans, plans, saved, unit);
    std::vector<std::string> asked = o_.presets;  // by name; a plan may begin with one
    for (const std::string& text : o_.plans) asked.push_back(text.substr(0, text.find(' ')));
    const measure_settings settings{
        o_.repeat,    o_.seconds, o_.seed, o_.segment_rows, o_.ranks, o_.over, std::max(o_.steps, 1u),
        o_.each_step, asked};
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (plans[i].empty()) continue;
      console_.part(unit, i, sequences.size(), work[i], work[i + 1] - work[i], work.back());
      take(compare_plans(context, sequences[i], plans[i], settings, console_),
           resumed_ ? text_of(identities[i], "data") : "");
    }
  }

  // The first dense subject of every input, or else its first.
  static std::map<std::string, const subject*> densest(const std::vector<std::vector<subject>>& sequences) {
    std::map<std::string, const subject*> of_input;
    const auto is_sparse = [](const subject& g) { return default_sparsifier(g) == "sparsify=none"; };
    for (const auto& gradients : sequences) {
      const subject*& known = of_input[gradients[0][0].input];
      if (known == nullptr || (is_sparse(*known) && !is_sparse(gradients[0]))) known = &gradients[0];
    }
    return of_input;
  }

  // plans: to be measured, per input or tensor.
  void announce(size_t max_plans, const std::vector<std::vector<plan>>& plans, size_t saved, const char* unit) {
    size_t runs = 0;
    for (const auto& list : plans) runs += list.size();
    const bool swept = std::ranges::any_of(
        o_.plans, [](const std::string& text) { return text.find('|') != text.npos || text.find("..") != text.npos; });
    if (!swept && !resumed_ && !console_.is_terminal()) return;
    std::string text = fmt::format("{} plan{} × {} {}{}", max_plans, max_plans == 1 ? "" : "s", plans.size(), unit,
                                   plans.size() == 1 ? "" : "s");
    if (resumed_) text += fmt::format(", {} to measure ({} already in {})", runs, saved, o_.resume);
    console_.line(text);
  }

  // data: with --resume, the digest of the values.
  void take(measured m, const std::string& data) {
    std::vector<json_row> rows;
    for (const row& r : m.rows) {
      rows.push_back(to_json(r));
      rows.back()["samples"] = samples_json(r);
      if (resumed_) rows.back()["data"] = data;
    }
    for (ordered_json& facts : m.subjects)
      if (resumed_) facts["data"] = data;
    if (resumed_)
      resumed_->add(rows, m.subjects);
    else
      std::ranges::move(rows, std::back_inserter(rows_));
    for (ordered_json& facts : m.subjects) document_["subjects"].push_back(std::move(facts));
    for (const failure& f : m.failures) document_["failures"].push_back(to_json(f));
    std::ranges::move(m.rows, std::back_inserter(measured_.rows));
    std::ranges::move(m.failures, std::back_inserter(measured_.failures));
  }

  int finish() {
    if (resumed_) {
      std::ranges::copy(resumed_->rows(), std::back_inserter(rows_));
      for (const ordered_json& facts : resumed_->subjects()) document_["subjects"].push_back(facts);
    }
    total_list totals = totals_of(rows_, ranks_);
    if (o_.book.empty())
      for (const std::string& text : totals.incomplete) console_.line("note: no total of " + text);
    else
      std::ranges::move(book_totals(rows_, "book " + o_.book, canonical_of_book(), ranks_),
                        std::back_inserter(totals.totals));
    try {
      if (questions_.best) document_["best"] = find_best(rows_, *questions_.best);
      document_["rows"] = questions_.shown.apply(rows_);
      document_["totals"] = questions_.shown.apply(std::move(totals.totals));
      if (const std::string why = questions_.shown.why_none(rows_);
          !rows_.empty() && document_["rows"].empty() && !why.empty())
        console_.line("note: " + why);
      if (!old_.is_null())
        document_["against"] = compare_with(questions_.shown.filter(rows_), document_,
                                            questions_.shown.filter(rows_of(old_)), old_, o_.against);
    } catch (const expression_error& e) {
      throw usage_error(e.what());
    }
    if (signal_ != 0) {
      const auto finished = std::ranges::count_if(rows_, [](const json_row& row) { return !is_memcpy(row); });
      console_.line(fmt::format("interrupted: {} rows were finished", finished));
    }
    if (signal_ == 0 || !rows_.empty()) {
      write_output(o_.output, render(document_, presentation()));
      if (!o_.report.empty()) write_output(o_.report, html_report(document_));
      print_answers();
    }
    if (signal_ != 0) return 128 + signal_;
    if (o_.fail_if_worse && document_.at("against").at("rows").empty())
      throw usage_error(
          fmt::format("--fail-if-worse: nothing was compared: no row of {} has the input, tensor, type, "
                      "size and plan of a new row",
                      o_.against));
    const bool worse = o_.fail_if_worse && any_worse(document_.at("against"));
    return !measured_.failures.empty() || worse ? failed : fine;
  }

  // Prints answers that the result lacks: the best plans beside a file, and comparisons beside CSV. Then where the report is.
  void print_answers() {
    const bool csv = o_.form == format::csv;
    std::string text;
    if (document_.contains("best") && (csv || !o_.output.empty())) text += best_text(document_.at("best"));
    if (document_.contains("against") && csv) text += against_text(document_.at("against"), false);
    const std::string report = o_.report.empty() ? "" : "report: " + o_.report + '\n';
    const bool beside = o_.output.empty() && o_.form != format::table;  // stdout has a document
    if (beside && !report.empty() && console_.is_terminal()) console_.line(report.substr(0, report.size() - 1));
    if (!beside) text += next_steps() + report;
    if (!o_.output.empty() || !beside)
      return text.empty() ? void() : write_output("", plain(without_controls(text, true)));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) console_.line(line);
  }

  // What comes after the plain question.
  std::string next_steps() const {
    const bool usual = o_.output.empty() && o_.from.empty() && !o_.wide && o_.best.empty() && o_.against.empty() &&
                       !questions_.shown.asks() && o_.plans.empty() && o_.presets.empty() && o_.book.empty();
    if (!usual) return {};
    std::string text;
    for (const std::string& line :
         wrapped("next:       your step: `deepreduce predict`; your loss: only training shows it",
                 terminal_width(STDOUT_FILENO, 80)))
      text += line + '\n';
    return text;
  }

  render_request presentation() const {
    render_request r;
    r.form = o_.form;
    r.wide = o_.wide;
    r.sorted = !o_.sort.empty();
    r.asked = questions_.shown.asks();
    r.answers = !o_.all;
    r.together = o_.subjects.inputs.empty() && o_.from.empty() && o_.steps == 0;
    if (measures()) r.net = {o_.ranks, o_.over ? link_words(o_.link_text, o_.over->bits_per_second) : ""};
    if (o_.output.empty()) r.width = terminal_width(STDOUT_FILENO, r.width);
    if (o_.wide) r.width = std::max(r.width, wide_width);
    const char* const no_color = std::getenv("NO_COLOR");
    r.bold = o_.output.empty() && draws(STDOUT_FILENO) && (no_color == nullptr || *no_color == 0);
    for (const std::string& name : o_.presets) r.notes += preset_notes(name);
    return r;
  }

  const compare_options& o_;
  console console_;
  ordered_json document_, old_;
  questions questions_;
  std::optional<resumed_run> resumed_;
  std::optional<book> book_;
  std::vector<json_row> rows_;
  uint64_t ranks_ = 0;  // of all rows; 0: they differ, or a saved file has none
  measured measured_;
  int signal_ = 0;
};

}  // namespace

int run_compare(const compare_options& options) {
  if (!options.report.empty() && !has_html_report()) throw usage_error(std::string("--report: ") + no_html_report);
  check_outputs({{"--resume", options.resume}, {"--output", options.output}, {"--report", options.report}},
                {options.subjects.inputs, options.from, options.plugins, {&options.book, 1}, {&options.against, 1}});
  load_plugins(options.plugins);
  note_signals();
  return comparison(options).run();
}

}  // namespace dr::compare
