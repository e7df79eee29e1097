#include "plan/suggestions.hpp"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "core/registry.hpp"
#include "deepreduce/codec.hpp"
#include "plan/arguments.hpp"
#include "plan/stage_words.hpp"

namespace dr {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// What a plan may name in a role; `f(name, parameters)`.
template <class F>
void each_name(std::string_view role, F&& f) {
  for (size_t i = 0; i < codec_count(); ++i)
    if (const dr_codec& codec = *codec_at(i); role == role_name(codec.role) && !(codec.traits & DR_PREFIX))
      f(plan_name(codec), declared_params{codec.name, codec.params, codec.param_count});
  for (const dr_stage_word& w : stage_words())
    if (role == w.role) f(std::string(w.name), declared_params{w.name, w.params, w.param_count});
}

std::pair<std::string, size_t> nearest_in(std::string_view role, std::string_view word) {
  std::pair<std::string, size_t> best{"", word.size() + 1};
  each_name(role, [&](const std::string& name, const declared_params&) {
    if (const size_t apart = letters_apart(word, name); apart < best.second) best = {name, apart};
  });
  return best;
}

bool accepts(const dr_param& param, const std::string& value) {
  dr_value read{};
  dr_error unread{sizeof(dr_error)};
  return bind_value("", param, value, read, unread) == DR_OK;
}

}  // namespace

size_t letters_apart(std::string_view a, std::string_view b) {
  const auto same = [&](size_t i, size_t k) { return lower(a[i]) == lower(b[k]); };
  std::vector<size_t> before, last(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i + 1;
    for (size_t k = 0; k < b.size(); ++k) {
      row[k + 1] = std::min({last[k] + !same(i, k), last[k + 1] + 1, row[k] + 1});
      if (i > 0 && k > 0 && same(i, k - 1) && same(i - 1, k)) row[k + 1] = std::min(row[k + 1], before[k - 1] + 1);
    }
  }
  return row[b.size()];
}

std::string nearest(std::string_view word, std::span<const std::string_view> names) {
  const auto best = std::ranges::min_element(names, {}, [&](std::string_view n) { return letters_apart(word, n); });
  return best == names.end() || !is_near(word, letters_apart(word, *best)) ? std::string() : std::string(*best);
}

std::string nearest_codec(std::string_view role, std::string_view word) {
  auto [name, apart] = nearest_in(role, word);
  return is_near(word, apart) ? name : std::string();
}

std::string stage_with(std::string_view word, size_t* apart) {
  std::string stage;
  size_t least = word.size() + 1;
  for (const std::string_view role : stage_roles)
    if (const auto [name, letters] = nearest_in(role, word); letters < least && is_near(word, letters))
      stage = std::string(role) + '=' + name, least = letters;
  if (apart) *apart = least;
  return stage;
}

std::string named_argument(std::string_view role, std::string_view name, const std::string& value) {
  std::string call;
  each_name(role, [&](const std::string& known, const declared_params& of) {
    for (size_t p = 0; p < of.count && known == name && call.empty(); ++p)
      if (const dr_param& param = *dr_param_at(of.params, p); accepts(param, value))
        call.append(known).append("(").append(param.name).append("=").append(value).append(")");
  });
  return call;
}

}  // namespace dr
