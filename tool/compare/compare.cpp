#include "compare.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "histograms.hpp"
#include "layer_kind.hpp"
#include "metrics.hpp"
#include "plan_run.hpp"
#include "selected.hpp"
#include "tool/read/number.hpp"
#include "tool/read/plan_text.hpp"
#include "tool/read/presets.hpp"
#include "totals.hpp"
#include "verify.hpp"

namespace dr::compare {
namespace {

// The tensors of a batch joined into one, as bucket=flat does.
subject joined(const subject& g) { return {concatenated(g)}; }

// The codecs of a frame's tensors; of several choices the commonest, with its count.
std::string choice_of(const std::vector<dr_tensor_info>& infos) {
  std::map<std::string, size_t> counts;
  for (const dr_tensor_info& info : infos) ++counts[info.plan];
  const auto commonest =
      std::ranges::max_element(counts, [](const auto& a, const auto& b) { return a.second < b.second; });
  if (counts.size() <= 1) return commonest == counts.end() ? "" : commonest->first;
  return fmt::format("{} ({} of {} tensors)", commonest->first, commonest->second, infos.size());
}

bool is_joined(const subject& s) { return cut_of({{"tensor", name_of(s)}}) == cut::joined; }

// Reports NaN and infinite values: "2 values are NaN or infinite, the first at position 7".
// "": all values are finite.
std::string not_finite_text(const subject& s) {
  uint64_t count = 0;
  std::string first;
  for (const tensor& t : s)
    for (uint64_t i = 0; i < t.elements; ++i) {
      if (std::isfinite(value_of(t.type, bits_at(t.type, t.data, i))) || ++count > 1) continue;
      first = fmt::format("the first at position {}{}", i, s.size() > 1 ? " of " + t.name : "");
    }
  if (count == 0) return "";
  const std::string values =
      count == 1 ? "a value is NaN or infinite, " : fmt::format("{} values are NaN or infinite, ", count);
  return values + first + (is_joined(s) ? " of all tensors joined; --tensor '*' names the tensor" : "");
}

constexpr double verifying = 0.3;  // of a part's time, about

class measurement {
 public:
  measurement(context& c, std::span<const subject> gradients, const measure_settings& settings, console& console)
      : gradients_(gradients), settings_(settings), console_(console), bench_{c, settings, &gradients[0], 0, {}, {}} {
    size_t room = 0;
    for (const tensor& t : gradients[0]) room += (t.data.size() + 3) / 4 * 4;
    bench_.received = tensor_bytes(room);
  }

  measured run(std::span<const plan> plans) {
    for (const plan& p : plans)
      attempt(read_plan(p.text()), [&] { runs_.push_back(std::make_unique<plan_run>(bench_, p)); });
    for (bench_.step = 0; bench_.step < settings_.steps; ++bench_.step) {
      bench_.gradient = &gradients_[bench_.step % gradients_.size()];
      add_gradient();
      const bool last = bench_.step + 1 == settings_.steps, shown = settings_.each_step || last;
      if (shown) show_step();
      if (last) break;
      progress(fmt::format("step {}/{}", bench_.step + 1, settings_.steps), shown, label());
      for_each_run([&](plan_run& x) { advance(x, shown); });
    }
    return std::move(result_);
  }

 private:
  void show_step() {
    const size_t plans = runs_.size();
    size_t verified = 0;
    for_each_run([&](plan_run& x) {
      progress(fmt::format("plan {}/{}", verified + 1, plans), verifying * static_cast<double>(verified) / plans,
               x.reading.text);
      ++verified;
      check(x);
      x.prepare_merge();
    });
    selected_.clear();
    described_.clear();
    (void)bench_.copy_all();
    for_each_run([&](plan_run& x) { x.warm_up(); });
    const double begin = now_ns();
    for (uint32_t round = 1; !enough(round - 1, now_ns() - begin); ++round) {
      const double share = verifying + (1 - verifying) * share_of(round - 1, now_ns() - begin);
      progress(
          settings_.repeat ? fmt::format("round {} of {}", round, settings_.repeat) : fmt::format("round {}", round),
          share, label());
      time_copy();
      for_each_run([&](plan_run& x) { x.time_round(); });
    }
    result_.rows.push_back(memcpy_row());
    copy_ns_.clear();
    for (const auto& x : runs_) {
      x->report_times(x->facts.times);
      x->transforms ? add_factors_model(x->facts, x->rings()) : add_model(x->facts, x->reading);
      result_.rows.push_back(std::move(x->facts));
    }
  }

  double enough_ns() const { return 1e9 * settings_.seconds * static_cast<double>(runs_.size()); }

  bool enough(uint32_t rounds, double elapsed_ns) const {
    if (settings_.repeat) return rounds == settings_.repeat;
    return rounds >= max_rounds || (rounds >= min_rounds && elapsed_ns >= enough_ns());
  }

  // Of the rounds.
  double share_of(uint32_t rounds, double elapsed_ns) const {
    const double done = rounds;
    if (settings_.repeat) return done / settings_.repeat;
    return std::max(done / max_rounds, std::min(done / min_rounds, elapsed_ns / std::max(enough_ns(), 1.0)));
  }

  const subject& g() const { return *bench_.gradient; }
  std::string label() const { return g()[0].input + (name_of(g()).empty() ? "" : " ") + name_of(g()); }
  void progress(const std::string& what, double share, const std::string& detail) {
    // (of steps that are not shown, as many as there are parts)
    const double step = settings_.each_step ? settings_.steps : 1, before = settings_.each_step ? bench_.step : 0;
    console_.progress(what, (before + share) / step, detail);
  }

  // A failed plan is reported on the console; the other plans continue.
  template <class F>
  bool attempt(const plan_reading& p, F&& f) {
    try {
      f();
      return true;
    } catch (const std::runtime_error& e) {
      console_.line(fmt::format("{}: {}: {}", label(), p.text, e.what()));
      if (is_joined(g())) note_not_finite(g(), "");  // the error has the position among all tensors, and not the tensor
      result_.failures.push_back({g()[0].input, name_of(g()), bench_.step + 1, p.sparsify, p.text, e.what()});
      return false;
    }
  }

  // Drops the plans for which f fails.
  template <class F>
  void for_each_run(F&& f) {
    std::erase_if(runs_, [&](const auto& x) { return !attempt(x->reading, [&] { f(*x); }); });
  }

  row subject_row() const {
    row r;
    r.input = g()[0].input;
    r.tensor = name_of(g());
    if (g().size() == 1) r.kind = layer_kind(g()[0].name, g()[0].shape);
    r.step = bench_.step + 1;
    r.dtype = types_of(g());
    r.d = elements_of(g());
    return r;
  }

  // ---- Steps ------------------------------------------------------------------------------------------

  void add_gradient() {
    if (settings_.steps == 1) return;
    uint64_t first = 0;
    for (const tensor& t : g()) {
      sent_.add(t.type, 1, t.data, {}, first);
      first += t.elements;
    }
  }

  // To the next step. shown: this step was measured.
  void advance(plan_run& x, bool shown) {
    if (x.transforms) {
      x.transform();
      if (!shown) x.add_transform_loss();
      return x.commit_transform();
    }
    if (shown && !x.has_state()) return;
    const auto frame = x.encode();
    if (!shown) x.add_loss(frame);
    x.commit();
  }

  double total_error_of(plan_run& x) {
    if (settings_.steps == 1) return std::sqrt(x.facts.error->contraction);
    if (!x.transforms) x.add_loss(x.frame);
    return quotient(x.lost(), std::abs(x.reading.gamma) * sent_.norm());
  }

  // ---- Verification, sizes and errors -----------------------------------------------------------------

  using positions = std::vector<std::vector<uint64_t>>;  // per tensor

  positions selected_positions(const std::string& sparsify, const subject& input) {
    const dr_call now = bench_.call();
    positions selected;
    for (size_t i = 0; i < input.size(); ++i)
      selected.push_back(selected_by(bench_.library, sparsify, input[i], &now, i));
    return selected;
  }

  // For plans without feedback.
  const positions& selected_of(const std::string& sparsify) {
    if (const auto known = selected_.find(sparsify); known != selected_.end()) return known->second;
    const positions& selected = selected_[sparsify] = selected_positions(sparsify, g());
    note_subject(sparsify, g(), selected);
    return selected;
  }

  // Once.
  void note_not_finite(const subject& input, const char* so) {
    if (reported_not_finite_) return;
    if (const std::string text = not_finite_text(input); !text.empty()) {
      console_.line(fmt::format("note: {}: {}{}", label(), text, so));
      reported_not_finite_ = true;
    }
  }

  // Once per step and selector (sparsifier and feedback).
  void note_subject(const std::string& selector, const subject& input, const positions& selected) {
    if (!described_.insert(selector).second) return;
    nlohmann::ordered_json facts = subject_facts(input, selector, selected);
    facts["tensor"] = name_of(g());
    facts["step"] = bench_.step + 1;
    if (facts.at("gradient_energy").is_null()) note_not_finite(input, ": errors are undefined");
    result_.subjects.push_back(std::move(facts));
  }

  // A transform selects all elements.
  void check_transform(plan_run& x) {
    const subject input = x.transform_input();
    positions all;
    for (const tensor& t : input) all.emplace_back(t.elements);
    for (auto& of_tensor : all) std::iota(of_tensor.begin(), of_tensor.end(), 0);
    note_subject(x.reading.sparsify + (x.reading.feedback.empty() ? "" : ' ' + x.reading.feedback), input, all);
    x.transform();
    x.facts = subject_row();
    x.facts.preset = preset_of(x.reading);
    x.add_transform_sizes();
    distortion_sum sum;
    size_t at = 0;
    for (size_t i = 0; i < input.size(); at += input[i++].data.size())
      sum.add(input[i], all[i], std::span(bench_.received).subspan(at, input[i].data.size()), all[i]);
    x.facts.error = sum.result();
    if (settings_.steps > 1) x.add_transform_loss();
    add_total_error(x);
  }

  void check(plan_run& x) {
    if (x.transforms) return check_transform(x);
    const auto frame = x.encode();
    x.facts = subject_row();
    x.frame.assign(frame.begin(), frame.end());
    const bool is_gradient = !x.has_state() && !x.reading.coefficients;
    if (is_gradient && !x.flat) {
      describe(x, g(), selected_of(x.reading.sparsify));
    } else {
      subject input = is_gradient ? g() : x.accumulated();
      if (x.flat) input = joined(input);
      const positions selected = selected_positions(x.reading.sparsify, input);
      const std::string feedback = x.reading.feedback.empty() ? "" : ' ' + x.reading.feedback;
      const std::string transform = x.reading.coefficients ? x.reading.transform + ' ' : "";
      note_subject(transform + x.reading.sparsify + feedback, input, selected);
      describe(x, input, selected);
    }
    add_total_error(x);
  }

  void add_total_error(plan_run& x) {
    x.facts.total_error = total_error_of(x);
    if (settings_.steps > 1) x.facts.error->gradient_energy = std::pow(x.reading.gamma * sent_.norm(), 2);
  }

  // input: of the sparsifier, which selected `selected`.
  void describe(plan_run& x, const subject& input, const positions& selected) {
    const std::vector<dr_tensor_info> infos = inspect(x.frame).tensors;
    if (infos.size() != input.size())
      throw verify_error(fmt::format("the frame has {} tensors, but {} were encoded", infos.size(), input.size()));
    describe_sizes(x, infos);
    distortion_sum sum;
    for (size_t i = 0; i < input.size(); ++i) {
      const decoded_tensor decoded = verify(bench_.library, input[i], x.reading, selected[i], x.frame, infos[i], i);
      sum.add(input[i], selected[i], decoded.dense, decoded.support);
    }
    x.facts.error = sum.result();
  }

  void describe_sizes(plan_run& x, const std::vector<dr_tensor_info>& infos) const {
    constexpr const char* fallbacks[] = {"none", "raw_index", "dense"};
    uint64_t count = 0, support = 0, index = 0, value = 0, order = 0;
    uint32_t fallback = DR_FALLBACK_DENSE;  // of a batch, the smallest of all tensors
    double bound = 0;
    for (const dr_tensor_info& info : infos) {
      count += info.count, support += info.support;
      index += info.index_size, value += info.value_size, order += info.order_size;
      fallback = std::min(fallback, info.fallback);
      bound += index_bound_bits(info.universe, info.count) * static_cast<double>(info.count);
    }
    row& f = x.facts;
    const auto r = static_cast<double>(count);
    f.r = count;
    f.support = support;
    f.plan = x.reading.text;
    f.preset = preset_of(x.reading);
    if (x.chooses) f.choice = choice_of(infos);
    f.fallback = fallback < std::size(fallbacks) ? fallbacks[fallback] : "?";
    const size_t bytes = x.frame.size();
    f.sizes = {.total = bytes,
               .index = index,
               .value = value,
               .order = order,
               .header = bytes - index - value - order,
               .relative_volume = static_cast<double>(bytes) / (4 * static_cast<double>(f.d)),
               .index_bits = quotient(8 * static_cast<double>(index), r),
               .value_bits = quotient(8 * static_cast<double>(value), r),
               .index_bound_bits = quotient(bound, r)};
  }

  // Of the requested presets.
  std::string preset_of(const plan_reading& p) const {
    std::string names;
    for (const dr_preset* known : presets()) {
      if (std::ranges::none_of(settings_.presets, [&](const auto& n) { return n == known->set || n == known->name; }))
        continue;
      const std::string text = preset_plans(known->name, p.sparsify).front();
      if (plan(text).text() == p.text) names += (names.empty() ? "" : ", ") + std::string(known->name);
    }
    return names;
  }

  // ---- Times ------------------------------------------------------------------------------------------

  void time_copy() {
    const double begin = now_ns();
    (void)bench_.copy_all();
    copy_ns_.push_back(now_ns() - begin);
  }

  row memcpy_row() {
    row r = subject_row();
    r.plan = "memcpy";
    r.sizes.total = bench_.copy_all();
    r.sizes.relative_volume = static_cast<double>(r.sizes.total) / (4 * static_cast<double>(r.d));
    r.times.rounds = copy_ns_.size();
    r.times.encode = r.times.decode = summarize(copy_ns_);
    r.times.encode_samples = r.times.decode_samples = copy_ns_;
    return r;
  }

  // ---- The model of a link ----------------------------------------------------------------------------

  // side: -1 and 1 are the ends of the measured spread.
  static double at(const timing& t, double side) { return t.median * std::max(0.0, 1 + side * t.spread / 2); }

  step_costs costs_of(const row& r, const plan_reading& p, double dense_bytes, double side) const {
    // Without a sparsifier the support of the sum grows with the ranks, at most to all elements.
    const double max_growth =
        static_cast<double>(r.d) / static_cast<double>(std::max<uint64_t>(r.support.value_or(0), 1));
    const double growth = !p.sparsifies ? std::min<double>(settings_.ranks, max_growth) : 1;
    return {static_cast<double>(r.d), at(r.times.sparsify, side) + at(r.times.encode, side),
            at(r.times.merge, side),  static_cast<double>(r.sizes.total),
            std::max(growth, 1.0),    dense_bytes};
  }

  double dense_bytes() const {
    double bytes = 0;
    for (const tensor& t : g()) bytes += static_cast<double>(t.data.size());
    return bytes;
  }

  // The step, and its verdict from the steps at the ends of the measured spread. step_at: by a side of costs_of.
  template <class F>
  void add_step(row_model& m, double dense_bytes, double half_bytes, F&& step_at) const {
    m.step_ns = step_at(0);
    m.dense_step_ns = ring_ns(dense_bytes, settings_.ranks, *settings_.over);
    m.bf16_step_ns = ring_ns(half_bytes, settings_.ranks, *settings_.over);
    const double best = std::min(m.dense_step_ns, m.bf16_step_ns);
    m.verdict = std::isnan(m.step_ns) ? "unknown" : step_at(1) < best ? "pays" : step_at(-1) > best ? "slower" : "even";
  }

  // Of a transform, whose factors go through rings like the dense tensor, one after the other.
  void add_factors_model(row& r, uint32_t rings) const {
    const double n = settings_.ranks, computing = r.times.encode.median + r.times.merge.median;
    const auto below = [&](double bytes) {
      const double saved = 16e9 * (n - 1) / n * (bytes - static_cast<double>(r.sizes.total));  // bits · ns / s
      return std::max(0.0, saved / computing);
    };
    r.model.pays_below = below(dense_bytes());
    r.model.pays_below_bf16 = below(2 * static_cast<double>(r.d));
    if (!settings_.over) return;
    add_step(r.model, dense_bytes(), 2 * static_cast<double>(r.d), [&](double side) {
      const double ring = ring_ns(static_cast<double>(r.sizes.total) / rings, settings_.ranks, *settings_.over);
      return at(r.times.encode, side) + at(r.times.merge, side) + rings * ring;
    });
  }

  void add_model(row& r, const plan_reading& p) const {
    const double dense_bytes = this->dense_bytes();
    const double half_bytes = std::min(dense_bytes, 2 * static_cast<double>(r.d));
    const step_costs costs = costs_of(r, p, dense_bytes, 0);
    const uint32_t n = settings_.ranks;
    row_model& m = r.model;
    m.pays_below = pays_below(costs, p.exchange, dense_bytes, n);
    m.pays_below_bf16 = half_bytes < dense_bytes ? pays_below(costs, p.exchange, half_bytes, n) : m.pays_below;
    if (!settings_.over) return;
    const link& l = *settings_.over;
    add_step(m, dense_bytes, half_bytes,
             [&](double side) { return step_ns(costs_of(r, p, dense_bytes, side), p.exchange, n, l); });
    m.gather_step_ns = p.exchange.empty() ? m.step_ns : step_ns(costs, "", n, l);
  }

  std::span<const subject> gradients_;
  const measure_settings& settings_;
  console& console_;
  workbench bench_;
  running_sum sent_;
  std::map<std::string, positions> selected_;
  bool reported_not_finite_ = false;
  std::set<std::string> described_;  // selectors with an entry in `subjects` for this step
  std::vector<std::unique_ptr<plan_run>> runs_;
  std::vector<double> copy_ns_;
  measured result_;
};

}  // namespace

measured compare_plans(context& c, std::span<const subject> gradients, std::span<const plan> plans,
                       const measure_settings& settings, console& console) {
  return measurement(c, gradients, settings, console).run(plans);
}

}  // namespace dr::compare
