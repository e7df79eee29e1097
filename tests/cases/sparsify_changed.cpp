#include "cases/sparsifier_case.hpp"

namespace dr::cases {

// Against a base of zeros: whatever has a bit set, -0 and NaN, too.
sparsifier_case sparsify_changed() {
  sparsifier_case c{"changed", {{"changed", [](const kept_input& in) {
                                   positions out;
                                   for (uint64_t i = 0; i < in.bits.size(); ++i)
                                     if (in.bits[i]) out.push_back(i);
                                   return out;
                                 }}}};
  c.dense_only = true;
  for (sparsifier_plan& plan : c.plans) {
    plan.of_base = true;
    plan.whole = 4096;
  }
  return c;
}

}  // namespace dr::cases
