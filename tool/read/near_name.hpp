// Suggestions for an unknown name of a command or an option. Names in plans are suggested by the library (lib/plan/suggestions.hpp), of which
// this program sees the public headers alone.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dr::compare {

// Letters to change, add or leave out (Levenshtein 1966).
inline size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> line(b.size() + 1);
  std::iota(line.begin(), line.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t before = std::exchange(line[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = before + (a[i] != b[j]);
      before = line[j + 1];
      line[j + 1] = std::min({changed, line[j] + 1, before + 1});
    }
  }
  return line.back();
}

// "; is it 'compare'?", or nothing if no name is near.
inline std::string suggested(std::string_view name, std::span<const std::string> names) {
  const auto far = [&](const std::string& known) { return distance(name, known); };
  const auto nearest = std::ranges::min_element(names, {}, far);
  const size_t max_distance = std::max<size_t>(1, name.size() / 3);
  return nearest == names.end() || far(*nearest) > max_distance ? "" : "; is it '" + *nearest + "'?";
}

// A hint for commands that only the Python package has; `otherwise` for other words.
inline std::string of_python(std::string_view command, const std::string& otherwise) {
  for (const std::string_view known : {"capture", "figure", "patch"})
    if (command == known) return "; the Python package has it: `python -m deepreduce " + std::string(command) + "`";
  return otherwise;
}

}  // namespace dr::compare
