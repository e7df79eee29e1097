#include "cases/split_golomb_size.hpp"

namespace dr::cases {

codec_case index_golomb() {
  return {DR_ROLE_INDEX,
          "golomb",
          {"golomb", "golomb(block=9)", "golomb(block=13)", "golomb(adaptive=1)", "golomb(block=9,adaptive=1)"},
          supports("golomb"),
          [](const observation& o) {
            if (!o.fields[1]) return judge_split_golomb(o, false, 0.08);
            // Never longer than one divisor a block, but for what a clustered one may save.
            const uint64_t plain = split_golomb_size(words(o.in.elements), o.in.universe, o.fields[0], false, false);
            return o.payload.size() <= plain
                       ? std::string()
                       : "longer than without: " + std::to_string(o.payload.size()) + " to " + std::to_string(plain);
          }};
}

}  // namespace dr::cases
