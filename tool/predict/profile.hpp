// A profile: what plans cost on a machine, and what its links carry, as `deepreduce calibrate` measured it
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

// Between two samples the line through them; elsewhere max(floor, base + slope · x), fitted for x in [from, to]. to = 0:
// nobody said where. (A fit has no knee where tensors outgrow a cache; samples have.)
struct curve {
  double floor = 0, base = 0, slope = 0, from = 0, to = 0;
  std::vector<std::pair<double, double>> samples{};  // (x, what was measured there), x ascends
  double operator()(double x) const;
  // The result and the slope times `factor`: another machine, frames of another size.
  curve scaled(double factor) const;
  // What is above the cost of x = 0 times `factor`.
  curve with_slope(double factor) const;
};

// What a plan costs, without its stages `exchange`, `bucket`: one tensor of n elements.
struct plan_profile {
  std::string plan;
  std::optional<curve> encode, decode;
  std::optional<curve> merge;                         // of one frame, added to a dense tensor
  std::optional<curve> frame;                         // bytes
  std::vector<std::pair<double, double>> sum_growth;  // (ranks, frame of their sum / frame of one)
  std::optional<curve> add;                           // of a dense tensor to another: beside `index=all value=raw`
  std::optional<double> error;                        // |g - c| / |g| of the data, in one step
};

struct measured_link {
  std::string transport;
  uint32_t ranks = 0, ranks_per_host = 0;
  double latency_ns = 0, bits_per_second = 0;
  double port_bits_per_second = 0;            // where each rank sends to all others; 0: not measured
  std::optional<curve> allreduce, allgather;  // ns of so many bytes of a rank
  // On one machine, in whatever network namespaces; 0: as ranks_per_host.
  uint32_t ranks_per_machine = 0;
  // A message, and each further one at the same time, while all ranks send; 0: not measured.
  double hop_ns = 0, message_ns = 0;
  double burst_bytes = 0, burst_bits_per_second = 0;  // as of link
};

struct profile {
  std::string where;    // the file
  std::string machine;  // "Xeon …, 2 cores"
  std::string date, commit;
  double cores = 0;               // 0: unknown
  double ranks = 1, threads = 1;  // that measured costs at the same time; of each
  std::vector<plan_profile> plans;
  std::vector<measured_link> links;
  std::optional<double> slowdown;   // of computing while communication runs
  double skew_ns = 0, hook_ns = 0;  // as of hook_settings; 0: not measured
};

// By how much computing is slower where so many ranks share a machine than where costs were measured: a core is shared
// fairly. At least 1, for costs that were measured with too few cores are not known without.
double sharing(const profile& p, double ranks);

// Lines under a result: what a figure rests on that was not measured. Each once.
using note_list = std::set<std::string>;

// Throws std::runtime_error that names the file, the place in it and the value.
profile read_profile(const std::string& path);
profile parse_profile(const nlohmann::json& text, const std::string& where);

// The entry that has the plan's costs: of the text itself, else without `exchange` and `bucket`, else also without
// `feedback`, which a note tells. nullptr: there is none. `text`: canonical.
const plan_profile* find_plan(const profile& p, const std::string& text, note_list* notes = nullptr);

// A plan without exchange= and bucket=, which make no difference to what a rank computes; `bare`: nor with feedback. A text
// that is not a plan (torch's powersgd) is itself.
const std::string& local_plan(const std::string& text);
const std::string& bare_plan(const std::string& text);

// ---- For the readers of JSON ---------------------------------------------------------------------------------

// An object; `what` it should be. Throws std::runtime_error.
nlohmann::json parse_json(std::string_view text, const std::string& where, const char* what);
nlohmann::json read_json(const std::string& path, const char* what);
// A finite number from `least` to `most`. Throws std::runtime_error.
double number_at(const nlohmann::json& object, const char* key, const std::string& where, double least = 0,
                 std::optional<double> otherwise = {}, double most = 1e18);
std::string text_at(const nlohmann::json& object, const char* key, const std::string& otherwise = "");

}  // namespace dr::predict
