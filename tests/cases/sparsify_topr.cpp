#include "cases/sparsifier_case.hpp"

namespace dr::cases {

sparsifier_case sparsify_topr() {
  return {"topr",
          {{"topr(ratio=0.01)", [](const kept_input& in) { return largest(in, share_of(0.01, in.universe)); }},
           {"topr(ratio=0.6)", [](const kept_input& in) { return largest(in, share_of(0.6, in.universe)); }},
           {"topr(ratio=1)", [](const kept_input& in) { return largest(in, in.universe); }},
           {"topr(count=7)", [](const kept_input& in) { return largest(in, 7); }}}};
}

}  // namespace dr::cases
