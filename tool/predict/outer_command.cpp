#include "outer_command.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "outer_model.hpp"
#include "outer_text.hpp"
#include "plan_errors.hpp"
#include "predict_command.hpp"
#include "predict_text.hpp"
#include "tool/read/inputs.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/show/output.hpp"

namespace dr::predict {
namespace {

using compare::usage_error;
using nlohmann::ordered_json;

constexpr double small_share = 0.1;  // of a round, that waits

struct round_case {
  const step_model& m;
  bool folder;
  double step_ns;   // computing of a step
  double slowdown;  // of computing beside the exchange
};

double round_ns(const round_case& r, double every, const outer_exchange& x) { return every * r.step_ns + x.total_ns; }

// Infinity: not modelled.
double total_ns(const step_model& m, const candidate& c, bool folder) try {
  return exchange_of_round(m, c, folder).total_ns;
} catch (const unsupported_model&) {
  return std::numeric_limits<double>::infinity();
}

// The shorter dense exchange.
double dense_ns(const step_model& m, bool folder) {
  return std::min(total_ns(m, dense_candidate(false), folder), total_ns(m, dense_candidate(true), folder));
}

// The rates at which a round by the plan is more than 3 % shorter than the shorter dense one.
paying_range rates_of(const round_case& r, const candidate& c, double every) {
  const double training = every * r.step_ns;
  return where_it_pays(1e5, 1e13, 33, [&](double rate) {
    const step_model there = r.m.with_rate(rate);
    const double plan = training + total_ns(there, c, r.folder);
    return std::isfinite(plan) && plan < (1 - even_share) * (training + dense_ns(there, r.folder));
  });
}

// H steps of DDP with its hook. null: not modelled.
ordered_json ddp_ns(const step_model& m, const candidate& c, double every) try {
  return rounded_json(every * m.step(c).step_ns);
} catch (const unsupported_model&) {
  return nullptr;
}

ordered_json row_of(const round_case& r, const candidate& c, uint32_t steps, const ordered_json& error,
                    bool break_even) {
  ordered_json row{{"every", steps}, {"candidate", c.name}, {"by", r.folder ? "formula" : "events"}};
  const double every = steps;
  outer_exchange x;
  ordered_json why;
  try {
    x = exchange_of_round(r.m, c, r.folder);
  } catch (const unsupported_model& e) {
    why = e.what();
  }
  const bool known = why.is_null(), plan = known && c.is_plan();
  const auto figure = [&](double value) { return known ? rounded_json(value) : ordered_json(nullptr); };
  const double whole = round_ns(r, every, x), dense = dense_ns(r.m, r.folder);
  const overlapped over = overlap_of(x, r.step_ns, every, r.slowdown);
  const paying_range rates = plan && break_even ? rates_of(r, c, every) : paying_range{};
  row["round_ns"] = figure(whole);
  row["waiting"] = known ? ordered_json(std::round(1e6 * x.total_ns / whole) / 1e6) : ordered_json(nullptr);
  row["exchange_ns"] = figure(x.total_ns);
  row["encode_ns"] = figure(x.encode_ns);
  row["merge_ns"] = figure(x.merge_ns);
  row["apply_ns"] = figure(x.apply_ns);
  row["link_ns"] = figure(x.link_ns);
  row["exposed_ns"] = figure(x.exposed_ns);
  row["sent_bytes"] = figure(x.sent_bytes);
  row["received_bytes"] = figure(x.received_bytes);
  row["overlap"] = figure(over.steps);
  row["overlapped_ns"] = figure(whole - over.hidden_ns);
  row["ddp_ns"] = ddp_ns(r.m, c, every);
  row["relative_error"] = error;
  row["waits_10_percent_from"] = figure(least_every(x.total_ns, r.step_ns, small_share));
  row["pays_to_every"] = plan ? rounded_json(pays_to_every(x.total_ns, dense, r.step_ns)) : ordered_json(nullptr);
  row["pays_below"] = plan && break_even ? upper_json(rates) : ordered_json(nullptr);
  row["pays_above"] = plan && break_even ? lower_json(rates) : ordered_json(nullptr);
  row["verdict"] = plan ? ordered_json(verdict_of(whole, every * r.step_ns + dense)) : ordered_json(nullptr);
  row["error"] = why;
  return row;
}

void refuse_options_of_steps(const predict_options& o) {
  const auto refuse = [](bool given, const char* name) {
    if (given) throw usage_error(std::string(name) + " is of a step, and --every of a round");
  };
  refuse(o.what.hook != "ddp", "--hook exchange");
  refuse(!o.powersgd.empty(), "--powersgd");
  refuse(!o.what_ifs.empty(), "--what-if");
  refuse(!o.curves.empty(), "--curves");
  refuse(!o.timeline.empty(), "--timeline");
  refuse(!o.trace.empty(), "--trace");
}

}  // namespace

int run_rounds(const predict_options& o) {
  refuse_options_of_steps(o);
  compare::check_outputs({{"--output", o.output}}, {files_of(o.what), o.books});
  compare::load_plugins(o.what.plugins);
  predict_case c = read_case(o.what);
  const error_table errors(o.what, *c.costs, c.model.model.tensors.size());
  const round_case r{c.model, o.folder, c.model.model.compute_ns(), c.model.how.slowdown};
  if (r.step_ns <= 0)
    throw usage_error("--every: the time that a step computes is unknown: give --backward, or a --model with times");
  std::vector<candidate> candidates{dense_candidate(false), dense_candidate(true)};
  auto works = read_works(o.what, c);
  errors.check_candidates(works);
  for (auto& work : works) candidates.push_back(uniform_candidate(std::move(work), c.model.model.tensors.size()));
  for (const std::string& path : o.books) candidates.push_back(book_candidate(path, c));
  ordered_json document{{"schema", rounds_schema}};
  document.update(case_json(c, o.what));
  document["transport"] = o.folder ? "folder" : "group";
  document["step_ns"] = rounded_json(r.step_ns);
  std::vector<uint32_t> every = o.every;
  std::ranges::sort(every);
  every.erase(std::unique(every.begin(), every.end()), every.end());
  std::vector<ordered_json> lost;
  step_model noted = c.model;
  noted.model.ready_known = true;  // (a round does not ask when gradients are ready)
  for (const candidate& each : candidates) {
    const choice_error e = error_of(c.model, each, errors, c.notes);
    lost.push_back(std::isnan(e.mean) ? ordered_json(nullptr) : ordered_json(e.mean));
    noted.note(each, c.notes);
  }
  if (c.model.exact->add_ns(c.model.model.elements()) <= 0)
    c.notes.insert("the outer optimizer costs no time: the profile has no costs of 'index=all value=raw'");
  if (o.folder)
    c.notes.insert("a Folder is by formula, and was not measured: its file system is the link, up and down");
  auto rows = ordered_json::array();
  bool plans = false, known = false;
  for (const uint32_t steps : every)
    for (size_t i = 0; i < candidates.size(); ++i) {
      rows.push_back(row_of(r, candidates[i], steps, lost[i], o.break_even));
      plans |= candidates[i].is_plan(), known |= candidates[i].is_plan() && rows.back().at("round_ns").is_number();
    }
  document["rows"] = std::move(rows);
  document["verdict"] = rounds_verdict(document);
  document["notes"] = c.notes;
  compare::write_output(o.output, o.form == "json"  ? json_text(document)
                                  : o.form == "csv" ? prediction_csv(document)
                                                    : rounds_table(document));
  return plans && !known ? 77 : 0;
}

}  // namespace dr::predict
