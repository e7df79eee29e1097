#include "cases/sparsifier_case.hpp"

namespace dr::cases {

sparsifier_case sparsify_none() {
  return {"none", {{"none", [](const kept_input& in) {
                      positions all(in.bits.size());
                      for (uint64_t i = 0; i < all.size(); ++i) all[i] = i;
                      return in.indices.empty() ? reaching(in, 1) : all;
                    }}}};
}

}  // namespace dr::cases
