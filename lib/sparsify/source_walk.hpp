// The walk over a source's values that all sparsifiers share: run after run by the caller, or in blocks by all workers
// of a crew.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "sparsify/select.hpp"

namespace dr {

inline constexpr uint64_t select_block = 32768;  // values of a block: what one worker finds in it stays in L2

class source_walk {
 public:
  // loaded: the source has computed all of its values before.
  source_walk(const select_source& source, const select_crew& crew, bool loaded = false)
      : source_(source), crew_(crew), n_(source.elements()), loaded_(loaded ? all_runs : 0) {}

  const select_source& source() const { return source_; }
  const select_crew& crew() const { return crew_; }
  uint64_t elements() const { return n_; }
  bool loaded() const { return loaded_ == all_runs; }
  // Whether there are workers to share the values with, and enough values.
  bool shares() const { return crew_.workers && crew_.workers->workers() > 1 && n_ >= select_shared; }

  // Calls f(piece, values, position in the piece, n) for every run in order, until it returns false. All walks have the
  // same runs; the first walk that reaches a run computes its values.
  template <class F>
  bool each_run(F&& f) {
    alignas(64) std::byte room[4 * select_run];
    uint64_t run = 0;
    for (size_t k = 0; k < source_.pieces.size(); ++k) {
      const select_piece& p = source_.pieces[k];
      const uint64_t ahead = ahead_of(p);
      uint32_t n = 0;
      for (uint64_t at = 0; at < p.n; at += n, ++run) {
        n = static_cast<uint32_t>(std::min(p.values ? select_run - (at ? 0 : ahead) : made_run, p.n - at));
        const void* const v = values_at(k, at, n, run < loaded_, room);
        loaded_ = std::max(loaded_, run + 1);
        if (!f(k, v, at, n)) return false;
      }
    }
    return true;
  }

  // The same on all workers. For every piece enter(piece), by the caller; for every run of a block find(state, worker,
  // piece, values, at, n); then, block after block in order, settle(state, worker, piece, next), which calls next()
  // as soon as it knows the place of its results.
  template <class State, class Enter, class Find, class Settle>
  void each_block(Enter&& enter, Find&& find, Settle&& settle) {
    const bool loaded = loaded_ != 0;
    for (size_t k = 0; k < source_.pieces.size(); ++k) {
      const select_piece& p = source_.pieces[k];
      enter(p);
      const uint64_t ahead = ahead_of(p);
      std::atomic<size_t> turn = 0;
      auto one = [&](size_t block, size_t worker) {
        alignas(64) std::byte room[4 * select_run];
        State state{};
        const uint64_t begin = block * select_block, end = std::min(begin + select_block - ahead, p.n);
        for (uint64_t at = begin - std::min(begin, ahead); at < end;) {
          const auto n = static_cast<uint32_t>(std::min<uint64_t>(p.values ? select_run : made_run, end - at));
          find(state, worker, k, values_at(k, at, n, loaded, room), at, n);
          at += n;
        }
        if (!p.values) fence_streams();
        // Blocks begin in order, so a worker that others wait for is running.
        for (unsigned spins = 0; turn.load(std::memory_order_acquire) != block; ++spins)
          if (spins > 1000) std::this_thread::yield();
        settle(state, worker, k, [&] { turn.store(block + 1, std::memory_order_release); });
      };
      const auto blocks = static_cast<size_t>(p.n ? ceil_div(p.n + ahead, select_block) : 0);
      using task = decltype(one);
      if (p.n >= select_shared)
        crew_.workers->run(
            blocks, [](void* f, size_t block, size_t worker) { (*static_cast<task*>(f))(block, worker); }, &one);
      else
        for (size_t block = 0; block < blocks; ++block) one(block, 0);
    }
    loaded_ = all_runs;
  }

 private:
  static constexpr uint64_t all_runs = ~uint64_t{0};
  static constexpr uint64_t made_run = select_run / 4;  // its output stays in L1

  // Values of a piece before its first full cache line. Runs and blocks begin with a line, because reading across lines
  // costs twice the time.
  uint64_t ahead_of(const select_piece& p) const {
    return reinterpret_cast<uintptr_t>(p.values) % 64 / value_size(source_.dtype);
  }
  const void* values_at(size_t piece, uint64_t at, uint32_t n, bool again, void* room) const {
    if (const void* const values = source_.pieces[piece].values)
      return static_cast<const std::byte*>(values) + at * value_size(source_.dtype);
    return source_.load(source_.self, piece, at, n, again ? select_load::again : select_load::first, room);
  }

  const select_source& source_;
  const select_crew& crew_;
  uint64_t n_, loaded_;  // runs
};

// The destination of the pairs of a walk, range after range.
struct selected_pairs {
  const select_memory& memory;
  uint32_t dtype;
  uint64_t count = 0;
  uint32_t range = 0;

  uint32_t* positions_at(uint64_t i) const { return memory.positions + i; }
  std::byte* values_at(uint64_t i) const { return static_cast<std::byte*>(memory.values) + i * value_size(dtype); }
  void enter(const select_piece& p) {
    for (; range < p.range; ++range) memory.ends[range] = count;
  }
  // After the last piece.
  void close(const select_source& source) {
    if (source.pieces.empty()) return;
    enter(source.pieces.back());
    memory.ends[range] = count;
  }
  void put(uint64_t to, const uint32_t* positions, const void* values, uint64_t n) const {
    std::memcpy(positions_at(to), positions, n * sizeof(uint32_t));
    std::memcpy(values_at(to), values, n * value_size(dtype));
  }
};

// Collects the results of find(piece, values, at, n, positions, values out), which appends the pairs of a run and
// returns their number. Returns the number of pairs; if it exceeds `limit`, at most the memory's room, then any number
// above it.
template <class Find>
uint64_t keep_found(source_walk& walk, const select_memory& memory, uint64_t limit, Find&& find) {
  const select_source& source = walk.source();
  const select_crew& crew = walk.crew();
  selected_pairs out{memory, source.dtype};
  if (walk.shares()) {
    struct found {
      uint64_t n;
    };
    walk.each_block<found>([&](const select_piece& p) { out.enter(p); },
                           [&](found& block, size_t worker, size_t piece, const void* v, uint64_t at, uint32_t n) {
                             const select_scratch& w = crew.scratch[worker];
                             block.n += find(piece, v, at, n, w.positions + block.n,
                                             static_cast<std::byte*>(w.values) + block.n * value_size(source.dtype));
                           },
                           [&](const found& block, size_t worker, size_t, auto&& next) {
                             const uint64_t to = out.count;
                             const bool fits = to <= limit && to + block.n <= limit;
                             out.count = fits ? to + block.n : limit + 1;
                             next();
                             if (fits)
                               out.put(to, crew.scratch[worker].positions, crew.scratch[worker].values, block.n);
                           });
  } else {
    walk.each_run([&](size_t piece, const void* v, uint64_t at, uint32_t n) {
      out.enter(source.pieces[piece]);
      if (out.count <= limit) out.count += find(piece, v, at, n, out.positions_at(out.count), out.values_at(out.count));
      return true;
    });
  }
  out.close(source);
  return out.count;
}

}  // namespace dr
