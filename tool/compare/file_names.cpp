#include "file_names.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view of_book = "book ";  // before the path, in the plan of a book's total

// The last `count` names of a path; the whole path if it has no more.
std::string ending(const std::string& path, size_t count) {
  size_t at = path.size();
  for (; count > 0; --count) {
    at = at == 0 ? std::string::npos : path.rfind('/', at - 1);
    if (at == std::string::npos) return path;
  }
  return path.substr(at + 1);
}

void collect(const ordered_json& value, std::set<std::string>& paths) {
  const auto add = [&](const ordered_json& text) {
    if (text.is_string() && !text.get<std::string>().starts_with("synth:")) paths.insert(text.get<std::string>());
  };
  if (value.is_object())
    for (const auto& member : value.items()) {
      const std::string& key = member.key();
      if (key == "input" || key == "from" || key == "file") add(member.value());
      if (key == "plan" && member.value().is_string())
        if (const auto text = member.value().get<std::string>(); text.starts_with(of_book))
          add(text.substr(of_book.size()));
      if (key == "plugins" && member.value().is_array())
        for (const ordered_json& plugin : member.value()) add(plugin);
    }
  if (value.is_structured())
    for (const ordered_json& member : value) collect(member, paths);
}

// names: of the longest path first, since a path may begin another
void rename(ordered_json& value, const std::vector<std::pair<std::string, std::string>>& names, bool is_message) {
  if (value.is_string()) {
    auto text = value.get<std::string>();
    for (const auto& [path, name] : names)
      if (text == path) {
        value = name;
        return;
      } else if (text == std::string(of_book) + path) {
        value = std::string(of_book) + name;
        return;
      } else if (is_message)
        for (size_t at = text.find(path); at != std::string::npos; at = text.find(path, at + name.size()))
          text.replace(at, path.size(), name);
    if (is_message) value = text;
  } else if (value.is_object()) {
    for (const auto& member : value.items()) rename(member.value(), names, member.key() == "error");
  } else if (value.is_array()) {
    for (ordered_json& member : value) rename(member, names, is_message);
  }
}

}  // namespace

std::map<std::string, std::string> file_names(const std::set<std::string>& paths) {
  std::map<std::string, std::string> names;
  for (size_t count = 1; names.size() < paths.size(); ++count) {
    std::map<std::string, size_t> times;
    for (const std::string& path : paths) ++times[ending(path, count)];
    for (const std::string& path : paths)
      if (const std::string name = ending(path, count); times.at(name) == 1 || name == path) names.emplace(path, name);
  }
  return names;
}

void without_folders(ordered_json& document) {
  std::set<std::string> paths;
  collect(document, paths);
  const std::map<std::string, std::string> found = file_names(paths);
  std::vector<std::pair<std::string, std::string>> names(found.begin(), found.end());
  std::ranges::stable_sort(names, std::ranges::greater{}, [](const auto& name) { return name.first.size(); });
  rename(document, names, false);
}

}  // namespace dr::compare
