#include "cases/sparsifier_case.hpp"

namespace dr::cases {
namespace {

positions from(const kept_input& in, double least) {
  positions out;
  for (uint64_t i = 0; i < in.bits.size(); ++i) {
    const uint32_t m = in.magnitude(i), infinity = format_of(in.dtype).infinity();
    if (m > infinity || (m > 0 && (m == infinity || number_of(in.dtype, m) >= least))) out.push_back(i);
  }
  return out;
}

}  // namespace

sparsifier_case sparsify_threshold() {
  return {"threshold",
          {{"threshold(value=0.002)", [](const kept_input& in) { return from(in, 0.002); }},
           {"threshold(value=0)", [](const kept_input& in) { return from(in, 0); }},
           {"threshold(value=1e30)", [](const kept_input& in) { return from(in, 1e30); }},
           // Sent dense where there are more: the values are the same.
           {"threshold(value=0.002,max_ratio=0.1)", [](const kept_input& in) { return from(in, 0.002); }}}};
}

}  // namespace dr::cases
