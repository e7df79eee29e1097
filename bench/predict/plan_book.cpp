#include "plan_book.hpp"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "deepreduce/deepreduce.hpp"

namespace dr::predict {
namespace {

constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

constexpr std::string_view blank = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(blank);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

// Well-formed: what Python's decoder takes (RFC 3629).
bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
    const unsigned first = byte(0), second = byte(1);
    size_t more = 0;
    if (first >= 0x80) {
      if (first < 0xc2 || first > 0xf4) return false;
      more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
      // Neither longer than it need be, nor a surrogate, nor above U+10FFFF.
      if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) ||
          (first == 0xf4 && second > 0x8f))
        return false;
    }
    for (size_t i = 1; i <= more; ++i)
      if ((byte(i) & 0xc0) != 0x80) return false;
    at += 1 + more;
  }
  return true;
}

// Without its comment: `#` at the beginning, or behind a blank.
std::string_view code_of(std::string_view line) {
  for (size_t at = line.find('#'); at != line.npos; at = line.find('#', at + 1))
    if (at == 0 || blank.find(line[at - 1]) != blank.npos) return trimmed(line.substr(0, at));
  return trimmed(line);
}

// Code points, as Python has them; a byte that is no UTF-8 stands for itself.
std::u32string points_of(std::string_view text) {
  std::u32string points;
  for (size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
    if (!is_utf8(text.substr(at, 1 + more))) more = 0;  // (0xc1 0x9b is no '[')
    char32_t point = more == 0 ? first : first & (0x3f >> more);
    for (size_t i = 1; i <= more; ++i) point = point << 6 | (text[at + i] & 0x3f);
    points += point;
    at += 1 + more;
  }
  return points;
}

// Behind the bracket at `at`: where its set ends; npos: it is no set, but the character '['.
size_t end_of_set(std::u32string_view pattern, size_t at) {
  size_t end = at + 1;
  if (end < pattern.size() && pattern[end] == U'!') ++end;
  if (end < pattern.size() && pattern[end] == U']') ++end;
  return pattern.find(U']', end);
}

bool in_set(std::u32string_view set, char32_t c) {
  const bool without = set.starts_with(U'!');
  if (without) set.remove_prefix(1);
  bool found = false;
  for (size_t i = 0; i < set.size(); ++i) {
    if (i + 2 < set.size() && set[i + 1] == U'-') {
      found |= set[i] <= c && c <= set[i + 2];
      i += 2;
    } else {
      found |= set[i] == c;
    }
  }
  return found != without;
}

}  // namespace

bool matches(std::string_view pattern_text, std::string_view name_text) {
  const std::u32string points = points_of(pattern_text), name = points_of(name_text);
  const std::u32string_view pattern = points;
  size_t p = 0, n = 0, star = pattern.npos, from = 0;  // back to the last star, which takes one more
  while (n < name.size()) {
    const char32_t c = p < pattern.size() ? pattern[p] : U'\0';
    const size_t end = c == U'[' ? end_of_set(pattern, p) : pattern.npos;
    if (c == U'*' && p < pattern.size()) {
      star = p++, from = n;
    } else if (end != pattern.npos && in_set(pattern.substr(p + 1, end - p - 1), name[n])) {
      p = end + 1, ++n;
    } else if (end == pattern.npos && p < pattern.size() && (c == U'?' || c == name[n])) {
      ++p, ++n;
    } else if (star != pattern.npos) {
      p = star + 1, n = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == U'*') ++p;
  return p == pattern.size();
}

std::string pattern_of(std::string_view name) {
  std::string text;
  for (const char c : name) text += c == '*' || c == '?' || c == '[' ? std::string{'[', c, ']'} : std::string{c};
  return text;
}

plan_book parse_book(std::string_view text, const std::string& where) {
  plan_book book;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (++number == 1 && line.starts_with(byte_order_mark)) line.remove_prefix(3);
    const auto refuse = [&](const std::string& why) {
      throw std::runtime_error(fmt::format("{}: line {}: {}", where, number, why));
    };
    if (!is_utf8(line)) refuse("no UTF-8");
    line = code_of(line);
    at = end + 1;
    if (line.empty()) continue;
    const size_t colon = line.rfind(':');
    if (colon == line.npos) refuse(fmt::format("'{}' is no `pattern: plan`", line));
    const std::string_view pattern = trimmed(line.substr(0, colon)), plan_text = trimmed(line.substr(colon + 1));
    if (pattern.empty()) refuse("no pattern before the colon");
    if (plan_text.empty()) refuse("no plan behind the colon; `dense` leaves a tensor as it is");
    book_line& entry = book.emplace_back(book_line{std::string(pattern), {}, number});
    if (plan_text == "dense") continue;
    try {
      entry.plan = plan(std::string(plan_text)).text();
    } catch (const error& e) {
      refuse(fmt::format("plan '{}': {}", plan_text, e.detail.message));
    }
  }
  return book;
}

plan_book read_book(const std::string& path) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) throw std::runtime_error(path + ": is a directory, not a plan book");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return parse_book(text, path);
}

const std::string& plan_in(const plan_book& book, std::string_view name) {
  static const std::string dense;
  for (const book_line& line : book)
    if (matches(line.pattern, name)) return line.plan;
  return dense;
}

std::vector<std::string> idle_lines(const plan_book& book, const std::string& where,
                                    const std::vector<std::string>& tensors) {
  std::vector<std::string> idle;
  if (book.empty()) idle.push_back(where + ": no line; all tensors are dense");
  std::vector<bool> taken(tensors.size(), false);
  for (const book_line& line : book) {
    bool matched = false, reached = false;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!matches(line.pattern, tensors[i])) continue;
      matched = true;
      reached |= !taken[i];
      taken[i] = true;
    }
    if (!reached && !(matched && line.pattern == "*"))  // (which a book may end with, for names to come)
      idle.push_back(
          fmt::format("{} line {}: pattern '{}' {}", where, line.number, line.pattern,
                      matched ? "is never reached: lines before it match its tensors" : "matches no tensor"));
  }
  return idle;
}

std::string book_text(const plan_book& book, const std::string& comment) {
  std::string text;
  for (size_t at = 0; at < comment.size();) {
    const size_t end = std::min(comment.find('\n', at), comment.size());
    text += "# " + comment.substr(at, end - at) + "\n";
    at = end + 1;
  }
  // (Of the file's first line a mark would be taken off.)
  if (text.empty() && !book.empty() && book[0].pattern.starts_with(byte_order_mark)) text = "\n";
  for (const book_line& line : book)
    text += fmt::format("{}: {}\n", line.pattern, line.plan.empty() ? "dense" : line.plan);
  return text;
}

}  // namespace dr::predict
