// The keys of random numbers for a row's codecs (FORMAT.md, Random numbers).
#pragma once

#include "pipeline/encode.hpp"
#include "primitive/rng.hpp"

namespace dr {

struct draw_keys {
  // Neither the id of a sparsifier nor the number of a segment, so private keys differ from theirs with any private
  // seed.
  static constexpr uint64_t private_base = uint64_t{1} << 32;

  uint64_t shared, own;  // own: with the private seed

  // position: of the tensor in the batch; segment: of the tensor.
  static draw_keys of(const encode_call& call, const tensor_view& t, uint64_t position, uint64_t segment) {
    uint64_t shared = combine(combine(combine(0, call.seed), call.step), t.key ? t.key : position);
    if (segment) shared = combine(shared, segment);
    return {shared, combine(combine(shared, private_base), call.private_seed)};
  }
};

// A sparsifier draws once for all segments, with a key of its own.
inline uint64_t sparsifier_key(uint64_t shared, const dr_codec& entry) { return combine(shared, entry.id); }

}  // namespace dr
