// index=block: precedes the codec of a list of blocks (SPEC.md). The pipeline itself expands blocks:
// lib/split/blocks.hpp.
#include "codecs/builtin.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_field fields[] = {wire_field("log2_size", 1, 5, 3)};

}  // namespace

constinit const dr_codec block_codec =
    make_codec("block", "blocks of contiguous elements, coded by the next index codec", 14, DR_ROLE_INDEX,
               DR_EXACT | DR_TOTAL | DR_PREFIX, nullptr, {.forms = list_form, .fields = fields});

}  // namespace dr
