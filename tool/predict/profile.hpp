// A profile: costs of plans on a machine and speeds of its links, measured by `deepreduce calibrate`
// (docs/profile.schema.json). Times in ns, sizes in bytes, rates in bit/s.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dr::predict {

// Linear between two samples; elsewhere max(floor, base + slope · x), fitted for x in [from, to]; to = 0: unknown range. (A
// fit has no knee where tensors outgrow a cache; samples have.)
struct curve {
  double floor = 0, base = 0, slope = 0, from = 0, to = 0;
  std::vector<std::pair<double, double>> samples{};  // (x, measured value), x ascends
  double operator()(double x) const;
  // All values times `factor`: another machine, frames of another size.
  curve scaled(double factor) const;
  // The cost above that of x = 0 times `factor`.
  curve with_slope(double factor) const;
};

// The costs of a plan without its stages `exchange` and `bucket`, for one tensor of n elements.
struct plan_profile {
  std::string plan;
  std::optional<curve> encode, decode;
  std::optional<curve> merge;                         // of one frame, added to a dense tensor
  std::optional<curve> frame;                         // bytes
  std::vector<std::pair<double, double>> sum_growth;  // (ranks, frame of their sum / frame of one)
  std::optional<curve> add;                           // adds a dense tensor to another: only with `index=all value=raw`
  std::optional<double> error;                        // |g - c| / |g| of the data, in one step
};

struct measured_link {
  std::string transport;
  uint32_t ranks = 0, ranks_per_host = 0;
  double latency_ns = 0, bits_per_second = 0;
  double port_bits_per_second = 0;            // when every rank sends to all others; 0: not measured
  std::optional<curve> allreduce, allgather;  // time over bytes of a rank
  // On one machine, in any network namespaces; 0: as ranks_per_host.
  uint32_t ranks_per_machine = 0;
  // Cost of a message, and of further simultaneous ones, while all ranks send; 0: not measured.
  double hop_ns = 0, message_ns = 0;
  double burst_bytes = 0, burst_bits_per_second = 0;  // as in link
};

struct profile {
  std::string where;    // the file
  std::string machine;  // "Xeon …, 2 cores"
  std::string date, commit;
  double cores = 0;               // 0: unknown
  double ranks = 1, threads = 1;  // that measured at the same time; threads of each
  std::vector<plan_profile> plans;
  std::vector<measured_link> links;
  std::optional<double> slowdown;   // of computing while communication runs
  double skew_ns = 0, hook_ns = 0;  // as in hook_settings; 0: not measured
};

// The slowdown of computing if `ranks` share a machine, relative to the measurement; cores are shared fairly. At least 1,
// since costs measured with too few cores are unknown for more.
double sharing(const profile& p, double ranks);

// Lines below a result: assumptions that were not measured, without duplicates.
using note_list = std::set<std::string>;

// Throws std::runtime_error that names the file, the place in it and the value.
profile read_profile(const std::string& path);
profile parse_profile(const nlohmann::json& text, const std::string& where);

// The entry with the plan's costs: for the text itself, else without `exchange` and `bucket`, else also without `feedback`,
// with a note. nullptr: none. `text`: canonical.
const plan_profile* find_plan(const profile& p, const std::string& text, note_list* notes = nullptr);

// A plan without exchange= and bucket=, which do not change a rank's computing; `bare`: also without feedback. A text that is
// not a plan (torch's powersgd) is unchanged.
const std::string& local_plan(const std::string& text);
const std::string& bare_plan(const std::string& text);

// ---- For the readers of JSON ---------------------------------------------------------------------------------

// Checks for an object; `what` names it. Throws std::runtime_error.
nlohmann::json parse_json(std::string_view text, const std::string& where, const char* what);
nlohmann::json read_json(const std::string& path, const char* what);
// A finite number from `low` to `high`. Throws std::runtime_error.
double number_at(const nlohmann::json& object, const char* key, const std::string& where, double low = 0,
                 std::optional<double> otherwise = {}, double high = 1e18);
std::string text_at(const nlohmann::json& object, const char* key, const std::string& otherwise = "");

}  // namespace dr::predict
