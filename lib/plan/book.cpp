#include "plan/book.hpp"

#include <algorithm>

namespace dr {
namespace {

constexpr std::string_view byte_order_mark = "\xef\xbb\xbf", blank = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(blank);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

// Bytes of the code point at the front (RFC 3629); 0: it is not well-formed.
size_t point_size(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  // Neither overlong, nor a surrogate, nor above U+10FFFF.
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) ||
      (first == 0xf4 && second > 0x8f))
    return 0;
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  for (size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return size;
}

// The first byte that is not UTF-8, or a NUL; npos: there is none.
size_t first_fault(std::string_view text) {
  for (size_t at = 0, size; at < text.size(); at += size) {
    size = text[at] == 0 ? 0 : point_size(text.substr(at));
    if (size == 0) return at;
  }
  return text.npos;
}

// Code points; a byte that is not UTF-8 stands for itself.
std::u32string points_of(std::string_view text) {
  std::u32string points;
  for (size_t at = 0; at < text.size();) {
    const size_t size = std::max<size_t>(1, point_size(text.substr(at)));
    const auto first = static_cast<unsigned char>(text[at]);
    char32_t point = size == 1 ? first : first & (0x7f >> size);
    for (size_t i = 1; i < size; ++i) point = point << 6 | (text[at + i] & 0x3f);
    points += point;
    at += size;
  }
  return points;
}

size_t find_comment(std::string_view line) {
  for (size_t at = line.find('#'); at != line.npos; at = line.find('#', at + 1))
    if (at == 0 || blank.find(line[at - 1]) != blank.npos) return at;
  return line.npos;
}

// The end of the set that begins with the bracket at `at`; npos: there is no set, and '[' is a character.
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

std::string quoted(std::string_view text) { return '\'' + std::string(text) + '\''; }

dr_status parse_line(std::string_view line, uint64_t number, const line_handler& handle, dr_error& error) {
  if (const size_t at = first_fault(line); at != line.npos)
    return fail(error, DR_E_ARGUMENT, "byte %zu is 0x%02x: a plan book is UTF-8 without NUL", at + 1,
                static_cast<unsigned>(static_cast<unsigned char>(line[at])));
  line = trimmed(line.substr(0, find_comment(line)));
  if (line.empty()) return DR_OK;
  const size_t colon = line.rfind(':');
  if (colon == line.npos) return fail(error, DR_E_ARGUMENT, "%s is not `pattern: plan`", quoted(line).c_str());
  const std::string_view pattern = trimmed(line.substr(0, colon)), plan = trimmed(line.substr(colon + 1));
  if (pattern.empty()) return fail(error, DR_E_ARGUMENT, "no pattern before the colon");
  if (plan.empty())
    return fail(error, DR_E_ARGUMENT, "pattern %s: no plan after the colon; `dense` leaves a tensor as it is",
                quoted(pattern).c_str());
  const auto text = plan == "dense" ? std::nullopt : std::optional(std::string(plan));
  if (handle({std::string(pattern), number}, text, error))
    return prefix(error, "pattern %s: ", quoted(pattern).c_str());
  return DR_OK;
}

}  // namespace

dr_status parse_book(std::string_view text, const std::string& where, const line_handler& handle, dr_error& error) {
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  uint64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (parse_line(text.substr(at, end - at), ++number, handle, error)) {
      error.where = number;
      return prefix(error, "%s: line %llu: ", where.c_str(), static_cast<unsigned long long>(number));
    }
    at = end + 1;
  }
  return DR_OK;
}

dr_status check_pattern(std::string_view pattern, dr_error& error) {
  if (pattern.empty()) return fail(error, DR_E_ARGUMENT, "a pattern has at least one character");
  if (pattern != trimmed(pattern) || pattern.find('\n') != pattern.npos || find_comment(pattern) != pattern.npos ||
      first_fault(pattern) != pattern.npos)
    return fail(
        error, DR_E_ARGUMENT,
        "pattern %s: no line of a book holds one with a line's end, a blank at an end, ' #', or bytes that are not "
        "UTF-8",
        quoted(pattern).c_str());
  return DR_OK;
}

bool matches_pattern(std::string_view pattern_text, std::string_view name_text) {
  const std::u32string points = points_of(pattern_text), name = points_of(name_text);
  const std::u32string_view pattern = points;
  size_t p = 0, n = 0, star = pattern.npos, from = 0;  // on a mismatch the last star matches one character more
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

std::string line_text(std::string_view pattern, std::string_view plan, bool first) {
  // (A byte order mark at the beginning of a text would be skipped.)
  std::string text = first && pattern.starts_with(byte_order_mark) ? "\n" : "";
  ((text += pattern) += ": ") += plan;
  return text += '\n';
}

}  // namespace dr
