// From which keys the codecs of a row draw (FORMAT.md, Random numbers).
#pragma once

#include "pipeline/encode.hpp"
#include "primitive/rng.hpp"

namespace dr {

struct draw_keys {
  // No id of a sparsifier and no number of a segment: private keys are none of theirs, whatever the private seed.
  static constexpr uint64_t private_base = uint64_t{1} << 32;

  uint64_t shared, own;  // own: with the private seed

  // position: of the tensor in the batch; segment: of it.
  static draw_keys of(const encode_call& call, const tensor_view& t, uint64_t position, uint64_t segment) {
    uint64_t shared = combine(combine(combine(0, call.seed), call.step), t.key ? t.key : position);
    if (segment) shared = combine(shared, segment);
    return {shared, combine(combine(shared, private_base), call.private_seed)};
  }
};

// A sparsifier draws once for all segments, apart from the codecs.
inline uint64_t sparsifier_key(uint64_t shared, const dr_codec& entry) { return combine(shared, entry.id); }

}  // namespace dr
