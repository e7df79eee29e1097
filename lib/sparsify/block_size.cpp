#include "sparsify/block_size.hpp"

#include <bit>

#include "primitive/rng.hpp"
#include "primitive/sum_tree.hpp"
#include "sparsify/block_map.hpp"
#include "sparsify/energy_kernel.hpp"
#include "sparsify/rank.hpp"

namespace dr {
namespace {

// log2 x for x >= 1, to 1e-14, by operations that IEEE 754 defines exactly; the C library's log2 differs by machine.
double log2_of(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  double exponent = static_cast<double>(static_cast<int>(bits >> 52) - 1023);
  double m = std::bit_cast<double>((bits & low_mask(52)) | uint64_t{1023} << 52);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent += 1;
  }
  const double t = (m - 1) / (m + 1), square = t * t;
  double sum = 0;
  for (int k = 8; k >= 0; --k) sum = sum * square + 1 / static_cast<double>(2 * k + 1);
  return exponent + t * sum * 2.8853900817779268;  // 2 / ln 2
}

// log2 C(all, some) by entropy, and the bits of the values.
double bits_of(double all, double log2_all, double some, double value_bits) {
  const double rest = all - some;
  const double index = some * (log2_all - log2_of(some)) + (rest > 0 ? rest * (log2_all - log2_of(rest)) : 0);
  return index + value_bits * some;
}

constexpr uint32_t stretch =
    1u << (block_choices - 1);  // values that are sampled together: a block of the largest size
constexpr uint64_t sampled_whole = 512, sampled_most = 1024;  // stretches

uint64_t stretches_sampled(uint64_t n) {
  return n <= sampled_whole ? n : std::min(std::max(sampled_whole, n / 16), sampled_most);
}

// Copies jittered stretches at regular distances; all stretches if there are few.
void read_sample(const select_source& source, const block_map& map, uint64_t n, std::byte* to) {
  const uint64_t size = value_size(source.dtype), line = 64 / size, all = map.blocks(), each = all / n;
  const auto at = [&](uint64_t k) { return n == all ? k : k * each + draw(k, all) % each; };
  std::memset(to, 0, n * stretch * size);
  constexpr uint64_t together = 16;
  for (uint64_t from = 0; from < n; from += together) {
    const uint64_t end = std::min(n, from + together);
    for (uint64_t k = from; k < end; ++k)
      map.each_part(
          at(k), 1,
          [&](size_t piece, uint64_t first, uint64_t count) {
            const void* const values = source.pieces[piece].values;
            for (uint64_t i = 0; i < count; i += line)
              if (values)
                __builtin_prefetch(static_cast<const std::byte*>(values) + (first + i) * size);
              else
                source.load(source.self, piece, first + i, static_cast<uint32_t>(std::min(line, count - i)),
                            select_load::hint, nullptr);
          },
          [] {});
    for (uint64_t k = from; k < end; ++k) {
      std::byte* out = to + k * stretch * size;
      map.each_part(
          at(k), 1,
          [&](size_t piece, uint64_t first, uint64_t count) {
            for (uint64_t i = 0; i < count; i += line) {
              const auto some = static_cast<uint32_t>(std::min(line, count - i));
              alignas(64) std::byte room[64];
              std::memcpy(out, values_of(source, piece, first + i, some, select_load::peek, room), some * size);
              out += some * size;
            }
          },
          [] {});
    }
  }
}

// The energy of the `rank` largest of n; values that are not finite count 0.
double energy_of(const select_kernels& keys, const float* energies, uint64_t n, uint64_t rank, uint32_t* scratch) {
  const auto* bits = reinterpret_cast<const uint32_t*>(energies);
  const ranked r = find_rank(keys, bits, n, rank, 0, magnitudes_end, scratch);
  const auto counted = [](uint32_t b) { return is_finite<f32_type>(b) ? double{std::bit_cast<float>(b)} : 0; };
  const double sum = tree_sum(n, [&](uint64_t i) { return bits[i] > r.key ? counted(bits[i]) : 0; });
  return sum + static_cast<double>(rank - r.above) * counted(r.key);
}

struct sample_memory {
  std::byte* values;
  float* energies;
  uint32_t* rank;

  static sample_memory lay_out(arena& memory, uint64_t n) {
    sample_memory m{};
    m.values = memory.allocate<std::byte>(n * stretch * sizeof(float));
    m.energies = memory.allocate<float>(n * stretch);
    m.rank = memory.allocate<uint32_t>(n * stretch + select_run + select_spare);
    return m;
  }
};

}  // namespace

uint64_t blocks_worth(uint64_t d, uint64_t count, double value_bits, uint32_t block) {
  if (block == 1) return count;
  const auto elements = static_cast<double>(d);
  const double limit = bits_of(elements, log2_of(elements), static_cast<double>(count), value_bits);
  const uint64_t blocks = ceil_div(d, block);
  const double all = static_cast<double>(blocks), log2_all = log2_of(all), each = value_bits * block;
  uint64_t fits = 1, above = blocks + 1;
  while (above - fits > 1) {
    const uint64_t middle = fits + (above - fits) / 2;
    (bits_of(all, log2_all, static_cast<double>(middle), each) <= limit ? fits : above) = middle;
  }
  return fits;
}

uint64_t block_size_scratch(uint64_t universe) {
  arena memory;
  (void)sample_memory::lay_out(memory, std::min(universe, sampled_most));
  return memory.used() + arena::alignment;
}

uint32_t choose_block(const select_source& source, uint64_t universe, const uint64_t* targets, const select_crew& crew,
                      uint64_t* ends, void* scratch) {
  const block_map map(source, stretch, ends);
  const uint64_t all = map.blocks(), n = stretches_sampled(all);
  arena room(scratch, block_size_scratch(universe));
  const sample_memory m = sample_memory::lay_out(room, n);
  if (n) read_sample(source, map, n, m.values);
  const select_kernels& keys = select_at(crew.level, DR_F32);
  uint32_t best = 1;
  double largest = 0;
  for (uint32_t k = 0; n && k < block_choices; ++k) {
    const uint64_t blocks = n * stretch >> k;
    energies_at(crew.level, source.dtype, 1u << k)(m.values, blocks, m.energies);
    const auto share = static_cast<uint64_t>(static_cast<unsigned __int128>(targets[k]) * n / all);
    const double energy = energy_of(keys, m.energies, blocks, std::clamp<uint64_t>(share, 1, blocks), m.rank);
    if (energy > largest) {
      largest = energy;
      best = 1u << k;
    }
  }
  return best;
}

}  // namespace dr
