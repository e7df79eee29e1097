#include "plan/syntax.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "plan/suggestions.hpp"

namespace dr {
namespace {

constexpr size_t text_max = 4096;

bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }
// (Codecs in Python have parameters with capitals. No codec has; that it is unknown is the better error.)
bool is_key(char c) { return is_name(c) || (c >= 'A' && c <= 'Z'); }
bool is_value(char c) { return is_name(c) || c == '.' || c == '-' || c == '+' || c == 'E'; }
bool is_digits(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == text.npos; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

struct parser {
  std::string_view text;
  dr_error& error;
  size_t at = 0;

  bool done() const { return at == text.size(); }
  bool skip(char c) {
    if (done() || text[at] != c) return false;
    ++at;
    return true;
  }
  void skip_spaces() {
    while (!done() && is_space(text[at])) ++at;
  }
  template <class Accept>
  std::string_view word(Accept&& accept) {
    const size_t begin = at;
    while (!done() && accept(text[at])) ++at;
    return text.substr(begin, at - begin);
  }
  dr_status expected(const char* what) {
    if (done()) return fail(error, DR_E_ARGUMENT, "plan: %s expected at the end", what);
    const unsigned char c = static_cast<unsigned char>(text[at]);
    if (c < 0x20 || c > 0x7e)
      return fail(error, DR_E_ARGUMENT, "plan: %s expected at column %zu, not byte 0x%02x", what, at + 1, c);
    return fail(error, DR_E_ARGUMENT, "plan: %s expected at column %zu, not '%c'", what, at + 1, c);
  }

  // "0.01" of a "1%" or "1/100" whose first number is read already; "" if there is neither.
  std::string share(std::string_view first) {
    const size_t begin = at;
    double number = 0, whole = 100;
    const bool of = skip('/'), read = read_number(first, number);
    const bool is_share = of ? read && read_number(word(is_value), whole) && whole != 0 : read && skip('%');
    char text[32] = "";
    if (is_share) std::to_chars(text, text + sizeof text - 1, number / whole, std::chars_format::general, 6);
    if (!is_share) at = begin;
    return text;
  }

  // An argument without a name: topr(0.01), topr(1%), topr(ratio=0,01). OK: there is none at this place.
  dr_status unnamed(std::string_view role, const plan_call& out) {
    const size_t begin = at;
    const std::string_view raw = word(is_value);
    const std::string of_whole = share(raw), value = of_whole.empty() ? std::string(raw) : of_whole;
    const std::string written(text.substr(begin, at - begin));
    skip_spaces();
    const bool ends = !done() && (text[at] == ')' || text[at] == ',');
    at = begin;
    if (written.empty() || !ends) return DR_OK;
    if (!out.arguments.empty() && is_digits(raw) && is_digits(out.arguments.back().value)) {
      const plan_argument& before = out.arguments.back();
      return fail(error, DR_E_ARGUMENT, "plan: %s(%s=%s,%s): a number has a point, not a comma; is it %s=%s.%s?",
                  out.name.c_str(), before.key.c_str(), before.value.c_str(), written.c_str(), before.key.c_str(),
                  before.value.c_str(), written.c_str());
    }
    const std::string hint = named_argument(role, out.name, value);
    return fail(error, DR_E_ARGUMENT, "plan: %s(%s): '%s' at column %zu has no name%s%s", out.name.c_str(),
                written.c_str(), written.c_str(), begin + 1, hint.empty() ? "; arguments are key=value" : "; is it ",
                hint.empty() ? "" : (hint + '?').c_str());
  }

  dr_status call(std::string_view role, plan_call& out) {
    out.name = word(is_key);
    if (out.name == "plugin" && skip('.')) {
      const std::string_view name = word(is_key);
      if (name.empty()) return expected("a plug-in's codec");
      (out.name += '.') += name;
    }
    if (out.name.empty()) return expected("a name");
    if (!skip('(')) return DR_OK;
    skip_spaces();
    if (skip(')')) return DR_OK;
    for (;;) {
      plan_argument argument;
      skip_spaces();
      if (const dr_status s = unnamed(role, out)) return s;
      argument.key = word(is_key);
      if (argument.key.empty()) return expected("a key");
      skip_spaces();
      if (!skip('=')) return expected("'=' (arguments are key=value)");
      skip_spaces();
      argument.value = word(is_value);
      if (argument.value.empty()) return expected("a value");
      const size_t end = at;
      if (const std::string number = share(argument.value); !number.empty())
        return fail(error, DR_E_ARGUMENT, "plan: %s(%s=%s%s): '%c' at column %zu is not part of a number; is it %s=%s?",
                    out.name.c_str(), argument.key.c_str(), argument.value.c_str(),
                    std::string(text.substr(end, at - end)).c_str(), text[end], end + 1, argument.key.c_str(),
                    number.c_str());
      for (const auto& other : out.arguments)
        if (other.key == argument.key)
          return fail(error, DR_E_ARGUMENT, "plan: %s(%s=…) is given twice", out.name.c_str(), argument.key.c_str());
      out.arguments.push_back(std::move(argument));
      skip_spaces();
      if (skip(')')) return DR_OK;
      if (!skip(',')) return expected("',' or ')'");
    }
  }

  // topr(ratio=0.01), topr(0.01), topr=0.01: the stage is missing. `at` is that of '(' or '='.
  dr_status without_stage(const std::string& name) {
    const std::string stage = stage_with(name);
    const size_t column = at - name.size() + 1, begin = at + 1, equals = stage.find('=');
    if (stage.empty())
      return fail(error, DR_E_ARGUMENT, "plan: no stage before '%s' at column %zu; a stage is role=name", name.c_str(),
                  column);
    const size_t end = std::min(text.find_first_of(") ", begin), text.size());
    const std::string inside(text.substr(begin, end - begin));
    std::string hint = named_argument(stage.substr(0, equals), stage.substr(equals + 1), inside);
    hint = !hint.empty()                           ? stage.substr(0, equals + 1) + hint
           : inside.find('=') != std::string::npos ? stage + '(' + inside + ')'
           : text[at] == '('                       ? stage + "(…)"
                                                   : stage;
    return fail(error, DR_E_ARGUMENT, "plan: no stage before '%s' at column %zu; is it '%s'?", name.c_str(), column,
                hint.c_str());
  }

  bool is_codec_alone(std::string_view word) const {
    size_t apart = 0;
    return std::ranges::find(stage_roles, word) == std::end(stage_roles) && !stage_with(word, &apart).empty() &&
           apart == 0;
  }

  dr_status stage(plan_stage& out) {
    out.role = word(is_key);
    if (out.role.empty()) return expected("a stage (role=name)");
    if (!done() && (text[at] == '(' || (text[at] == '=' && is_codec_alone(out.role)))) return without_stage(out.role);
    if (!skip('=')) return expected("'='");
    do {
      const char* const role = out.calls.empty() ? out.role.c_str() : "bytes";
      if (const dr_status s = call(role, out.calls.emplace_back())) return s;
    } while (skip('+'));
    return DR_OK;
  }
};

}  // namespace

dr_status parse_plan(std::string_view text, std::vector<plan_stage>& stages, dr_error& error) {
  if (text.size() > text_max)
    return fail(error, DR_E_ARGUMENT, "plan: %zu characters; at most %zu", text.size(), text_max);
  parser p{text, error};
  for (p.skip_spaces(); !p.done(); p.skip_spaces()) {
    if (const dr_status s = p.stage(stages.emplace_back())) return s;
    if (!p.done() && p.text[p.at] == ',')
      return fail(error, DR_E_ARGUMENT, "plan: stages are separated by spaces, not by ',' (column %zu)", p.at + 1);
    if (!p.done() && !is_space(p.text[p.at])) return p.expected("a space");
    for (size_t i = 0; i + 1 < stages.size(); ++i)
      if (stages[i].role == stages.back().role)
        return fail(error, DR_E_ARGUMENT, "plan: the stage %s= is given twice", stages[i].role.c_str());
  }
  return DR_OK;
}

std::string print_plan(const std::vector<plan_stage>& stages) {
  std::string text;
  for (const auto& stage : stages) {
    if (!text.empty()) text += ' ';
    text += stage.role;
    char separator = '=';
    for (const auto& call : stage.calls) {
      text += separator;
      separator = '+';
      text += call.name;
      char open = '(';
      for (const auto& argument : call.arguments) {
        text += open;
        open = ',';
        text += argument.key + '=' + argument.value;
      }
      if (open == ',') text += ')';
    }
  }
  return text;
}

std::string print_number(double number) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, number);
  return {buffer, result.ptr};
}

bool read_number(std::string_view text, double& number) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc{} && result.ptr == text.data() + text.size() && std::isfinite(number);
}

}  // namespace dr
