#include "codecs/sparsify/random/random.hpp"

#include <algorithm>

#include "codecs/sparsifiers.hpp"
#include "primitive/rng.hpp"
#include "sparsify/select_device.hpp"
#include "sparsify/source_walk.hpp"

namespace dr {

void choose_random(uint64_t key, uint64_t d, uint64_t target, uint64_t* chosen) {
  const bool others = target > d / 2;
  std::fill_n(chosen, random_words(d), others ? ~uint64_t{0} : 0);
  if (others && d % 64) chosen[d / 64] = low_mask(d % 64);
  uint64_t left = others ? d - target : target;
  for (uint64_t i = 0; left > 0; ++i) {
    const auto at = static_cast<uint64_t>(static_cast<unsigned __int128>(draw(key, i)) * d >> 64);
    const uint64_t bit = uint64_t{1} << (at % 64), fresh = (chosen[at / 64] >> (at % 64) & 1) == others;
    chosen[at / 64] = others ? chosen[at / 64] & ~bit : chosen[at / 64] | bit;
    left -= fresh;
  }
}

uint64_t keep_chosen(const select_source& source, const uint64_t* indices, const uint64_t* chosen,
                     const select_memory& memory, const select_crew& crew) {
  source_walk walk(source, crew);
  const auto find = [&](size_t piece, const void* values, uint64_t at, uint32_t n, uint32_t* positions,
                        std::byte* out) -> uint32_t {
    const select_piece& p = source.pieces[piece];
    const uint64_t begin = p.before + at, end = begin + n;  // among all values
    const auto to_piece = static_cast<uint32_t>(p.position - p.before);
    uint32_t found = 0;
    if (indices) {
      for (uint64_t i = begin; i < end; ++i)
        if (const uint64_t x = indices[i]; chosen[x / 64] >> (x % 64) & 1)
          positions[found++] = static_cast<uint32_t>(i) + to_piece;
    } else {
      for (uint64_t word = begin / 64; 64 * word < end; ++word) {
        uint64_t bits = chosen[word];
        if (64 * word < begin) bits &= ~low_mask(begin % 64);
        if (end - 64 * word < 64) bits &= low_mask(end % 64);
        for (; bits; bits &= bits - 1)
          positions[found++] = static_cast<uint32_t>(64 * word + countr_zero(bits)) + to_piece;
      }
    }
    // The values apart, so that their cache misses overlap.
    const auto first = static_cast<uint32_t>(begin) + to_piece;
    with_value_type(source.dtype, [&](auto type) {
      using bits = typename decltype(type)::bits;
      for (uint32_t i = 0; i < found; ++i)
        reinterpret_cast<bits*>(out)[i] = static_cast<const bits*>(values)[positions[i] - first];
    });
    return found;
  };
  return keep_found(walk, memory, source.elements(), find);
}

namespace {

selection_result keep(const keep_call& call) {
  auto* const chosen = static_cast<uint64_t*>(call.scratch);
  choose_random(call.key, call.universe, share_target(call.params, call.universe), chosen);
  return {keep_chosen(call.source, call.indices, chosen, call.memory, call.crew)};
}

uint64_t scratch(const dr_params&, uint64_t universe, uint64_t) { return 8 * random_words(universe); }

void on_device(const dr_params& params, uint64_t universe, device_select_job& job) {
  job.kind = device_select_job::chance;
  job.target = share_target(params, universe);
  job.key_part = random_sparsifier.entry.id;
}

}  // namespace

constinit const sparsifier random_sparsifier = {
    .entry = sparsifier_entry("random", "positions by chance, zeros too; the same on every rank (Random-k)", 3,
                              share_params, DR_SHARED_RANDOM),
    .keep = keep,
    .target = share_target,
    .scratch = scratch,
    .check = check_share,
    .keeps_all = whole_share,
    .on_device = on_device,
    .blind = true};

}  // namespace dr
