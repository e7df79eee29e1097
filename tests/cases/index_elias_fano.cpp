#include <cmath>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// "1 + l + (d / r) / 2^l bits an index", less what lies behind the last one, and two paddings.
std::string judge(const observation& o) {
  const double d = static_cast<double>(o.in.universe), r = static_cast<double>(o.in.count);
  const double l = std::floor(std::log2(std::floor(d / r)));
  const double last = words(o.in.elements).back();
  const double low = std::ceil(r * l / 8), high = std::floor((std::floor(last / std::exp2(l)) + r - 1) / 8) + 1;
  const double bits = 8 * static_cast<double>(o.payload.size());
  if (static_cast<double>(o.payload.size()) != low + high) return "not the size that SPEC.md gives";
  if (bits > r * (1 + l) + d / std::exp2(l) + 16) return "more than 1 + l + (d / r) / 2^l bits an index";
  const double entropy = (std::lgamma(d + 1) - std::lgamma(r + 1) - std::lgamma(d - r + 1)) / std::log(2.0);
  if (o.in.name.starts_with("uniform, sparse") && r >= 4000 && bits > entropy + 0.6 * r)
    return "a uniform set costs " + std::to_string((bits - entropy) / r) + " bits an index above its entropy";
  return "";
}

}  // namespace

codec_case index_elias_fano() { return {DR_ROLE_INDEX, "elias_fano", {"elias_fano"}, supports("elias_fano"), judge}; }

}  // namespace dr::cases
