#include "calibrate_command.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "codec_costs.hpp"
#include "tool/compare/factors.hpp"
#include "tool/read/plan_list.hpp"
#include "tool/read/plan_text.hpp"
#include "tool/read/presets.hpp"
#include "tool/read/subjects.hpp"
#include "tool/show/console.hpp"
#include "tool/show/joined.hpp"
#include "tool/show/machine.hpp"
#include "tool/show/output.hpp"

namespace dr::calibrate {
namespace {

using compare::console;
using nlohmann::ordered_json;

// This plan's entry also has the cost of adding dense tensors.
constexpr const char* exact_plan = "index=all value=raw";

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

ordered_json machine_json() {
  const ordered_json facts = compare::machine_facts();
  return {{"cpu", facts.at("cpu")},
          {"cores", facts.at("cores")},
          {"instructions", facts.at("level")},
          {"os", facts.at("os")}};
}

// f32, in the order of the inputs.
struct gradients {
  gradient_pool pool;
  std::vector<std::vector<float>> by_input;
  std::vector<compare::tensor> tensors;  // for measuring errors
};

// From the bundled data. Feedback makes accumulators from gradients. The Python package has only accumulators.
void keep_gradients(std::vector<compare::tensor>& tensors, std::string& name) {
  const auto is_gradient = [](const compare::tensor& t) {
    return std::filesystem::path(t.input).parent_path().filename() == "gradients";
  };
  if (std::ranges::any_of(tensors, is_gradient))
    std::erase_if(tensors, std::not_fn(is_gradient));
  else
    name = "bundled accumulators";
}

gradients read_gradients(const std::vector<std::string>& inputs, console& console) {
  compare::subject_options options;
  options.inputs = inputs;
  options.globs = {"*"};  // one by one
  options.all_bundled = true;
  options.cast = compare::dtype::f32;
  gradients g;
  g.pool.name = inputs.empty() ? "bundled" : compare::joined(inputs, " ");
  g.tensors = compare::read_subjects(options, console);
  if (inputs.empty()) keep_gradients(g.tensors, g.pool.name);
  const std::string* input = nullptr;
  for (const compare::tensor& t : g.tensors) {
    std::vector<float> values(t.elements);
    std::memcpy(values.data(), t.data.data(), t.data.size());
    g.pool.values.insert(g.pool.values.end(), values.begin(), values.end());
    if (!input || *input != t.input) g.by_input.emplace_back();
    g.by_input.back().insert(g.by_input.back().end(), values.begin(), values.end());
    input = &t.input;
  }
  if (g.pool.values.empty()) throw compare::input_error(g.pool.name + ": no elements to calibrate with");
  // Files of several ranks at one step have equal sizes; other files are not ranks.
  if (inputs.empty() || g.by_input.size() < 2 ||
      std::ranges::any_of(g.by_input, [&](const auto& v) { return v.size() != g.by_input[0].size(); }))
    g.by_input.clear();
  // Tensors that the DDP hook's `dense_below` sends exactly count only if there are no others.
  const auto is_small = [](const compare::tensor& t) { return t.elements < 1000; };
  if (!std::ranges::all_of(g.tensors, is_small)) std::erase_if(g.tensors, is_small);
  return g;
}

// Those of compare, without the exchange, which costs nothing here; and the exact plan.
std::vector<std::string> usual_plans() {
  std::vector<std::string> texts{exact_plan};
  for (const std::string& plan : compare::usual_plans()) texts.push_back(compare::read_plan(plan).without_exchange);
  return compare::expand_plans(texts, 10000);
}

std::vector<std::string> plans_of(const calibrate_options& o) {
  if (o.plans.empty() && o.presets.empty()) return usual_plans();
  std::vector<std::string> texts = o.plans;
  for (const std::string& name : o.presets) {
    const std::vector<std::string> plans = compare::preset_plans(name, "sparsify=topr(ratio=0.01)");
    if (plans.empty())
      throw compare::usage_error("--preset '" + name + "': no such name; `deepreduce presets` lists them");
    texts.insert(texts.end(), plans.begin(), plans.end());
  }
  return compare::expand_plans(texts, 10000);
}

std::vector<uint64_t> sizes_of(const calibrate_options& o) {
  std::vector<uint64_t> sizes = o.sizes;
  if (sizes.empty())
    for (int power = 10; power <= 22; power += 2) sizes.push_back(uint64_t{1} << power);
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());  // clang 14 has no ranges of this kind
  return sizes;
}

ordered_json samples_json(const std::vector<sample>& samples, bool with_spread) {
  auto list = ordered_json::array();
  for (const sample& s : samples) {
    if (with_spread)
      list.push_back({s.size, s.value, s.spread * s.value});
    else
      list.push_back({s.size, s.value});
  }
  return list;
}

ordered_json cost_json(const std::string& plan, const char* operation, const std::vector<sample>& samples,
                       disturbance& busy) {
  const affine fit = fit_affine(samples);
  busy.add(fmt::format("{} of '{}'", operation, plan), fit, samples);
  return {{"plan", plan},
          {"operation", operation},
          {"floor_ns", fit.floor},
          {"base_ns", fit.base},
          {"per_element_ns", fit.per_unit},
          {"r2", fit.r2},
          {"from", samples.front().size},
          {"to", samples.back().size},
          {"samples", samples_json(samples, true)}};
}

ordered_json frame_json(const std::string& plan, const std::vector<sample>& samples,
                        const std::vector<std::pair<uint32_t, double>>& growth) {
  const affine fit = fit_affine(samples);
  auto list = ordered_json::array();
  for (const auto& [ranks, factor] : growth) list.push_back({ranks, factor});
  return {{"plan", plan},
          {"base_bytes", fit.base},
          {"per_element_bytes", fit.per_unit},
          {"r2", fit.r2},
          {"from", samples.front().size},
          {"to", samples.back().size},
          {"samples", samples_json(samples, false)},
          {"sum_growth", list}};
}

}  // namespace

int run_calibrate(const calibrate_options& o) {
  compare::check_outputs({{"--output", o.output}}, {o.data, o.plugins});
  compare::load_plugins(o.plugins);
  const std::vector<std::string> plans = plans_of(o);
  const std::vector<uint64_t> sizes = sizes_of(o);
  console console;
  compare::note_signals();
  const gradients data = read_gradients(o.data, console);
  context context(o.threads);
  const timing_settings settings{o.seconds, o.seed, uint64_t{o.evicted_mib} << 20};
  auto costs = ordered_json::array(), frames = ordered_json::array(), errors = ordered_json::array();
  disturbance busy;
  const bool has_matrix = std::ranges::any_of(data.tensors, [](const auto& t) { return t.shape.size() > 1; });
  size_t not_finite = 0, without_matrix = 0;  // plans of unknown errors
  int status = 0;
  const uint64_t n =
      data.by_input.empty() ? growth_size(data.pool.values.size(), sizes.back()) : data.by_input[0].size();
  if (n == 0)
    console.line(
        fmt::format("{}: {} elements are too few for 8 ranks: no sum_growth", data.pool.name, data.pool.values.size()));
  for (size_t i = 0; i < plans.size(); ++i) try {
      const plan p(plans[i]);
      console.part("plan", i, plans.size(), static_cast<double>(i), 1, static_cast<double>(plans.size()));
      const bool transforms = compare::is_transform(plans[i]);
      std::vector<sample> encode, merge, decode, bytes, add;
      for (const uint64_t n : sizes) {
        console.progress(fmt::format("{} elements", n),
                         static_cast<double>(bytes.size()) / static_cast<double>(sizes.size()), plans[i]);
        const costs_at at = transforms ? measure_factors_at(context, p, data.pool, n, settings)
                                       : measure_at(context, p, data.pool, n, settings);
        encode.push_back(at.encode), merge.push_back(at.merge), decode.push_back(at.decode), bytes.push_back(at.frame);
        if (plans[i] == exact_plan) add.push_back(measure_add(data.pool, n, settings));
      }
      const double error = error_of(context, p, data.tensors, o.seed);
      if (!transforms)
        frames.push_back(frame_json(plans[i], bytes, sum_growth(context, p, data.pool, data.by_input, n, o.seed)));
      costs.push_back(cost_json(plans[i], "encode", encode, busy));
      costs.push_back(cost_json(plans[i], "merge", merge, busy));
      costs.push_back(cost_json(plans[i], "decode", decode, busy));
      if (!add.empty()) costs.push_back(cost_json(plans[i], "add", add, busy));
      if (std::isnan(error))
        ++(transforms && !has_matrix ? without_matrix : not_finite);
      else
        errors.push_back({{"plan", plans[i]}, {"error", error}});
    } catch (const compare::interrupted& e) {
      console.line("interrupted: no profile");
      return 128 + e.signal;
    } catch (const std::runtime_error& e) {
      console.line(fmt::format("{}: {}; left out", plans[i], e.what()));
      status = 1;
    }
  console.clear();
  const auto note_unknown = [&](size_t count, const char* why) {
    if (count > 0)
      console.line(
          fmt::format("note: {} {}: errors of {} of {} plans are unknown", data.pool.name, why, count, plans.size()));
  };
  note_unknown(not_finite, "has values that are NaN or infinite");
  note_unknown(without_matrix, "has no matrix of 1,000 elements or more, and a transform sends vectors unchanged");
  if (const std::string note = busy.note(); !note.empty()) console.line("note: " + note);
  const ordered_json profile{
      {"schema", "deepreduce-profile-1"},
      {"date", date_text()},
      {"commit", compare::commit()},
      {"machine", machine_json()},
      {"conditions", {{"ranks", o.ranks}, {"threads", std::max(o.threads, 1U)}, {"data", data.pool.name}}},
      {"costs", costs},
      {"frames", frames},
      {"errors", errors}};
  compare::write_output(o.output, profile.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
  return status;
}

}  // namespace dr::calibrate
