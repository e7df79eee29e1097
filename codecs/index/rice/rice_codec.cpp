// index=rice (SPEC.md). The kernel is codecs/family/golomb.
#include "codecs/builtin.hpp"
#include "codecs/family/golomb/golomb_index.hpp"

namespace dr {

constinit const dr_codec rice_codec =
    golomb_index<rice_rule>::codec("rice", "as golomb, with a power of two as divisor", 3, &rice_cuda);

constinit const codec_notes rice_notes = {.codec = &rice_codec, .lists_starts = true, .reads_frames = true};

}  // namespace dr
