#include "codecs/sparsify/dgc/dgc.hpp"

#include <algorithm>
#include <cmath>

#include "codecs/sparsifiers.hpp"
#include "primitive/rng.hpp"
#include "sparsify/source_walk.hpp"

namespace dr {
namespace {

// Magnitudes of one value per stretch, for m stretches.
template <class T>
void read_sample(const select_source& s, uint64_t key, uint64_t n, uint64_t m, uint32_t* sample) {
  using bits = typename T::bits;
  // Some at a time, all of them on their way before the first is looked at.
  constexpr uint64_t together = 64;
  struct place {
    size_t piece;
    uint64_t at;
  } places[together];
  size_t k = 0;
  uint64_t begin = 0, first = 0;  // of piece k, of the stretch
  for (uint64_t i = 0; i < m;) {
    const uint64_t some = std::min(together, m - i);
    for (uint64_t j = 0; j < some; ++j) {
      const auto end = static_cast<uint64_t>(static_cast<unsigned __int128>(n) * (i + j + 1) / m);
      const uint64_t at = first + draw(key, i + j) % (end - first);
      first = end;
      while (at - begin >= s.pieces[k].n) begin += s.pieces[k++].n;
      places[j] = {k, at - begin};
      if (s.pieces[k].values)
        __builtin_prefetch(static_cast<const bits*>(s.pieces[k].values) + places[j].at);
      else
        s.load(s.self, k, places[j].at, 1, select_load::hint, nullptr);
    }
    for (uint64_t j = 0; j < some; ++j, ++i) {
      const place& at = places[j];
      bits room;
      const void* const values = s.pieces[at.piece].values;
      const void* const made = values ? nullptr : s.load(s.self, at.piece, at.at, 1, select_load::peek, &room);
      const bits value = values ? static_cast<const bits*>(values)[at.at] : *static_cast<const bits*>(made);
      sample[i] = magnitude<T>(value);
    }
  }
}

uint32_t lowered(uint32_t dtype, uint32_t low) {
  const double threshold = with_value_type(dtype, [&](auto type) -> double {
    using T = decltype(type);
    return T::to_f32(static_cast<typename T::bits>(std::min<uint32_t>(low, T::infinity - 1)));
  });
  return magnitude_from(dtype, 0.7 * threshold);
}

}  // namespace

uint64_t dgc_sample(double share, uint64_t n) {
  const auto rounded = static_cast<uint64_t>(std::floor(share * static_cast<double>(n) + 1e-9));
  return std::min(n, std::max<uint64_t>(rounded, 1024));
}

selection_result keep_dgc(const select_source& source, uint64_t key, uint64_t target, double share, uint32_t* sample,
                          const select_memory& memory, const select_crew& crew, uint32_t corrections) {
  const uint64_t n = source.elements(), m = dgc_sample(share, n);
  if (m == n || target >= n) return keep_largest(source, target, memory, crew);
  with_value_type(source.dtype, [&](auto type) { read_sample<decltype(type)>(source, key, n, m, sample); });
  const auto rank = static_cast<uint64_t>(static_cast<unsigned __int128>(target) * m / n);
  // (Magnitudes of any type order as those of f32 do. Of too few nonzeros the threshold is the smallest magnitude there
  // is.)
  uint32_t low = std::max<uint32_t>(1, select_largest(DR_F32, sample, m, std::max<uint64_t>(1, rank)).above);
  if (corrections == 0) return keep_from(source, low, memory, crew);
  const uint64_t limit = dgc_most(target);
  source_walk walk(source, crew);
  const select_kernels& kernels = select_at(crew.level, source.dtype);
  const auto keep_reached = [&] {
    return keep_found(walk, memory, limit,
                      [&](size_t piece, const void* v, uint64_t at, uint32_t n, uint32_t* positions, void* selected) {
                        return kernels.collect(v, n, low, source.pieces[piece].position + static_cast<uint32_t>(at),
                                               positions, selected);
                      });
  };
  uint64_t found = keep_reached();
  for (uint32_t round = 0; found < dgc_fewest(target) && low > 1 && round < corrections; ++round) {
    low = lowered(source.dtype, low);
    found = keep_reached();
  }
  return found <= limit ? selection_result{found} : keep_largest(source, target, memory, crew, true);
}

namespace {

enum param : size_t { ratio, sample, corrections };

constexpr dr_param dgc_params[] = {
    {sizeof(dr_param), "ratio", "share of the elements to select; the result is mostly 0.7 to 1.3 times as many",
     DR_PARAM_REAL, 1, 0, 1, 0, nullptr},
    param_real("sample", "share of the elements sampled for the threshold; at least 1024 elements", 0, 1, 0.01),
    param_int("corrections", "how often a threshold that selects too few is lowered; 0: the first threshold decides", 0,
              dgc_corrections, dgc_corrections)};

uint32_t rounds(const dr_params& params) { return static_cast<uint32_t>(param_value(params, corrections).number); }

uint64_t target_count(const dr_params& params, uint64_t universe) {
  return share_target(param_value(params, ratio).number, 0, universe);
}

uint64_t max_selected(const dr_params& params, uint64_t universe) {
  return rounds(params) ? dgc_most(target_count(params, universe)) : universe;
}

uint64_t scratch(const dr_params& params, uint64_t, uint64_t present) {
  return 4 * dgc_sample(param_value(params, sample).number, present);
}

dr_status check(const dr_codec&, const dr_params& params, dr_error& error) {
  if (param_value(params, ratio).number > 0) return DR_OK;
  return fail(error, DR_E_ARGUMENT, "plan: dgc(ratio) must be above 0");
}

selection_result keep(const keep_call& call) {
  return keep_dgc(call.source, call.key, target_count(call.params, call.universe),
                  param_value(call.params, sample).number, static_cast<uint32_t*>(call.scratch), call.memory, call.crew,
                  rounds(call.params));
}

}  // namespace

constinit const sparsifier dgc_sparsifier = {
    .entry = sparsifier_entry("dgc", "magnitudes from a threshold estimated on a sample (Deep Gradient Compression)", 4,
                              dgc_params, DR_SHARED_RANDOM | DR_HOST_ONLY),
    .keep = keep,
    .target = target_count,
    .selected_max = max_selected,
    .scratch = scratch,
    .check = check};

}  // namespace dr
