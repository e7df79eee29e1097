// Look-back and last_of while blocks run at the same time: sums are the serial ones, and (under ThreadSanitizer) what a block wrote
// before it published its sum is seen by those that waited for it. With DR_WEAK, release and acquire are relaxed: then
// ThreadSanitizer must report a race. (By hand: relaxed stores alone, or relaxed loads alone, are enough for a report; and so is the
// letter's phase without its barrier, where strands run.)
#include <atomic>
#if defined(DR_WEAK)
#define memory_order_release memory_order_relaxed
#define memory_order_acquire memory_order_relaxed
#include "primitive/atomics.hpp"
#undef memory_order_release
#undef memory_order_acquire
#endif

#include <cstdio>
#include <vector>

#include "cuda/device.hpp"
#include "primitive/block.hpp"
#include "primitive/lookback.hpp"
#include "primitive/rng.hpp"

namespace {

struct scan_args {
  const uint32_t* in;
  uint64_t n;
  uint64_t* out;    // sums of the elements before each
  uint64_t* state;  // a word a tile
  uint32_t* ticket;
  uint32_t* done;
  uint64_t* letter;   // plain memory, one a tile: what it leaves to its successor
  uint64_t* largest;  // plain, one a tile, for the last block
  uint64_t* result;   // wrong letters; the largest tile
};

struct scan_kernel {
  static constexpr const char* name = "scan";
  static constexpr unsigned lanes = 32, grid_phases = 1;
  using args = scan_args;
  struct shared {
    uint64_t most;
  };

  template <class Block>
  static void run(Block& b, shared& s, const args& a, unsigned) {
    const uint64_t tile = dr::take_tile(b, a.ticket);
    typename Block::template each<uint64_t> sum, value;
    b.phase([&](unsigned lane) {
      const uint64_t i = tile * lanes + lane;
      sum[lane] = value[lane] = i < a.n ? a.in[i] : 0;
    });
    const uint64_t own = b.exclusive_sum(sum);
    b.phase([&](unsigned lane) {
      if (lane == 31) a.letter[tile] = own ^ tile;
    });
    const uint64_t before = dr::lookback(b, a.state, tile, own);
    b.phase([&](unsigned lane) {
      const uint64_t i = tile * lanes + lane;
      if (i < a.n) a.out[i] = before + sum[lane];
      if (lane == 17) a.largest[tile] = own;
      if (lane != 5 || tile == 0) return;
      uint64_t its = 0;
      for (uint64_t i = (tile - 1) * lanes; i < tile * lanes; ++i) its += a.in[i];
      if (a.letter[tile - 1] != (its ^ (tile - 1))) dr::atomic_add(a.result, uint64_t{1});
    });
    if (!dr::last_of(b, a.done, b.blocks())) return;
    b.phase([&](unsigned lane) {
      if (lane != 9) return;
      s.most = 0;
      for (uint32_t t = 0; t < b.blocks(); ++t) s.most = a.largest[t] > s.most ? a.largest[t] : s.most;
      a.result[1] = s.most;
    });
  }
};

bool is_right(int32_t seed, uint32_t threads, uint32_t strands, uint64_t n) {
  const uint32_t tiles = static_cast<uint32_t>((n + scan_kernel::lanes - 1) / scan_kernel::lanes);
  std::vector<uint32_t> in(n), words(2);
  std::vector<uint64_t> out(n), state(tiles), letter(tiles), largest(tiles), result(2);
  for (uint64_t i = 0; i < n; ++i) in[i] = static_cast<uint32_t>(dr::draw(seed, i));
  dr::device_queue queue;
  dr_error error{sizeof(dr_error)};
  if (dr::find_device({sizeof(dr_place), DR_PLACE_EMULATED, seed, nullptr, 0, 0}, queue.where, error)) return false;
  dr::emulator().threads = threads;
  dr::emulator().strands = strands;
  if (dr::launch<scan_kernel>(
          queue.exec(), tiles,
          {in.data(), n, out.data(), state.data(), &words[0], &words[1], letter.data(), largest.data(), result.data()}))
    return false;
  uint64_t sum = 0, most = 0, of_tile = 0;
  for (uint64_t i = 0; i < n; ++i) {
    if (out[i] != sum) return false;
    if (i % scan_kernel::lanes == 0) of_tile = 0;
    sum += in[i];
    of_tile += in[i];
    most = of_tile > most ? of_tile : most;
  }
  return result[0] == 0 && result[1] == most;
}

}  // namespace

int main() {
  for (const int32_t seed : {0, 1, 2, 3})
    for (const uint32_t threads : {1, 4})
      for (const uint32_t strands : {0, 4})
        for (const uint64_t n : {1, 32, 33, 1000, strands ? 30000 : 100000})
          if (!is_right(seed, threads, strands, n)) {
            std::printf("%llu numbers, seed %d, %u threads, %u strands: the sums are wrong\n",
                        static_cast<unsigned long long>(n), seed, threads, strands);
            return 1;
          }
  return 0;
}
