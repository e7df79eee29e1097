#include "cases/split_golomb_size.hpp"

namespace dr::cases {

codec_case index_golomb() {
  return {DR_ROLE_INDEX,
          "golomb",
          {"golomb", "golomb(block=9)", "golomb(block=13)"},
          supports("golomb"),
          [](const observation& o) { return judge_split_golomb(o, false, 0.08); }};
}

}  // namespace dr::cases
