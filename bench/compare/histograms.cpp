#include "histograms.hpp"

#include <cmath>
#include <map>

#include "number.hpp"

namespace dr::compare {
namespace {

using nlohmann::ordered_json;

// Counts of a bin each, from the first bin that has any to the last.
ordered_json counts(const std::map<int, uint64_t>& bins, int first) {
  auto list = ordered_json::array();
  if (bins.empty()) return list;
  for (int bin = first; bin <= bins.rbegin()->first; ++bin) {
    const auto found = bins.find(bin);
    list.push_back(found == bins.end() ? 0 : found->second);
  }
  return list;
}

double energy(const tensor& g) {
  double sum = 0;
  for (uint64_t i = 0; i < g.elements; ++i) {
    const double v = value_of(g.type, bits_at(g.type, g.data, i));
    sum += v * v;
  }
  return sum;
}

ordered_json finite(double number) { return std::isfinite(number) ? ordered_json(number) : ordered_json(nullptr); }

}  // namespace

ordered_json subject_facts(const tensor& g, std::string_view sparsify, std::span<const uint64_t> kept) {
  std::map<int, uint64_t> gaps, magnitudes;
  uint64_t zeros = 0, not_finite = 0, next = 0;  // next: the position after the last one
  double kept_energy = 0;
  for (const uint64_t at : kept) {
    ++gaps[std::bit_width(at - next + 1) - 1];
    next = at + 1;
    const double v = value_of(g.type, bits_at(g.type, g.data, at));
    kept_energy += v * v;
    if (v == 0)
      ++zeros;
    else if (!std::isfinite(v))
      ++not_finite;
    else
      ++magnitudes[std::ilogb(v)];
  }
  const int first = magnitudes.empty() ? 0 : magnitudes.begin()->first;
  return {{"input", g.input},
          {"tensor", g.name},
          {"dtype", name_of(g.type)},
          {"d", g.elements},
          {"sparsify", sparsify},
          {"r", kept.size()},
          {"gradient_energy", finite(energy(g))},
          {"kept_energy", finite(kept_energy)},
          {"gaps", {{"log2", counts(gaps, 0)}}},
          {"magnitudes",
           {{"log2_first", first}, {"counts", counts(magnitudes, first)}, {"zeros", zeros}, {"not_finite", not_finite}}}};
}

}  // namespace dr::compare
