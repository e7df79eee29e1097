#include "plan/syntax.hpp"

#include <charconv>
#include <cmath>

namespace dr {
namespace {

constexpr size_t text_max = 4096;

bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }
bool is_key(char c) {
  return is_name(c) || (c >= 'A' && c <= 'Z');
}  // (codecs in Python have parameters with capitals)
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

  dr_status call(plan_call& out) {
    out.name = word(is_name);
    if (out.name == "plugin" && skip('.')) {
      const std::string_view name = word(is_name);
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
      argument.key = word(is_key);
      if (argument.key.empty()) return expected("a key");
      skip_spaces();
      if (!skip('=')) return expected("'=' (arguments are key=value)");
      skip_spaces();
      argument.value = word([](char c) { return is_name(c) || c == '.' || c == '-' || c == '+' || c == 'E'; });
      if (argument.value.empty()) return expected("a value");
      for (const auto& other : out.arguments)
        if (other.key == argument.key)
          return fail(error, DR_E_ARGUMENT, "plan: %s(%s=…) is given twice", out.name.c_str(), argument.key.c_str());
      out.arguments.push_back(std::move(argument));
      skip_spaces();
      if (skip(')')) return DR_OK;
      if (!skip(',')) return expected("',' or ')'");
    }
  }

  dr_status stage(plan_stage& out) {
    out.role = word(is_name);
    if (out.role.empty()) return expected("a stage (role=name)");
    if (!skip('=')) return expected("'='");
    do {
      if (const dr_status s = call(out.calls.emplace_back())) return s;
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
