#include "cases/based_inputs.hpp"
#include "cases/split_golomb_size.hpp"

namespace dr::cases {

// Classes are taken where they save something: never longer than one class of gaps, but for its head.
codec_case index_magnitude() {
  return {
      DR_ROLE_INDEX, "magnitude", {"magnitude"}, changed_supports("magnitude"), [](const observation& o) {
        const uint64_t plain = split_golomb_size(words(o.in.elements), o.in.universe, 12, false);
        const bool helps = o.in.name.starts_with("small ones") && o.in.count >= 2500 && o.in.universe > 4 * o.in.count;
        if (o.payload.size() > plain + 8)
          return "longer than golomb: " + std::to_string(o.payload.size()) + " to " + std::to_string(plain);
        return helps && o.payload.size() > plain * 0.9 ? std::string("no shorter than without classes") : std::string();
      }};
}

}  // namespace dr::cases
