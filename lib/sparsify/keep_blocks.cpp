#include "sparsify/keep_blocks.hpp"

#include <bit>

#include "sparsify/source_walk.hpp"

namespace dr {
namespace {

constexpr uint32_t largest_block = 1u << (block_sizes - 1);

void squares(uint32_t dtype, const void* values, uint32_t n, float* out) {
  with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const v = static_cast<const typename T::bits*>(values);
    for (uint32_t i = 0; i < n; ++i) {
      const float x = T::to_f32(v[i]);
      out[i] = x * x;
    }
  });
}

// Of `have` squares, the rest of the block being 0; halves are added until one is left.
float energy(const float* q, uint64_t have, uint32_t block) {
  float t[largest_block] = {};
  std::copy_n(q, have, t);
  for (uint32_t half = block / 2; half; half /= 2)
    for (uint32_t i = 0; i < half; ++i) t[i] += t[i + half];
  return t[0] == t[0] ? t[0] : std::bit_cast<float>(0x7fc00000u);
}

// Calls f(first value, values, range, position in it) for each block of a source.
template <class F>
void each_block(const select_source& s, uint32_t block, F&& f) {
  for (size_t k = 0; k < s.pieces.size();) {
    const select_piece& first = s.pieces[k];
    uint64_t end = first.before;  // of the range
    for (; k < s.pieces.size() && s.pieces[k].range == first.range; ++k) end = s.pieces[k].before + s.pieces[k].n;
    for (uint64_t at = first.before; at < end; at += block)
      f(at, std::min<uint64_t>(block, end - at), first.range, static_cast<uint32_t>(at - first.before));
  }
}

}  // namespace

uint32_t choose_block(const select_source& source, const uint64_t* targets, void* scratch) {
  constexpr uint64_t sampled = 1024;  // stretches
  float* const q = static_cast<float*>(scratch);
  uint64_t stretches = 0, n = 0, next = 0;
  const uint64_t step = std::max<uint64_t>(1, source.elements() / (sampled * largest_block));
  for (size_t k = 0; k < source.pieces.size(); ++k) {
    const select_piece& p = source.pieces[k];
    for (uint64_t at = 0; at + largest_block <= p.n; at += largest_block, ++n) {
      if (n < next) continue;
      next += step;
      alignas(64) std::byte room[4 * largest_block];
      const void* const v = p.values ? static_cast<const std::byte*>(p.values) + at * value_size(source.dtype)
                                     : source.load(source.self, k, at, largest_block, select_load::peek, room);
      squares(source.dtype, v, largest_block, q + largest_block * stretches++);
    }
  }
  if (!stretches) return 0;
  double most = -1;
  uint32_t best = 0;
  float* const energies = q + largest_block * stretches;
  for (uint32_t k = 0; k < block_sizes; ++k) {
    const uint32_t block = 1u << k;
    const uint64_t blocks = stretches * largest_block / block;
    for (uint64_t b = 0; b < blocks; ++b) energies[b] = energy(q + b * block, block, block);
    std::sort(energies, energies + blocks,
              [](float a, float b) { return std::bit_cast<uint32_t>(a) > std::bit_cast<uint32_t>(b); });
    const uint64_t all = std::max<uint64_t>(1, source.elements() / block);
    const auto wanted = static_cast<uint64_t>(static_cast<unsigned __int128>(targets[k]) * blocks / all);
    double sum = 0;
    for (uint64_t b = 0; b < std::clamp<uint64_t>(wanted, 1, blocks); ++b) sum += double{energies[b]};
    if (sum > most) most = sum, best = k;
  }
  return best;
}

kept_count keep_blocks(const select_source& source, uint64_t, uint32_t block, uint64_t target_blocks,
                       const select_memory& memory, const select_crew& crew, void* scratch) {
  const uint64_t n = source.elements();
  float* const q = static_cast<float*>(scratch);
  float* const energies = q + n;
  auto* const chosen = reinterpret_cast<uint32_t*>(energies + n);
  select_crew alone = crew;
  alone.workers = nullptr;
  source_walk walk(source, alone);
  walk.each_run([&](size_t piece, const void* v, uint64_t at, uint32_t m) {
    squares(source.dtype, v, m, q + source.pieces[piece].before + at);
    return true;
  });
  uint64_t blocks = 0;
  each_block(source, block,
             [&](uint64_t at, uint64_t m, uint32_t, uint32_t) { energies[blocks++] = energy(q + at, m, block); });
  selection s = select_largest(DR_F32, energies, blocks, target_blocks);
  const uint64_t kept = compact_selected(DR_F32, energies, blocks, s, chosen);

  kept_pairs out{memory, source.dtype};
  uint64_t number = 0, next = 0;
  size_t piece = 0;
  each_block(source, block, [&](uint64_t at, uint64_t m, uint32_t range, uint32_t position) {
    if (next == kept || chosen[next] != number++) return;
    ++next;
    for (; out.range < range; ++out.range) memory.ends[out.range] = out.count;
    for (uint64_t end = at + m; at < end;) {  // it may lie in several pieces
      while (at >= source.pieces[piece].before + source.pieces[piece].n) ++piece;
      const select_piece& p = source.pieces[piece];
      const auto some = static_cast<uint32_t>(std::min(end, p.before + p.n) - at);
      alignas(64) std::byte room[4 * largest_block];
      const void* const v = p.values
                                ? static_cast<const std::byte*>(p.values) + (at - p.before) * value_size(source.dtype)
                                : source.load(source.self, piece, at - p.before, some, select_load::again, room);
      std::memcpy(out.kept_at(out.count), v, some * value_size(source.dtype));
      for (uint32_t i = 0; i < some; ++i) *out.positions_at(out.count++) = position++;
      at += some;
    }
  });
  out.close(source);
  return {.count = out.count, .block = block};
}

}  // namespace dr
