#include "cases/split_golomb_size.hpp"

namespace dr::cases {

codec_case index_rice() {
  return {
      DR_ROLE_INDEX, "rice", {"rice", "rice(block=9)", "rice(block=13)"}, supports("rice"), [](const observation& o) {
        return judge_split_golomb(o, true, 0.13);
      }};
}

}  // namespace dr::cases
