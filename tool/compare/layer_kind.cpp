#include "layer_kind.hpp"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <vector>

namespace dr::compare {
namespace {

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  char before = 0;
  for (const char c : name) {
    const auto u = static_cast<unsigned char>(c);
    const bool starts = std::isupper(u) && std::islower(static_cast<unsigned char>(before));
    if ((starts || !std::isalnum(u)) && !words.back().empty()) words.emplace_back();
    if (std::isalnum(u)) words.back() += static_cast<char>(std::tolower(u));
    before = c;
  }
  if (words.back().empty() && words.size() > 1) words.pop_back();
  return words;
}

bool begins(const std::vector<std::string>& words, std::initializer_list<std::string_view> with) {
  return std::ranges::any_of(words, [&](const std::string& word) {
    return std::ranges::any_of(with, [&](std::string_view start) { return word.starts_with(start); });
  });
}

bool has(const std::vector<std::string>& words, std::initializer_list<std::string_view> list) {
  return std::ranges::any_of(words,
                             [&](const std::string& word) { return std::ranges::find(list, word) != list.end(); });
}

}  // namespace

std::string layer_kind(std::string_view name, std::span<const uint64_t> shape) {
  if (name.empty() || name.starts_with('*')) return {};
  const std::vector<std::string> words = words_of(name);
  const bool known = !shape.empty();
  if ((known && shape.size() < 2) || has(words, {"bias", "b", "beta", "gamma"}) || begins(words, {"bn", "ln"}) ||
      std::ranges::any_of(words, [](const std::string& word) { return word.find("norm") != word.npos; }))
    return "norm_bias";
  if (begins(words, {"emb", "token", "lookup"}) || has(words, {"wte", "wpe", "user", "item"}) ||
      name == "encoder.weight")
    return "embedding";
  if (begins(words, {"lstm", "gru", "rnn", "recurrent"}) || has(words, {"ih", "hh"})) return "recurrent";
  if (begins(words, {"attn", "attention", "qkv"}) || (has(words, {"q", "k", "v"}) && begins(words, {"proj"})))
    return "attention";
  if (shape.size() > 2 || begins(words, {"conv", "downsample", "shortcut"})) return "conv";
  if (known || begins(words, {"fc", "linear", "dense", "mlp", "ffn", "head", "classifier", "proj", "decoder"}))
    return "linear";
  return "other";
}

}  // namespace dr::compare
