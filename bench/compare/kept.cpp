#include "kept.hpp"

#include <algorithm>
#include <numeric>

#include "number.hpp"

namespace dr::compare {
namespace {

template <class Keep>
std::vector<uint64_t> positions_where(const tensor& g, Keep&& keep) {
  std::vector<uint64_t> positions;
  for (uint64_t i = 0; i < g.elements; ++i)
    if (keep(bits_at(g.type, g.data, i))) positions.push_back(i);
  return positions;
}

// The largest magnitudes, ties by lower index, never zeros of either sign. Ordered by bits, so NaN is above infinity.
std::vector<uint64_t> largest(const tensor& g, uint64_t count) {
  auto positions = positions_where(g, [&](uint32_t bits) { return magnitude_of(g.type, bits) != 0; });
  if (count >= positions.size()) return positions;
  const auto key = [&](uint64_t i) { return magnitude_of(g.type, bits_at(g.type, g.data, i)); };
  std::nth_element(positions.begin(), positions.begin() + static_cast<ptrdiff_t>(count), positions.end(),
                   [&](uint64_t a, uint64_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; });
  positions.resize(count);
  std::sort(positions.begin(), positions.end());
  return positions;
}

uint64_t topr_count(const plan_part& topr, uint64_t d) {
  const double count = number_argument(topr, DR_ROLE_SPARSIFY, "count");
  const double ratio = number_argument(topr, DR_ROLE_SPARSIFY, "ratio");
  const double wanted = count > 0 ? count : std::floor(ratio * static_cast<double>(d) + 1e-9);
  return wanted >= static_cast<double>(d) ? d : std::max<uint64_t>(1, static_cast<uint64_t>(wanted));
}

}  // namespace

std::optional<std::vector<uint64_t>> kept_by(const plan_stage& sparsify, const tensor& g) {
  const plan_part& method = sparsify.parts.at(0);
  if (method.name == "none") return positions_where(g, [&](uint32_t bits) { return magnitude_of(g.type, bits) != 0; });
  if (method.name == "topr") return largest(g, topr_count(method, g.elements));
  if (method.name == "threshold") {
    const double least = number_argument(method, DR_ROLE_SPARSIFY, "value");
    return positions_where(g, [&](uint32_t bits) {
      const uint32_t magnitude = magnitude_of(g.type, bits);
      return magnitude != 0 && !(value_of(g.type, magnitude) < least);  // NaN ranks above infinity: kept
    });
  }
  return std::nullopt;
}

uint64_t count_nonzeros(const tensor& g) {
  uint64_t count = 0;
  for (uint64_t i = 0; i < g.elements; ++i) count += magnitude_of(g.type, bits_at(g.type, g.data, i)) != 0;
  return count;
}

}  // namespace dr::compare
