// The written list of sparsifiers' cases. A file a sparsifier: sparsify_NAME.cpp.
#include "cases/sparsifier_case.hpp"

namespace dr::cases {

sparsifier_case sparsify_none(), sparsify_topr(), sparsify_threshold(), sparsify_random(), sparsify_dgc(),
    sparsify_blocks(), sparsify_adaq(), sparsify_changed(), sparsify_chunks(), sparsify_visible();

std::span<const sparsifier_case> sparsifiers() {
  static const sparsifier_case list[] = {sparsify_none(),   sparsify_topr(),   sparsify_threshold(), sparsify_random(),
                                         sparsify_dgc(),    sparsify_blocks(), sparsify_adaq(),      sparsify_changed(),
                                         sparsify_chunks(), sparsify_visible()};
  return list;
}

}  // namespace dr::cases
