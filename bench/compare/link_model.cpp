#include "link_model.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

namespace dr::compare {
namespace {

constexpr double verdict_bytes = 256;  // that each rank sends to each other before an output is written

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw std::invalid_argument("'" + std::string(text) + "': " + why);
}

// A positive number (or 0 where that is fine) at the front of `rest`, which keeps what is behind it.
double take_number(std::string_view text, std::string_view& rest, bool may_be_zero) {
  double number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0 || (number == 0 && !may_be_zero))
    refuse(text, "'" + std::string(rest) + "' does not begin with a number above 0");
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  return number;
}

double bits_in(std::string_view text, std::string_view unit) {
  if (unit.empty()) return 1;
  double factor = 1;
  std::string_view rest = unit;
  constexpr std::string_view prefixes = "kMGT";
  if (rest.starts_with('K')) rest.remove_prefix(1), factor = 1e3;
  if (const size_t power = prefixes.find(rest.empty() ? '?' : rest[0]); power != prefixes.npos) {
    rest.remove_prefix(1);
    for (size_t i = 0; i <= power; ++i) factor *= 1e3;
  }
  for (const std::string_view bit : {"b/s", "bit/s", "bits/s", "bps"})
    if (rest == bit) return factor;
  if (rest == "B/s") return 8 * factor;
  refuse(text, "'" + std::string(unit) + "' is no unit of a rate; b/s, kb/s, Mb/s, Gb/s, Mbit/s, Gbps, MB/s, … are");
}

double ns_in(std::string_view text, std::string_view unit) {
  if (unit == "ns") return 1;
  if (unit == "us" || unit == "µs") return 1e3;
  if (unit == "ms") return 1e6;
  if (unit == "s") return 1e9;
  refuse(text, "'" + std::string(unit) + "' is no unit of a latency; ns, us, ms and s are");
}

double time_of(double bytes, const link& l) { return 8e9 * bytes / l.bits_per_second; }

}  // namespace

link parse_link(std::string_view text) {
  const size_t comma = text.find(',');
  std::string_view rest = text.substr(0, comma);
  link l;
  l.bits_per_second = take_number(text, rest, false);
  l.bits_per_second *= bits_in(text, rest);
  if (comma != text.npos) {
    rest = text.substr(comma + 1);
    l.latency_ns = take_number(text, rest, true);
    l.latency_ns *= ns_in(text, rest);
  }
  return l;
}

schedule read_schedule(std::string_view stage) {
  schedule how;
  const size_t equals = stage.find('=');
  if (equals == stage.npos) return how;
  const std::string_view name = stage.substr(equals + 1, stage.find('(') - equals - 1);
  how.kind = name == "owner"       ? schedule::owner
             : name == "ring"      ? schedule::ring
             : name == "hierarchy" ? schedule::hierarchy
                                   : schedule::gather;
  if (const size_t at = stage.find("inner="); at != stage.npos)
    std::from_chars(stage.data() + at + 6, stage.data() + stage.size(), how.inner);
  return how;
}

double ring_ns(double bytes, uint32_t ranks, const link& l) {
  const double n = ranks;
  return 2 * (n - 1) * (l.latency_ns + time_of(bytes / n, l));
}

double step_ns(const step_costs& plan, const schedule& how, uint32_t ranks, const link& l) {
  const double n = ranks, e = plan.sparsify_ns + plan.encode_ns, t = time_of(plan.frame_bytes, l);
  const double g = plan.sum_growth, latency = l.latency_ns;
  const double agreement = latency + (n - 1) * time_of(verdict_bytes, l);
  switch (how.kind) {
    case schedule::owner:
      return e + latency + (n - 1) * t / n + plan.merge_ns / n + e / n + latency + (n - 1) * g * t / n +
             plan.decode_ns * g + agreement;
    case schedule::ring:
      // The sum of k ranks, on its way, is (1 + g) / 2 on average, and g where it goes round.
      return e + (n - 1) * (plan.decode_ns / n + 2 * latency + (1 + 3 * g) / 2 * t / n) + plan.decode_ns * g +
             agreement;
    case schedule::hierarchy: {
      const double inner = std::min<double>(how.inner, n), hosts = std::ceil(n / inner);
      const double below = inner > 1 ? 2 * latency + (inner - 1) * time_of(plan.dense_bytes, l) : 0;
      return below + e + (hosts > 1 ? latency : 0) + (hosts - 1 + (inner - 1) * hosts) * t + plan.merge_ns * hosts / n +
             agreement;
    }
    case schedule::gather: break;
  }
  return e + latency + (n - 1) * t + plan.merge_ns + agreement;
}

double pays_below(const step_costs& plan, double bytes, uint32_t ranks) {
  const double n = ranks, saved_bits = 8 * (n - 1) * (2 * bytes / n - plan.frame_bytes);
  const double seconds = (plan.sparsify_ns + plan.encode_ns + plan.merge_ns) * 1e-9;
  return saved_bits > 0 && seconds > 0 ? saved_bits / seconds : 0;
}

const char* const model_help =
    R"(--link RATE[,LATENCY] models one step of --ranks N ranks from the measured times and bytes. It is a model: nothing
overlaps, and copies between a GPU and its host are not counted. L is the latency, D the time of the dense tensor on the
link, t that of a frame, e = sparsify + encode, and a = L + (N - 1) 256 bytes on the link: the ranks agree before they write.
  dense_step_ns   ring all-reduce of the dense tensor: 2 (N - 1) (L + D / N). Its additions are not counted
  bf16_step_ns    the same in 16 bits an element; the conversion is not counted
  gather_step_ns  e + L + (N - 1) t + merge + a
  step_ns         by the plan's exchange= stage, gather if it has none; its parts do not overlap:
    owner         e + L + (N - 1) t / N + merge / N + e / N + L + (N - 1) g t / N + g decode + a
    ring          e + (N - 1) (decode / N + 2 L + (1 + 3 g) / 2 t / N) + g decode + a
    hierarchy     e + (h - 1 + (inner - 1) h) t + merge h / N + a, of h = ceil(N / inner) hosts; if h > 1: + L;
                  if inner > 1: + 2 L + (inner - 1) D
                  g: the frame of a sum / the frame of a rank: 1 behind a sparsifier, else the least of N and d / support
  verdict         against the faster ring: pays, slower, or even: within the measured spread
pays_below: the speed of each rank's link under which a gather is faster than a ring all-reduce of the dense tensor:
e + merge + 8 (N - 1) bytes / speed < 16 (N - 1) / N dense bytes / speed. Latency is not counted. 0: at no speed.
The dense tensor of f16 and bf16 inputs has 16 bits an element.
)";

}  // namespace dr::compare
