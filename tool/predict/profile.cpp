#include "profile.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>

#include "deepreduce/deepreduce.hpp"

namespace dr::predict {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw std::runtime_error(where + ": " + why);
}

const json& list_at(const json& object, const char* key, const std::string& where) {
  static const json none = json::array();
  if (!object.contains(key)) return none;
  if (!object.at(key).is_array()) refuse(where, fmt::format("'{}' is not a list", key));
  return object.at(key);
}

// A list of [x, y], both from 0 to 1e18; further entries are ignored.
std::vector<std::pair<double, double>> read_points(const json& object, const char* key, const char* form,
                                                   const std::string& where) {
  const auto fits = [](const json& x) { return x.is_number() && x.get<double>() >= 0 && x.get<double>() <= 1e18; };
  std::vector<std::pair<double, double>> points;
  for (const json& point : list_at(object, key, where)) {
    if (!point.is_array() || point.size() < 2 || !fits(point[0]) || !fits(point[1]))
      refuse(where, fmt::format("{} has {}, not {} of numbers from 0 to 1e18", key, point.dump().substr(0, 80), form));
    points.emplace_back(point[0].get<double>(), point[1].get<double>());
  }
  std::ranges::sort(points);
  return points;
}

curve read_curve(const json& object, const char* base, const char* slope, const std::string& where) {
  constexpr double any = -1e18;  // a fit may be negative; its floor is not
  curve c;
  c.floor = number_at(object, "floor_ns", where, 0, 0);
  c.base = number_at(object, base, where, any);
  c.slope = number_at(object, slope, where, any);
  c.from = number_at(object, "from", where, 0, 0);
  c.to = number_at(object, "to", where, 0, 0);
  c.samples = read_points(object, "samples", "[size, median]", where);
  const auto same_size = [](const auto& x, const auto& y) { return x.first == y.first; };
  c.samples.erase(std::unique(c.samples.begin(), c.samples.end(), same_size), c.samples.end());
  // Costs ascend with size: a size that costs more than a larger one was disturbed.
  for (size_t i = c.samples.size(); i-- > 1;)
    c.samples[i - 1].second = std::min(c.samples[i - 1].second, c.samples[i].second);
  return c;
}

std::string canonical(const std::string& text, const std::string& where) {
  try {
    return std::string(plan(text).text());
  } catch (const error& e) {
    refuse(where, fmt::format("plan '{}': {}", text, e.detail.message));
  }
}

plan_profile& entry_of(profile& p, const json& object, const std::string& where) {
  const std::string given = text_at(object, "plan");
  if (given.empty()) refuse(where, "no plan");
  // torch's own method is not a plan.
  const std::string text = given.starts_with("powersgd") ? given : canonical(given, where);
  const auto known = std::ranges::find(p.plans, text, &plan_profile::plan);
  if (known != p.plans.end()) return *known;
  p.plans.emplace_back().plan = text;
  return p.plans.back();
}

void read_costs(profile& p, const json& text) {
  size_t i = 0;
  for (const json& cost : list_at(text, "costs", p.where)) {
    const std::string where = fmt::format("{}: costs[{}]", p.where, i++);
    plan_profile& entry = entry_of(p, cost, where);
    const std::string operation = text_at(cost, "operation");
    const curve c = read_curve(cost, "base_ns", "per_element_ns", where);
    if (operation == "encode")
      entry.encode = c;
    else if (operation == "merge")
      entry.merge = c;
    else if (operation == "decode")
      entry.decode = c;
    else if (operation == "add")
      entry.add = c;
    else
      refuse(where, fmt::format("operation '{}' is not encode, merge, decode or add", operation));
  }
  i = 0;
  for (const json& frame : list_at(text, "frames", p.where)) {
    const std::string where = fmt::format("{}: frames[{}]", p.where, i++);
    plan_profile& entry = entry_of(p, frame, where);
    entry.frame = read_curve(frame, "base_bytes", "per_element_bytes", where);
    entry.frame->floor = 1;
    entry.sum_growth = read_points(frame, "sum_growth", "[ranks, factor]", where);
  }
  i = 0;
  for (const json& error : list_at(text, "errors", p.where)) {
    const std::string where = fmt::format("{}: errors[{}]", p.where, i++);
    entry_of(p, error, where).error = number_at(error, "error", where);
  }
}

std::optional<curve> read_collective(const json& link, const char* key, const std::string& where) {
  if (!link.contains(key) || link.at(key).is_null()) return {};
  return read_curve(link.at(key), "base_ns", "per_byte_ns", where + "." + key);
}

void read_links(profile& p, const json& text) {
  size_t i = 0;
  for (const json& l : list_at(text, "links", p.where)) {
    const std::string where = fmt::format("{}: links[{}]", p.where, i++);
    measured_link m;
    m.transport = text_at(l, "transport", "?");
    const auto ranks_at = [&](const char* key, double low, std::optional<double> otherwise) {
      return static_cast<uint32_t>(number_at(l, key, where, low, otherwise, 65536));
    };
    m.ranks = ranks_at("ranks", 2, {});
    m.ranks_per_host = ranks_at("ranks_per_host", 0, 0);
    m.latency_ns = number_at(l, "latency_ns", where, 0, 0);
    m.bits_per_second = number_at(l, "bits_per_second", where, 1);
    m.port_bits_per_second = number_at(l, "port_bits_per_second", where, 0, 0);
    m.ranks_per_machine = ranks_at("ranks_per_machine", 0, 0);
    m.hop_ns = number_at(l, "hop_ns", where, 0, 0);
    m.message_ns = number_at(l, "message_ns", where, 0, 0);
    // If ranks outnumber cores, a waiting rank sleeps, and a message must wake the slowest of them.
    if (m.hop_ns > 0 && p.cores > 0 && m.ranks_per_machine > p.cores) m.hop_ns += number_at(l, "rest_ns", where, 0, 0);
    m.burst_bytes = number_at(l, "burst_bytes", where, 0, 0);
    m.burst_bits_per_second = number_at(l, "burst_bits_per_second", where, 0, 0);
    m.allreduce = read_collective(l, "allreduce", where);
    m.allgather = read_collective(l, "allgather", where);
    p.links.push_back(m);
  }
}

}  // namespace

double curve::operator()(double x) const {
  const auto after = std::ranges::lower_bound(samples, x, {}, &std::pair<double, double>::first);
  if (after == samples.end() || (after == samples.begin() && after->first != x))
    return std::max(floor, base + slope * x);
  if (after->first == x) return after->second;
  const auto& [x0, y0] = after[-1];
  return y0 + (after->second - y0) * (x - x0) / (after->first - x0);
}

curve curve::scaled(double factor) const {
  curve c = *this;
  for (double* const part : {&c.floor, &c.base, &c.slope}) *part *= factor;
  for (auto& [x, y] : c.samples) y *= factor;
  return c;
}

curve curve::with_slope(double factor) const {
  curve c = *this;
  const double fixed = std::max(floor, base);
  c.slope *= factor;
  for (auto& [x, y] : c.samples) y = std::min(y, fixed) + factor * std::max(0.0, y - fixed);
  return c;
}

// The command that writes such a file.
static const char* writer_of(std::string_view what) {
  if (what == "profile") return " (`deepreduce calibrate -o profile.json` writes one)";
  return what == "model" ? " (DDPHook(record=\"model.json\") and `deepreduce capture` write one)" : "";
}

json parse_json(std::string_view text, const std::string& where, const char* what) {
  constexpr int deepest = 32;  // copying recurses
  const auto shallow = [&](int depth, json::parse_event_t, json&) {
    if (depth > deepest) refuse(where, fmt::format("lists and objects are more than {} deep", deepest));
    return true;
  };
  try {
    json parsed = json::parse(text, shallow);
    if (!parsed.is_object()) refuse(where, fmt::format("not a {}{}: no JSON object", what, writer_of(what)));
    return parsed;
  } catch (const json::parse_error& e) {
    refuse(where, fmt::format("not a {}{}: byte {} is not JSON", what, writer_of(what), e.byte));
  } catch (const json::exception& e) {
    refuse(where, e.what());
  }
}

json read_json(const std::string& path, const char* what) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) refuse(path, fmt::format("is a directory, not a {}", what));
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
  return parse_json(std::string{std::istreambuf_iterator<char>(file), {}}, path, what);
}

double number_at(const json& object, const char* key, const std::string& where, double low,
                 std::optional<double> otherwise, double high) {
  if (!object.is_object()) refuse(where, "is not an object");
  if (!object.contains(key) || object.at(key).is_null()) {
    if (otherwise) return *otherwise;
    refuse(where, fmt::format("no '{}'", key));
  }
  const json& value = object.at(key);
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < low ||
      value.get<double>() > high)
    refuse(where,
           fmt::format("'{}' is {}, not a number from {:g} to {:g}", key, value.dump().substr(0, 40), low, high));
  return value.get<double>();
}

std::string text_at(const json& object, const char* key, const std::string& otherwise) {
  return object.is_object() && object.contains(key) && object.at(key).is_string() ? object.at(key).get<std::string>()
                                                                                  : otherwise;
}

profile parse_profile(const json& text, const std::string& where) {
  profile p;
  p.where = where;
  if (const std::string schema = text_at(text, "schema"); schema != "deepreduce-profile-1")
    refuse(where, fmt::format("schema '{}' is not deepreduce-profile-1; `deepreduce calibrate` writes one", schema));
  const json machine = text.value("machine", json::object());
  p.machine = text_at(machine, "cpu", "unknown machine");
  p.cores = number_at(machine, "cores", where + ": machine", 0, 0);
  if (p.cores > 0) p.machine += fmt::format(", {:.0f} cores", p.cores);
  if (text.contains("conditions")) {
    p.ranks = std::max(1.0, number_at(text.at("conditions"), "ranks", where + ": conditions", 0, 1));
    p.threads = std::max(1.0, number_at(text.at("conditions"), "threads", where + ": conditions", 0, 1));
  }
  p.date = text_at(text, "date"), p.commit = text_at(text, "commit");
  read_costs(p, text);
  read_links(p, text);
  if (text.contains("overlap") && text.at("overlap").is_object()) {
    p.slowdown = number_at(text.at("overlap"), "slowdown", where + ": overlap", 0.5, 1, 100);
    p.skew_ns = number_at(text.at("overlap"), "skew_ns", where + ": overlap", 0, 0);
    p.hook_ns = number_at(text.at("overlap"), "hook_ns", where + ": overlap", 0, 0);
  }
  return p;
}

double sharing(const profile& p, double ranks) {
  if (p.cores <= 0) return 1;
  const auto load = [&](double r) { return std::max(1.0, r * p.threads / p.cores); };
  return std::max(1.0, load(ranks) / load(p.ranks));
}

profile read_profile(const std::string& path) { return parse_profile(read_json(path, "profile"), path); }

namespace {

struct shorter_plans {
  std::string local, bare;
};
// Cached by text.
const shorter_plans& shorter(const std::string& text) {
  static thread_local std::map<std::string, shorter_plans> known;
  const auto [at, fresh] = known.try_emplace(text, shorter_plans{text, text});
  if (fresh) try {
      const plan local = plan(text).with("exchange=gather bucket=none");
      at->second = {std::string(local.text()), std::string(local.with("feedback=none").text())};
    } catch (const error&) {  // torch's own method is not a plan
    }
  return at->second;
}

}  // namespace

const std::string& local_plan(const std::string& text) { return shorter(text).local; }
const std::string& bare_plan(const std::string& text) { return shorter(text).bare; }

const plan_profile* find_plan(const profile& p, const std::string& text, note_list* notes) {
  const auto look = [&](const std::string& name) -> const plan_profile* {
    for (const plan_profile& known : p.plans)
      if (known.plan == name) return &known;
    for (const plan_profile& known : p.plans)
      if (local_plan(known.plan) == name) return &known;
    return nullptr;
  };
  if (const plan_profile* found = look(text)) return found;
  const std::string& local = local_plan(text);
  if (const plan_profile* found = look(local)) return found;
  const auto bare = [&](const plan_profile& known) { return bare_plan(known.plan) == bare_plan(text); };
  const auto found = std::ranges::find_if(p.plans, bare);
  if (found == p.plans.end()) return nullptr;
  if (notes)
    notes->insert(fmt::format("costs of '{}' are those of '{}': the profile has them without the same feedback", local,
                              found->plan));
  return &*found;
}

}  // namespace dr::predict
