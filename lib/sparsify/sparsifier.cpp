#include "sparsify/sparsifier.hpp"

#include <algorithm>
#include <cmath>

#include "core/registry.hpp"

namespace dr {

const char* sparsifier_with(bool sparsifier::*trait) {
  for (const dr_codec* entry : builtin_codecs())
    if (entry->role == DR_ROLE_SPARSIFY && sparsifier_of(*entry).*trait) return entry->name;
  return "?";
}

namespace {

// Of 0.29 · 100, which is less than 29 in binary, it is 29.
uint64_t share_of(double ratio, uint64_t d) {
  return static_cast<uint64_t>(std::floor(ratio * static_cast<double>(d) + 1e-9));
}

}  // namespace

uint64_t share_of(const dr_params& params, size_t ratio, uint64_t d) {
  return share_of(param_value(params, ratio).number, d);
}

uint64_t share_target(double ratio, double count, uint64_t d) {
  const double target = count > 0 ? count : static_cast<double>(share_of(ratio, d));
  return target >= static_cast<double>(d) ? d : std::max<uint64_t>(1, static_cast<uint64_t>(target));
}

uint64_t share_target(const dr_params& params, uint64_t universe) {
  return share_target(param_value(params, share_ratio).number, param_value(params, share_count).number, universe);
}

dr_status check_share(const dr_codec& entry, const dr_params& params, dr_error& error) {
  const dr_value &ratio = param_value(params, share_ratio), &count = param_value(params, share_count);
  if (ratio.given && count.given)
    return fail(error, DR_E_ARGUMENT, "plan: %s accepts ratio= or count=, not both", entry.name);
  if (!ratio.given && !count.given)
    return fail(error, DR_E_ARGUMENT, "plan: %s needs ratio= or count=, e.g. %s(ratio=0.01)", entry.name, entry.name);
  if (ratio.given ? ratio.number <= 0 : count.number < 1)
    return fail(error, DR_E_ARGUMENT, "plan: %s(%s) must be above 0", entry.name, ratio.given ? "ratio" : "count");
  return DR_OK;
}

}  // namespace dr
