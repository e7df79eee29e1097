// An example of a new sparsifier: this folder, its line in the list of built-ins (list.cpp) and its case. Selects one
// element of
// every `stride`, from a place that its key says, zeros too.
#include "sparsify/source_walk.hpp"
#include "sparsify/sparsifier.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {param_int("stride", "of so many elements one is kept", 1, 1000000, 10)};

uint64_t stride(const dr_params& p) { return static_cast<uint64_t>(param_value(p, 0).number); }
uint64_t most(const dr_params& p, uint64_t universe) { return ceil_div(universe, stride(p)); }

selection_result keep(const keep_call& call) {
  source_walk walk(call.source, call.crew);
  const uint64_t step = stride(call.params), start = call.key % step;
  const auto find = [&](size_t piece, const void* values, uint64_t at, uint32_t n, uint32_t* positions, void* kept) {
    const select_piece& p = call.source.pieces[piece];
    const uint64_t size = value_size(call.source.dtype);
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const uint64_t place = p.before + at + i;
      if ((call.indices ? call.indices[place] : place) % step != start) continue;
      positions[found] = p.position + static_cast<uint32_t>(at) + i;
      std::memcpy(static_cast<std::byte*>(kept) + size * found++, static_cast<const std::byte*>(values) + size * i,
                  size);
    }
    return found;
  };
  return {keep_found(walk, call.memory, call.source.elements(), find)};
}

}  // namespace

extern const sparsifier every_sparsifier;
constinit const sparsifier every_sparsifier = {
    .entry = sparsifier_entry("every", "one element of every stride", 31, params, DR_SHARED_RANDOM | DR_HOST_ONLY),
    .keep = keep,
    .target = most,
    .blind = true};

}  // namespace dr
