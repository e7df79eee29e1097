#include "plan_sweep.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>

namespace dr::compare {
namespace {

constexpr int deepest = 32;  // parentheses in parentheses; a plan has two

using texts = std::vector<std::string>;

struct literal {
  double value;
  bool integer;  // no point and no exponent
};

std::optional<literal> read_literal(std::string_view text) {
  literal n{0, text.find_first_not_of("-0123456789") == text.npos};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n.value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(n.value)) return std::nullopt;
  return n;
}

// Shortest text that reads back as the same number, without an exponent from 1e-5 up.
std::string number_text(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{}", value);
}

void append_new(texts& list, std::string text) {
  if (list.empty() || list.back() != text) list.push_back(std::move(text));
}

class expander {
 public:
  expander(std::string_view text, size_t limit) : text_(text), limit_(limit) {}

  texts run() {
    texts all = list(0);
    if (at_ < text_.size()) refuse(fmt::format("position {}: ')' without '('", at_));
    return all;
  }

 private:
  [[noreturn]] static void refuse(const std::string& what) { throw sweep_error(what); }
  char here() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void within_limit(size_t a, size_t b) const {
    if (a != 0 && b > limit_ / a) refuse(fmt::format("more than {} plans; narrow a range, or raise --limit", limit_));
  }

  // Each of a before each of b; b varies fastest.
  texts product(const texts& a, const texts& b) const {
    within_limit(a.size(), b.size());
    texts all;
    all.reserve(a.size() * b.size());
    for (const std::string& x : a)
      for (const std::string& y : b) all.push_back(x + y);
    return all;
  }

  // Up to the end or to a ')' that nothing here has opened.
  texts list(int depth) {
    texts all{""};
    while (true) {
      const size_t begin = at_;
      texts piece = alternatives(depth);
      const char separator = here();
      if (separator == '=' && piece.size() > 1)
        refuse(fmt::format("position {}: alternatives belong after '=', not before", begin));
      all = product(all, piece);
      if (separator == '\0' || separator == ')') return all;
      for (std::string& text : all) text += separator;
      ++at_;
    }
  }

  // One piece.
  texts alternatives(int depth) {
    texts all;
    bool several = false;
    while (true) {
      const size_t begin = at_;
      for (std::string& text : alternative(depth)) {
        texts values = range(text);
        within_limit(1, all.size() + values.size());
        std::move(values.begin(), values.end(), std::back_inserter(all));
      }
      several |= here() == '|';
      if (several && at_ == begin) refuse(fmt::format("position {}: an alternative is empty", begin));
      if (here() != '|') return all;
      ++at_;
    }
  }

  texts alternative(int depth) {
    texts all{""};
    while (true) {
      const char c = here();
      if (c == '\0' || c == ' ' || c == ',' || c == '=' || c == ')' || c == '|') return all;
      ++at_;
      if (c != '(') {
        for (std::string& text : all) text += c;
        continue;
      }
      const size_t open = at_ - 1;
      if (depth == deepest) refuse(fmt::format("position {}: more than {} parentheses in one another", open, deepest));
      const bool group = open == 0 || std::string_view(" ,=(|+").find(text_[open - 1]) != std::string_view::npos;
      texts inside = group ? alternatives(depth + 1) : list(depth + 1);
      if (here() == '\0') refuse(fmt::format("position {}: '(' without ')'", open));
      if (here() != ')')
        refuse(
            fmt::format("position {}: '{}' in a group of alternatives, which are parts of one value: value=(raw|half)",
                        at_, here()));
      ++at_;
      if (!group)
        for (std::string& text : inside) text = '(' + text + ')';
      all = product(all, inside);
    }
  }

  // The values of a range; any other text itself.
  texts range(const std::string& text) const {
    const size_t dots = text.find("..");
    if (dots == text.npos) return {text};
    const size_t slash = text.find('/', dots);
    const auto low = read_literal(std::string_view(text).substr(0, dots));
    const auto high =
        read_literal(std::string_view(text).substr(dots + 2, slash == text.npos ? slash : slash - dots - 2));
    if (!low || !high) refuse(fmt::format("'{}': a range is NUMBER..NUMBER or NUMBER..NUMBER/COUNT", text));
    if (low->value > high->value) refuse(fmt::format("'{}': {} is above {}", text, low->value, high->value));
    const bool integers = low->integer && high->integer;
    if (slash == text.npos && integers) return every_integer(*low, *high, text);
    if (low->value <= 0)
      refuse(fmt::format("'{}': values with equal ratios need ends above 0, not {}", text, low->value));
    if (slash == text.npos) return decades(low->value, high->value);
    const auto count = read_literal(std::string_view(text).substr(slash + 1));
    if (!count || !count->integer || count->value < 2)
      refuse(fmt::format("'{}': the count after '/' is an integer of at least 2", text));
    return equal_ratios(low->value, high->value, count->value, integers, text);
  }

  texts every_integer(literal low, literal high, const std::string& text) const {
    if (std::max(std::abs(low.value), std::abs(high.value)) > 9007199254740992.0)
      refuse(fmt::format("'{}': an integer of a range is at most 2^53", text));
    if (high.value - low.value >= static_cast<double>(limit_))
      refuse(fmt::format("'{}': more than {} values; '{}/10' has ten", text, limit_, text));
    texts all;
    for (auto i = static_cast<int64_t>(low.value); i <= static_cast<int64_t>(high.value); ++i)
      all.push_back(std::to_string(i));
    return all;
  }

  static texts decades(double low, double high) {
    texts all;
    append_new(all, number_text(low));
    for (int power = static_cast<int>(std::floor(std::log10(low))) - 1; power <= 308; ++power)
      for (const int digit : {1, 2, 5}) {
        const double value = read_literal(fmt::format("{}e{}", digit, power)).value_or(literal{0, false}).value;
        if (value >= high) {
          append_new(all, number_text(high));
          return all;
        }
        if (value > low) append_new(all, number_text(value));
      }
    append_new(all, number_text(high));
    return all;
  }

  texts equal_ratios(double low, double high, double count, bool integers, const std::string& text) const {
    if (count > static_cast<double>(limit_)) refuse(fmt::format("'{}': more than {} values", text, limit_));
    texts all;
    for (double i = 0; i < count; ++i) {
      const double value = low * std::pow(high / low, i / (count - 1));
      const double rounded = integers ? std::round(value) : std::strtod(fmt::format("{:.3g}", value).c_str(), nullptr);
      append_new(all, number_text(i == 0 ? low : i + 1 == count ? high : rounded));
    }
    return all;
  }

  std::string_view text_;
  size_t limit_, at_ = 0;
};

}  // namespace

std::vector<std::string> expand(std::string_view text, size_t limit) { return expander(text, limit).run(); }

}  // namespace dr::compare
