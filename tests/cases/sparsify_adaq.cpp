#include "cases/sparsifier_case.hpp"

namespace dr::cases {
namespace {

// Each sign by itself: the others are as good as zero.
positions keeps(const kept_input& in, double ratio) {
  positions out;
  for (const bool below : {false, true}) {
    kept_input side = in;
    uint64_t count = 0;
    for (uint64_t i = 0; i < side.bits.size(); ++i) {
      const bool is_below = side.bits[i] & format_of(in.dtype).sign();
      if (is_below != below) side.bits[i] = 0;
      count += side.magnitude(i) != 0;
    }
    const positions some = largest(side, count ? share_of(ratio, count) : 0);
    out.insert(out.end(), some.begin(), some.end());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

sparsifier_case sparsify_adaq() {
  return {"adaq",
          {{"adaq(ratio=0.01)", [](const kept_input& in) { return keeps(in, 0.01); }},
           {"adaq(ratio=0.3)", [](const kept_input& in) { return keeps(in, 0.3); }},
           {"adaq(ratio=1)", [](const kept_input& in) { return keeps(in, 1); }}}};
}

}  // namespace dr::cases
