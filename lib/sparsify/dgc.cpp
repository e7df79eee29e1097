#include "sparsify/dgc.hpp"

#include <algorithm>
#include <cmath>

#include "primitive/rng.hpp"
#include "sparsify/select_kernel.hpp"

namespace dr {
namespace {

// Magnitudes of one value of each of m stretches.
template <class T>
void take_sample(const select_source& s, uint64_t key, uint64_t n, uint64_t m, uint32_t* sample) {
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

// Keeps what is at least low, and returns how many; or more than `most`, for which there is room, if there are more. Values that are
// made are, all of them; `made`: they were before.
uint64_t collect(const select_source& s, uint32_t low, uint64_t most, const select_memory& memory, bool made,
                 cpu_level level) {
  const select_kernels& kernels = select_at(level, s.dtype);
  const uint64_t size = value_size(s.dtype);
  alignas(64) std::byte room[4 * select_run];
  uint64_t count = 0;
  uint32_t range = 0;
  for (size_t k = 0; k < s.pieces.size(); ++k) {
    const select_piece& p = s.pieces[k];
    for (; range < p.range; ++range) memory.ends[range] = count;
    if (p.values && count > most) continue;
    for (uint64_t at = 0; at < p.n; at += select_run) {
      const auto n = static_cast<uint32_t>(std::min<uint64_t>(select_run, p.n - at));
      const void* v = nullptr;
      if (p.values)
        v = static_cast<const std::byte*>(p.values) + at * size;
      else
        v = s.load(s.self, k, at, n, made ? select_load::again : select_load::first, room);
      if (count <= most)
        count += kernels.collect(v, n, low, p.position + static_cast<uint32_t>(at), memory.positions + count,
                                 static_cast<std::byte*>(memory.kept) + count * size);
    }
    if (!p.values) fence_streams();
  }
  memory.ends[range] = count;
  return count;
}

// A source whose values have all been made.
const void* load_again(void* self, size_t piece, uint64_t at, uint32_t n, select_load what, void* room) {
  const auto& s = *static_cast<const select_source*>(self);
  return s.load(s.self, piece, at, n, what == select_load::hint ? what : select_load::again, room);
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
  const auto wanted = static_cast<uint64_t>(std::floor(share * static_cast<double>(n) + 1e-9));
  return std::min(n, std::max<uint64_t>(wanted, 1024));
}

kept_count keep_dgc(const select_source& source, uint64_t key, uint64_t target, double share, uint32_t* sample,
                    const select_memory& memory, const select_crew& crew) {
  const uint64_t n = source.elements(), m = dgc_sample(share, n);
  if (m == n || target >= n) return keep_largest(source, target, memory, crew);
  with_value_type(source.dtype, [&](auto type) { take_sample<decltype(type)>(source, key, n, m, sample); });
  const auto rank = static_cast<uint64_t>(static_cast<unsigned __int128>(target) * m / n);
  // (Magnitudes of any type order as those of f32 do. Of too few nonzeros the threshold is the smallest magnitude there is.)
  uint32_t low = std::max<uint32_t>(1, select_largest(DR_F32, sample, m, std::max<uint64_t>(1, rank)).above);
  const uint64_t most = dgc_most(target);
  uint64_t found = collect(source, low, most, memory, false, crew.level);
  for (int round = 0; found < dgc_fewest(target) && low > 1 && round < 10; ++round) {
    low = lowered(source.dtype, low);
    found = collect(source, low, most, memory, true, crew.level);
  }
  if (found <= most) return {found};
  select_source made{source.dtype, source.pieces, load_again, const_cast<select_source*>(&source)};
  return keep_largest(made, target, memory, crew);
}

}  // namespace dr
