// index=golomb (SPEC.md). The kernel is codecs/family/golomb.
#include "codecs/builtin.hpp"
#include "codecs/family/golomb/golomb_index.hpp"

namespace dr {

constinit const dr_codec golomb_codec = golomb_index<golomb_rule>::codec(
    "golomb", "gaps in split Golomb codes, near the entropy of a uniform set", 2, &golomb_cuda);

constinit const codec_notes golomb_notes = {.codec = &golomb_codec,
                                            .tries =
                                                [](double) {
                                                  return std::vector<codec_argument>{{}, {"adaptive", 1}};
                                                },
                                            .lists_starts = true,
                                            .reads_frames = true};

}  // namespace dr
