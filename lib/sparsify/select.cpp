#include "sparsify/select.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "primitive/rng.hpp"
#include "sparsify/select_kernel.hpp"

namespace dr {

uint64_t topr_target(double ratio, double count, uint64_t d) {
  const double wanted = count > 0 ? count : std::floor(ratio * static_cast<double>(d) + 1e-9);
  return wanted >= static_cast<double>(d) ? d : std::max<uint64_t>(1, static_cast<uint64_t>(wanted));
}

namespace {

// Counts the digits at `shift` of all magnitudes whose bits above the digit are `prefix`.
template <class T>
void histogram(const typename T::bits* v, uint64_t n, unsigned shift, unsigned bits, uint32_t prefix, uint64_t* bins) {
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t key = magnitude<T>(v[i]);
    if (key >> shift >> bits == prefix) ++bins[key >> shift & ((1u << bits) - 1)];
  }
}

// each(f) calls f(values, n) for all runs of the values, in whatever order.
template <class Each>
selection radix_select(uint32_t dtype, uint64_t target, Each&& each) {
  return with_value_type(dtype, [&](auto type) -> selection {
    using T = decltype(type);
    // From the top: the digit in which the target falls, then the digits below it.
    constexpr unsigned digits[] = {11, 10, 10};
    uint64_t bins[2048];
    unsigned shift = 31;
    uint32_t prefix = 0;
    uint64_t above = 0;  // magnitudes above the prefix
    for (const unsigned bits : digits) {
      shift -= bits;
      std::fill(bins, bins + (1u << bits), 0);
      each([&](const void* values, uint64_t n) {
        histogram<T>(static_cast<const typename T::bits*>(values), n, shift, bits, prefix, bins);
      });
      uint32_t digit = (1u << bits) - 1;
      while (digit > 0 && above + bins[digit] < target) above += bins[digit--];
      prefix = prefix << bits | digit;
      if (prefix == 0 && shift == 0) return {0, 0, above};  // fewer nonzeros than wanted: all of them
      if (shift == 0) return {prefix, target - above, target};
    }
    return {0, 0, 0};
  });
}

}  // namespace

selection select_largest(uint32_t dtype, const void* values, uint64_t n, uint64_t target) {
  return radix_select(dtype, target, [&](auto&& f) { f(values, n); });
}

uint32_t magnitude_from(uint32_t dtype, double threshold) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    uint32_t low = 1, high = T::infinity;
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (double{T::to_f32(static_cast<typename T::bits>(middle))} >= threshold)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  });
}

selection select_from(uint32_t dtype, const void* values, uint64_t n, double threshold) {
  const uint32_t low = magnitude_from(dtype, threshold);
  return {low - 1, 0, select_at(cpu_level::scalar, dtype).count(values, n, low)};
}

uint64_t compact_selected(uint32_t dtype, const void* values, uint64_t n, selection& s, uint32_t* positions) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(values);
    uint64_t count = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const uint32_t key = magnitude<T>(v[i]);
      if (key < s.above || (key == s.above && s.ties == 0)) continue;
      s.ties -= key == s.above;
      positions[count++] = static_cast<uint32_t>(i);
    }
    return count;
  });
}

uint64_t compact_rows(uint32_t dtype, const void* values, uint64_t rows, uint32_t width, uint32_t* positions) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(values);
    uint64_t count = 0;
    for (uint64_t i = 0; i < rows; ++i) {
      uint32_t any = 0;
      for (uint32_t w = 0; w < width; ++w) any |= magnitude<T>(v[i * width + w]);
      if (any) positions[count++] = static_cast<uint32_t>(i);
    }
    return count;
  });
}

// ---- In one pass ------------------------------------------------------------------------------------------

namespace {

constexpr uint32_t magnitudes_end = 0x80000000;

constexpr uint64_t select_block = 32768;  // values of a block that workers share: what is found in it stays in L2
constexpr uint64_t sample_whole = 2048;   // so few values are all sampled

// So many that the target-th magnitude is known to a few percent, and a small part of the pass.
uint64_t sample_wanted(uint64_t n) {
  constexpr uint64_t usual = 4096, most = 262144;
  return n <= sample_whole ? n : std::max(std::min(n / 8, usual), std::min(n / 512, most));
}

struct ranked {
  uint32_t key;
  uint64_t above;  // keys above it
};

// The rank-th largest of n <= most keys, 1 <= rank <= n: each is compared with each, so no branch depends on them.
template <size_t most>
ranked rank_of_few(const uint32_t* keys, size_t stride, size_t n, uint64_t rank) {
  int32_t few[most] = {};  // (zeros are above none, and keys are below 2^31)
  for (size_t i = 0; i < n; ++i) few[i] = static_cast<int32_t>(keys[i * stride]);
  ranked least{magnitudes_end, 0};
  for (size_t i = 0; i < n; ++i) {
    int32_t above = 0;
    for (size_t k = 0; k < most; ++k) above += few[k] > few[i];
    const auto key = static_cast<uint32_t>(few[i]);
    const bool lower = static_cast<uint64_t>(above) < rank && key < least.key;
    least.key = lower ? key : least.key;
    least.above = lower ? static_cast<uint64_t>(above) : least.above;
  }
  return least;
}

// The rank-th largest of n keys, all in [low, high), 1 <= rank <= n, by radix. scratch [n], perhaps the keys themselves.
ranked rank_by_radix(const select_kernels& k, const uint32_t* keys, uint64_t n, uint64_t rank, uint32_t low,
                     uint32_t high, uint32_t* scratch) {
  constexpr unsigned digit = 11;
  uint32_t bins[1u << digit];
  uint64_t above = 0;
  for (;;) {
    const unsigned width = bit_width(high - 1 - low), shift = width > digit ? width - digit : 0;
    std::fill(bins, std::end(bins), 0);
    for (uint64_t i = 0; i < n; ++i) ++bins[(keys[i] - low) >> shift];
    uint32_t b = (high - 1 - low) >> shift;
    for (; bins[b] < rank; --b) {
      rank -= bins[b];
      above += bins[b];
    }
    low += b << shift;
    if (shift == 0) return {low, above};
    high = low + std::min(high - low, 1u << shift);
    n = k.magnitudes(keys, n, low, high, scratch);
    keys = scratch;
  }
}

// As rank_by_radix, whose counters cost more than a few thousand keys do: halves of them go, by pivots that 16 of the keys tell
// (Hoare 1961), until few are left. Keys that mislead it cost eight passes.
ranked find_rank(const select_kernels& k, const uint32_t* keys, uint64_t n, uint64_t rank, uint32_t low, uint32_t high,
                 uint32_t* scratch) {
  constexpr uint64_t many = 8192, few = 32, told = 16;
  constexpr int passes = 8;
  uint64_t above = 0;
  for (int pass = 0; n <= many && pass < passes; ++pass) {
    if (high - low == 1) return {low, above};
    if (rank == 1) {
      int32_t largest = 0;
      for (uint64_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<int32_t>(keys[i]));
      return {static_cast<uint32_t>(largest), above};
    }
    if (n <= few) {
      const ranked r = n <= told ? rank_of_few<told>(keys, 1, n, rank) : rank_of_few<few>(keys, 1, n, rank);
      return {r.key, above + r.above};
    }
    // A little below the rank, so that the larger part goes at once.
    const uint64_t expected = rank * told / n;
    const uint32_t pivot = rank_of_few<told>(keys, n / told, told, std::min(told, expected + 2)).key;
    const uint64_t larger = k.count(keys, n, pivot + 1);
    if (larger >= rank) {
      low = pivot + 1;
    } else if (const uint64_t from = k.count(keys, n, pivot); from >= rank) {
      return {pivot, above + larger};
    } else {
      high = pivot;
      above += from;
      rank -= from;
    }
    n = k.magnitudes(keys, n, low, high, scratch);
    keys = scratch;
  }
  const ranked r = rank_by_radix(k, keys, n, rank, low, high, scratch);
  return {r.key, above + r.above};
}

class keeper {
 public:
  keeper(const select_source& source, const select_memory& memory, const select_crew& crew)
      : s_(source),
        m_(memory),
        crew_(crew),
        scratch_(crew.scratch ? crew.scratch[0] : select_scratch{}),
        k_(select_at(crew.level, source.dtype)),
        keys_(select_at(crew.level, DR_F32)),
        n_(source.elements()) {}

  bool collect(uint32_t low, uint32_t high, uint64_t target) {
    if (collect_shared(low, high)) return true;
    put_back();
    return collect_alone(low, high, target);
  }

  // false: cut too often, so it would be quicker to ask the radix.
  bool collect_alone(uint32_t low, uint32_t high, uint64_t target) {
    begin(low, high);
    unsigned cuts = 0;
    constexpr unsigned cuts_most = 6;
    return each_run([&](const select_piece& p, const void* v, uint64_t at, uint32_t n) {
      for (; range_ < p.range; ++range_) m_.ends[range_] = count_;
      auto* const kept = kept_at(count_);
      const uint32_t found =
          k_.collect(v, n, low_, p.position + static_cast<uint32_t>(at), m_.positions + count_, kept);
      count_ += found;
      if (low_ < high_) in_middle_ += k_.magnitudes(kept, found, low_, high_, scratch_.middle + in_middle_);
      if (in_middle_ > scratch_.middle_room) high_ = 0;
      if (taken_from_ != magnitudes_end)
        take(static_cast<size_t>(&p - s_.pieces.data()), m_.positions + count_ - found, kept, found);
      if (count_ <= m_.room) return true;
      if (cuts++ == cuts_most) return false;
      // As many as are wanted and more are here already: of what follows only the larger can matter.
      m_.ends[range_] = count_;
      low_ = cut(target) + 1;
      high_ = 0;
      return true;
    });
  }

  void close() {
    const uint32_t last = s_.pieces.empty() ? 0 : s_.pieces.back().range;
    for (; range_ <= last && !s_.pieces.empty(); ++range_) m_.ends[range_] = count_;
    range_ = last;
  }

  void largest(uint64_t target) {
    const uint64_t sampled = n_ ? sample() : 0;
    double part = static_cast<double>(sampled) / static_cast<double>(n_);
    double expected = part * static_cast<double>(target);
    // Eight standard deviations, for neighbours resemble one another and so tell less than as many drawn one by one.
    double slack = sampled == n_ ? 0 : 8 * std::sqrt(expected) + 8;
    for (int attempt = 0; n_ && attempt < 2; ++attempt) {
      uint32_t low = 1;
      if (const double rank = std::ceil(expected + slack); rank <= static_cast<double>(sampled))
        low = std::max(1u, sampled_rank(scratch_.sample, sampled, static_cast<uint64_t>(rank), 0).key);
      uint32_t high = low + 1;
      if (sampled != n_) {
        const uint64_t upper = keys_.magnitudes(scratch_.sample, sampled, low, magnitudes_end, scratch_.middle);
        const double certain = std::floor(expected - slack / 2);  // if it is not, it takes longer
        if (certain < 1)
          high = magnitudes_end;
        else if (certain <= static_cast<double>(upper))
          high = std::max(high, sampled_rank(scratch_.middle, upper, static_cast<uint64_t>(certain), low).key);
      }
      if (!collect(low, high, target)) break;
      if (count_ >= target || low == 1) {
        close();
        if (count_ > target) cut(target);
        return;
      }
      put_back();
      // The sample promised too much: as much less of it, and twice as far.
      expected *= static_cast<double>(target) / static_cast<double>(std::max<uint64_t>(count_, 1));
      slack = expected + 2 * slack;
    }
    put_back();
    by_radix(target);
  }

 private:
  void* kept_at(uint64_t i) const { return static_cast<std::byte*>(m_.kept) + i * value_size(s_.dtype); }

  void begin(uint32_t low, uint32_t high) {
    count_ = in_middle_ = 0;
    low_ = least_ = low;
    high_ = high;
    taken_from_ = s_.place ? std::max(low, high) : magnitudes_end;
    range_ = 0;
  }

  // Values of a piece before its first cache line: runs and blocks begin with one, for reading across lines takes twice the time.
  uint64_t ahead_of(const select_piece& p) const {
    return reinterpret_cast<uintptr_t>(p.values) % 64 / value_size(s_.dtype);
  }

  // false: there is nobody to share with, or too much to keep for workers who know nothing of one another.
  bool collect_shared(uint32_t low, uint32_t high) {
    if (!crew_.workers || crew_.workers->workers() < 2 || n_ < select_shared) return false;
    begin(low, high);
    too_many_ = false;
    for (piece_ = 0; piece_ < s_.pieces.size(); ++piece_) {
      const select_piece& p = s_.pieces[piece_];
      for (; range_ < p.range; ++range_) m_.ends[range_] = count_;
      turn_.store(0, std::memory_order_relaxed);
      const auto blocks = static_cast<size_t>(p.n ? ceil_div(p.n + ahead_of(p), select_block) : 0);
      const auto one = [](void* self, size_t block, size_t worker) {
        static_cast<keeper*>(self)->collect_block(block, worker);
      };
      if (p.n >= select_shared)
        crew_.workers->run(blocks, one, this);
      else
        for (size_t block = 0; block < blocks; ++block) collect_block(block, 0);
    }
    loaded_ = ~uint64_t{0};
    return !too_many_;
  }

  // Finds on its own; where that goes is settled block after block.
  void collect_block(size_t block, size_t worker) {
    const select_scratch& w = crew_.scratch[worker];
    const select_piece& p = s_.pieces[piece_];
    const uint64_t size = value_size(s_.dtype), ahead = ahead_of(p), begin = block * select_block;
    const uint64_t first = begin - std::min(begin, ahead), end = std::min(begin + select_block - ahead, p.n);
    alignas(64) std::byte room[4 * select_run];
    uint64_t found = 0, near = 0;
    for (uint64_t at = first; at < end;) {
      const auto n = static_cast<uint32_t>(std::min<uint64_t>(p.values ? select_run : select_run / 4, end - at));
      const void* v = nullptr;
      if (p.values)
        v = static_cast<const std::byte*>(p.values) + at * size;
      else
        v = s_.load(s_.self, piece_, at, n, loaded_ ? select_load::again : select_load::first, room);
      auto* const kept = static_cast<std::byte*>(w.kept) + found * size;
      const uint32_t more = k_.collect(v, n, low_, p.position + static_cast<uint32_t>(at), w.positions + found, kept);
      if (low_ < high_) near += k_.magnitudes(kept, more, low_, high_, w.near + near);
      found += more;
      at += n;
    }
    if (!p.values) fence_streams();
    // Blocks are begun in order, so whoever is waited for is at work.
    for (unsigned spins = 0; turn_.load(std::memory_order_acquire) != block; ++spins)
      if (spins > 1000) std::this_thread::yield();
    const uint64_t to = count_, to_middle = in_middle_;
    const bool fits = !too_many_ && to + found <= m_.room && to_middle + near <= scratch_.middle_room;
    if (fits) {
      count_ += found;
      in_middle_ += near;
    } else {
      too_many_ = true;
    }
    turn_.store(block + 1, std::memory_order_release);
    if (!fits) return;
    std::memcpy(m_.positions + to, w.positions, found * sizeof(uint32_t));
    std::memcpy(kept_at(to), w.kept, found * size);
    if (near) std::memcpy(scratch_.middle + to_middle, w.near, near * sizeof(uint32_t));
    if (taken_from_ != magnitudes_end) take(piece_, w.positions, w.kept, found);
  }

  // Of pairs that were found in a piece, takes those that are surely kept. (Inlined it costs the loop 8 % even where nothing is taken.)
  [[gnu::noinline]] void take(size_t piece, const uint32_t* positions, const void* values, uint64_t n) const {
    const uint32_t first = s_.pieces[piece].position;
    float* const to = s_.place(s_.self, piece);
    for (uint64_t i = 0; i < n; ++i) {  // without a branch: the others are written again
      uint32_t bits;
      std::memcpy(&bits, static_cast<const std::byte*>(values) + 4 * i, sizeof bits);
      bits &= 0 - uint32_t{magnitude<f32_type>(bits) < taken_from_};
      std::memcpy(to + (positions[i] - first), &bits, sizeof bits);
    }
  }

  // The sample misled: all that was taken goes back to its place.
  void put_back() {
    if (taken_from_ == magnitudes_end) return;
    taken_from_ = magnitudes_end;
    uint64_t i = 0;
    for (size_t piece = 0; piece < s_.pieces.size(); ++piece) {
      const select_piece& p = s_.pieces[piece];
      const uint64_t end = p.range < range_ ? m_.ends[p.range] : p.range == range_ ? count_ : 0;
      float* const to = s_.place(s_.self, piece);
      for (; i < end && m_.positions[i] - p.position < p.n; ++i)
        std::memcpy(to + (m_.positions[i] - p.position), kept_at(i), sizeof(float));
    }
  }

  // Calls f(piece, values, where in the piece, n) for runs, in order and always the same ones, as long as it returns true.
  template <class F>
  bool each_run(F&& f) {
    alignas(64) std::byte room[4 * select_run];
    uint64_t run = 0;
    for (size_t i = 0; i < s_.pieces.size(); ++i) {
      const select_piece& p = s_.pieces[i];
      // (What is made is to stay in L1.)
      const uint64_t size = value_size(s_.dtype), ahead = ahead_of(p);
      uint32_t n = 0;
      for (uint64_t at = 0; at < p.n; at += n, ++run) {
        n = static_cast<uint32_t>(std::min(p.values ? select_run - (at ? 0 : ahead) : select_run / 4, p.n - at));
        const void* v = nullptr;
        if (p.values)
          v = static_cast<const std::byte*>(p.values) + at * size;
        else
          v = s_.load(s_.self, i, at, n, run < loaded_ ? select_load::again : select_load::first, room);
        loaded_ = std::max(loaded_, run + 1);
        if (!f(p, v, at, n)) return false;
      }
    }
    return true;
  }

  // Magnitudes of jittered cache lines, one of each stretch; of all values if there are few.
  uint64_t sample() {
    const uint64_t wanted = sample_wanted(n_);
    uint64_t taken = 0;
    if (wanted >= n_) {
      each_run([&](const select_piece&, const void* v, uint64_t, uint32_t n) {
        taken += k_.magnitudes(v, n, 0, magnitudes_end, scratch_.sample + taken);
        return true;
      });
      return taken;
    }
    const uint64_t size = value_size(s_.dtype), line = 64 / size, lines = wanted / line, stretch = n_ / lines;
    // Some at a time, all of them on their way before the first is looked at.
    struct run {
      size_t piece;
      uint64_t at;
      uint32_t n;
    };
    constexpr uint64_t together = 32;
    run runs[together];
    size_t i = 0;
    uint64_t begin = 0;  // of piece i
    for (uint64_t from = 0; from < lines; from += together) {
      const uint64_t to = std::min(lines, from + together);
      for (uint64_t k = from; k < to; ++k) {
        const uint64_t at = k * stretch + draw(k, n_) % (stretch - line + 1);
        while (at >= begin + s_.pieces[i].n) begin += s_.pieces[i++].n;
        const select_piece& p = s_.pieces[i];
        uint64_t first = at - begin;
        const uint64_t ahead = (reinterpret_cast<uintptr_t>(p.values) / size + first) % line;
        first -= std::min(first, ahead);
        runs[k - from] = {i, first, static_cast<uint32_t>(std::min(line, p.n - first))};
        if (p.values)
          __builtin_prefetch(static_cast<const std::byte*>(p.values) + first * size);
        else
          s_.load(s_.self, i, first, runs[k - from].n, select_load::hint, nullptr);
      }
      for (uint64_t k = from; k < to; ++k) {
        const run& r = runs[k - from];
        alignas(64) std::byte room[64];
        const void* v = nullptr;
        if (const void* const values = s_.pieces[r.piece].values)
          v = static_cast<const std::byte*>(values) + r.at * size;
        else
          v = s_.load(s_.self, r.piece, r.at, r.n, select_load::peek, room);
        taken += k_.magnitudes(v, r.n, 0, magnitudes_end, scratch_.sample + taken);
      }
    }
    return taken;
  }

  ranked sampled_rank(const uint32_t* keys, uint64_t n, uint64_t rank, uint32_t low) const {
    return find_rank(keys_, keys, n, rank, low, magnitudes_end, scratch_.middle);
  }

  // Leaves the `target` largest of what was collected; returns the smallest magnitude of them.
  uint32_t cut(uint64_t target) {
    selection s{};
    const uint64_t above = count_ - in_middle_;
    if (low_ < high_ && above < target) {
      const ranked r = find_rank(keys_, scratch_.middle, in_middle_, target - above, low_, high_, scratch_.middle);
      s = {r.key, target - above - r.above, target};
    } else if (const uint64_t larger = k_.count(m_.kept, count_, least_ + 1); larger < target) {
      s = {least_, target - larger, target};  // as where much is equal: clipped, constant
    } else {
      s = select_largest(s_.dtype, m_.kept, count_, target);
    }
    if (s.above >= taken_from_) put_back();
    uint64_t begin = 0, out = 0;
    for (uint32_t r = 0; r <= range_; ++r) {
      const uint64_t end = m_.ends[r];
      out += k_.cut(begin - out, end - begin, s.above, s.ties, m_.positions + out, kept_at(out));
      begin = end;
      m_.ends[r] = out;
    }
    count_ = out;
    in_middle_ = 0;
    least_ = s.above;
    return s.above;
  }

  void by_radix(uint64_t target) {
    selection s = radix_select(s_.dtype, target, [&](auto&& f) {
      each_run([&](const select_piece&, const void* v, uint64_t, uint32_t n) {
        f(v, n);
        return true;
      });
    });
    count_ = 0;
    range_ = 0;
    each_run([&](const select_piece& p, const void* v, uint64_t at, uint32_t n) {
      for (; range_ < p.range; ++range_) m_.ends[range_] = count_;
      uint32_t* const positions = m_.positions + count_;
      const uint64_t found = compact_selected(s_.dtype, v, n, s, positions);
      with_value_type(s_.dtype, [&](auto type) {
        using bits = typename decltype(type)::bits;
        auto* const kept = static_cast<bits*>(kept_at(count_));
        for (uint64_t i = 0; i < found; ++i) {
          kept[i] = static_cast<const bits*>(v)[positions[i]];
          positions[i] += p.position + static_cast<uint32_t>(at);
        }
      });
      count_ += found;
      return true;
    });
    close();
  }

 public:
  kept_count result() const { return {count_, taken_from_}; }

 private:
  const select_source& s_;
  const select_memory& m_;
  const select_crew& crew_;
  const select_scratch scratch_;
  const select_kernels &k_, &keys_;
  uint64_t n_;
  uint64_t loaded_ = 0;  // runs
  // Of what is shared: the block that is to be given its place.
  std::atomic<size_t> turn_ = 0;
  size_t piece_ = 0;
  bool too_many_ = false;
  uint64_t count_ = 0, in_middle_ = 0;  // collected; of them in [low_, high_), whose magnitudes are in the middle
  uint32_t low_ = 1, high_ = 0, range_ = 0;
  uint32_t least_ = 1;  // no magnitude collected is below it
  uint32_t taken_from_ = magnitudes_end;
};

// Twice as many as are wanted, and at least what a sample needs to be wrong by.
uint64_t room_for(uint64_t n, uint64_t target) { return target < n ? std::min(n, 2 * target + 65536) : n; }

}  // namespace

select_memory select_memory::take(arena& memory, uint32_t dtype, uint64_t n, uint64_t target, uint64_t ranges) {
  select_memory m{};
  m.room = room_for(n, target);
  const uint64_t spare = (m.room < n ? select_run : 0) + select_spare;
  m.positions = memory.take<uint32_t>(m.room + spare);
  m.kept = memory.take<std::byte>((m.room + spare) * value_size(dtype));
  m.ends = memory.take<uint64_t>(ranges);
  return m;
}

void select_scratch::grow(uint64_t n, uint64_t target, bool shared) {
  if (shared && n >= select_shared) block_room = select_block;
  if (target >= n) return;
  // (Of fewer values than there may be, all may be the sample.)
  sample_room = std::max({sample_room, std::min(n, sample_whole), sample_wanted(n)});
  middle_room = std::max({middle_room, room_for(n, target) / 2, sample_room});
}

select_scratch select_scratch::take(arena& memory) const {
  const auto some = [&](uint64_t n) { return memory.take<uint32_t>(n ? n + select_run + select_spare : 0); };
  select_scratch s = *this;
  s.sample = some(sample_room);
  s.middle = some(middle_room);
  s.positions = some(block_room);
  s.near = some(block_room);
  s.kept = some(block_room);
  return s;
}

kept_count keep_from(const select_source& source, uint32_t low, const select_memory& memory, const select_crew& crew) {
  keeper k(source, memory, crew);
  k.collect(low, 0, 0);
  k.close();
  return k.result();
}

kept_count keep_largest(const select_source& source, uint64_t target, const select_memory& memory,
                        const select_crew& crew) {
  if (target >= source.elements()) return keep_from(source, 1, memory, crew);
  keeper k(source, memory, crew);
  k.largest(target);
  return k.result();
}

}  // namespace dr
