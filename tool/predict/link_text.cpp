#include "link_text.hpp"

#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>

namespace dr::predict {
namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw std::invalid_argument("'" + std::string(text) + "': " + why);
}

// Parses a positive number (or 0 if allowed) at the front of `rest` and removes it.
double take_number(std::string_view text, std::string_view& rest, bool may_be_zero) {
  double number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0 || (number == 0 && !may_be_zero))
    refuse(text, "'" + std::string(rest) + "' does not begin with a number above 0");
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  return number;
}

constexpr double max_value = 1e18;  // ns, bit/s

double bounded(std::string_view text, double value, const char* unit) {
  if (!(value <= max_value)) refuse(text, std::string("above 1e18 ") + unit);
  return value;
}

// `text` from its beginning up to `end`, without blanks at its end: a number without its unit.
std::string number_before(std::string_view text, std::string_view end) {
  std::string number(text.substr(0, static_cast<size_t>(end.data() - text.data())));
  number.erase(number.find_last_not_of(' ') + 1);
  return number;
}

double bits_in(std::string_view text, std::string_view unit) {
  constexpr const char* known = "b/s, kb/s, Mb/s, Gb/s, Mbit/s, Gbps, MB/s, …";
  if (unit.empty()) {
    const std::string number = number_before(text, unit);
    refuse(text, number + " of what? " + number + "Gb/s, say; units of a rate: " + known);
  }
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
  std::string hint = std::string("; known: ") + known;
  for (const std::string_view bit : {"", "b", "bit", "B"})  // 10G, 10Gb, 10Gbit, 10GB
    if (rest == bit) hint = "; is it " + number_before(text, unit) + std::string(unit) + (bit.empty() ? "b/s?" : "/s?");
  refuse(text, "'" + std::string(unit) + "' is not a unit of a rate" + hint);
}

double ns_in(std::string_view text, std::string_view unit, const char* what) {
  if (unit == "ns") return 1;
  if (unit == "us" || unit == "µs") return 1e3;
  if (unit == "ms") return 1e6;
  if (unit == "s") return 1e9;
  if (unit.empty()) {
    const size_t comma = text.find(',');
    const std::string number = number_before(text.substr(comma == text.npos ? 0 : comma + 1), unit);
    refuse(text, number + " of what? " + number + "us, say; units of a " + what + ": ns, us, ms, s");
  }
  refuse(text, "'" + std::string(unit) + "' is not a unit of a " + what + "; known: ns, us, ms, s");
}

}  // namespace

link parse_link(std::string_view text) {
  const size_t comma = text.find(',');
  std::string_view rest = text.substr(0, comma);
  link l;
  l.bits_per_second = take_number(text, rest, false);
  l.bits_per_second = bounded(text, l.bits_per_second * bits_in(text, rest), "bit/s");
  if (comma != text.npos) {
    rest = text.substr(comma + 1);
    l.latency_ns = take_number(text, rest, true);
    l.latency_ns = bounded(text, l.latency_ns * ns_in(text, rest, "latency"), "ns");
    l.has_latency = true;
  }
  return l;
}

double parse_time(std::string_view text) {
  std::string_view rest = text;
  const double number = take_number(text, rest, true);
  return bounded(text, number * ns_in(text, rest, "time"), "ns");
}

}  // namespace dr::predict
