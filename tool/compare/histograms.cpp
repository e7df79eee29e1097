#include "histograms.hpp"

#include <cmath>
#include <map>
#include <span>

#include "tool/read/number.hpp"
#include "tool/show/json_number.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

// One count per bin, from `first` to the last nonempty bin.
ordered_json counts(const std::map<int, uint64_t>& bins, int first) {
  auto list = ordered_json::array();
  if (bins.empty()) return list;
  for (int bin = first; bin <= bins.rbegin()->first; ++bin) {
    const auto found = bins.find(bin);
    list.push_back(found == bins.end() ? 0 : found->second);
  }
  return list;
}

struct histograms {
  std::map<int, uint64_t> gaps, magnitudes;
  uint64_t selected = 0, zeros = 0, not_finite = 0;
  double gradient_energy = 0, selected_energy = 0;

  void add(const tensor& g, std::span<const uint64_t> positions) {
    const auto value = [&](uint64_t i) { return value_of(g.type, bits_at(g.type, g.data, i)); };
    for (uint64_t i = 0; i < g.elements; ++i) gradient_energy += value(i) * value(i);
    uint64_t next = 0;  // the position after the last one
    for (const uint64_t at : positions) {
      ++gaps[std::bit_width(at - next + 1) - 1];
      next = at + 1;
      add(value(at));
    }
    selected += positions.size();
  }

 private:
  void add(double v) {
    selected_energy += v * v;
    if (v == 0)
      ++zeros;
    else if (!std::isfinite(v))
      ++not_finite;
    else
      ++magnitudes[std::ilogb(v)];
  }
};

}  // namespace

ordered_json subject_facts(const subject& s, std::string_view sparsify,
                           const std::vector<std::vector<uint64_t>>& selected) {
  histograms h;
  for (size_t i = 0; i < s.size(); ++i) h.add(s[i], selected.at(i));
  const int first = h.magnitudes.empty() ? 0 : h.magnitudes.begin()->first;
  return {{"input", s.empty() ? "" : s[0].input},
          {"tensor", name_of(s)},
          {"dtype", types_of(s)},
          {"d", elements_of(s)},
          {"sparsify", sparsify},
          {"r", h.selected},
          {"gradient_energy", finite(h.gradient_energy)},
          {"kept_energy", finite(h.selected_energy)},
          {"gaps", {{"log2", counts(h.gaps, 0)}}},
          {"magnitudes",
           {{"log2_first", first},
            {"counts", counts(h.magnitudes, first)},
            {"zeros", h.zeros},
            {"not_finite", h.not_finite}}}};
}

}  // namespace dr::compare
