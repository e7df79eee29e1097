#include "sparsify/select.hpp"

#include <algorithm>
#include <cmath>

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

constexpr uint64_t sample_whole = 65536;  // so few values are all sampled

// So many that the target-th magnitude is known to a few percent, and a small part of the pass.
uint64_t sample_wanted(uint64_t n) {
  constexpr uint64_t fewest = 16384, most = 262144;
  return n <= sample_whole ? n : std::clamp(n / 256, fewest, most);
}

struct ranked {
  uint32_t key;
  uint64_t above;  // keys above it
};

// The rank-th largest of n keys, all in [low, high), 1 <= rank <= n. scratch [n], perhaps the keys themselves.
ranked find_rank(const select_kernels& k, const uint32_t* keys, uint64_t n, uint64_t rank, uint32_t low, uint32_t high,
                 uint32_t* scratch) {
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

class keeper {
 public:
  keeper(const select_source& source, const select_memory& memory, const select_scratch& scratch, cpu_level level)
      : s_(source),
        m_(memory),
        scratch_(scratch),
        k_(select_at(level, source.dtype)),
        keys_(select_at(level, DR_F32)),
        n_(source.elements()) {}

  // false: cut too often, so it would be quicker to ask the radix.
  bool collect(uint32_t low, uint32_t high, uint64_t target) {
    count_ = in_middle_ = 0;
    low_ = low;
    high_ = high;
    range_ = 0;
    unsigned cuts = 0;
    constexpr unsigned cuts_most = 6;
    return each_tile([&](const select_piece& p, const void* v, uint64_t at, uint32_t n) {
      for (; range_ < p.range; ++range_) m_.ends[range_] = count_;
      auto* const kept = kept_at(count_);
      const uint32_t found =
          k_.collect(v, n, low_, p.position + static_cast<uint32_t>(at), m_.positions + count_, kept);
      count_ += found;
      if (low_ < high_) in_middle_ += k_.magnitudes(kept, found, low_, high_, scratch_.middle + in_middle_);
      if (in_middle_ > scratch_.middle_room) high_ = 0;
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

  uint64_t largest(uint64_t target) {
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
        return count_;
      }
      // The sample promised too much: as much less of it, and twice as far.
      expected *= static_cast<double>(target) / static_cast<double>(std::max<uint64_t>(count_, 1));
      slack = expected + 2 * slack;
    }
    return by_radix(target);
  }

 private:
  void* kept_at(uint64_t i) const { return static_cast<std::byte*>(m_.kept) + i * value_size(s_.dtype); }

  // Calls f(piece, values, where in the piece, n) for tiles, in order, as long as it returns true.
  template <class F>
  bool each_tile(F&& f) const {
    alignas(64) std::byte made[4 * select_run];
    for (size_t i = 0; i < s_.pieces.size(); ++i) {
      const select_piece& p = s_.pieces[i];
      // Runs begin with a cache line: reading across lines takes twice the time here.
      const uint64_t size = value_size(s_.dtype), ahead = reinterpret_cast<uintptr_t>(p.values) % 64 / size;
      uint32_t n = 0;
      for (uint64_t at = 0; at < p.n; at += n) {
        n = static_cast<uint32_t>(std::min(select_run - (at ? 0 : ahead), p.n - at));
        const void* v = made;
        if (p.values)
          v = static_cast<const std::byte*>(p.values) + at * size;
        else
          s_.load(s_.self, i, at, n, made);
        if (!f(p, v, at, n)) return false;
      }
    }
    return true;
  }

  // Magnitudes of jittered cache lines, one of each stretch; of all values if there are few.
  uint64_t sample() const {
    const uint64_t wanted = sample_wanted(n_);
    uint64_t taken = 0;
    if (wanted >= n_) {
      each_tile([&](const select_piece&, const void* v, uint64_t, uint32_t n) {
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
        if (p.values) __builtin_prefetch(static_cast<const std::byte*>(p.values) + first * size);
      }
      for (uint64_t k = from; k < to; ++k) {
        const run& r = runs[k - from];
        alignas(64) std::byte made[64];
        const void* v = made;
        if (const void* const values = s_.pieces[r.piece].values)
          v = static_cast<const std::byte*>(values) + r.at * size;
        else
          s_.load(s_.self, r.piece, r.at, r.n, made);
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
    } else {
      s = select_largest(s_.dtype, m_.kept, count_, target);
    }
    uint64_t begin = 0, out = 0;
    for (uint32_t r = 0; r <= range_; ++r) {
      const uint64_t end = m_.ends[r];
      out += k_.cut(begin - out, end - begin, s.above, s.ties, m_.positions + out, kept_at(out));
      begin = end;
      m_.ends[r] = out;
    }
    count_ = out;
    in_middle_ = 0;
    return s.above;
  }

  uint64_t by_radix(uint64_t target) {
    selection s = radix_select(s_.dtype, target, [&](auto&& f) {
      each_tile([&](const select_piece&, const void* v, uint64_t, uint32_t n) {
        f(v, n);
        return true;
      });
    });
    count_ = 0;
    range_ = 0;
    each_tile([&](const select_piece& p, const void* v, uint64_t at, uint32_t n) {
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
    return count_;
  }

 public:
  uint64_t count() const { return count_; }

 private:
  const select_source& s_;
  const select_memory& m_;
  const select_scratch scratch_;
  const select_kernels &k_, &keys_;
  uint64_t n_;
  uint64_t count_ = 0, in_middle_ = 0;  // collected; of them in [low_, high_), whose magnitudes are in the middle
  uint32_t low_ = 1, high_ = 0, range_ = 0;
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

void select_scratch::grow(uint64_t n, uint64_t target) {
  if (target >= n) return;
  // (Of fewer values than there may be, all may be the sample.)
  sample_room = std::max({sample_room, std::min(n, sample_whole), sample_wanted(n)});
  middle_room = std::max({middle_room, room_for(n, target) / 2, sample_room});
}

select_scratch select_scratch::take(arena& memory) const {
  select_scratch s = *this;
  s.sample = memory.take<uint32_t>(sample_room ? sample_room + select_spare : 0);
  s.middle = memory.take<uint32_t>(middle_room ? middle_room + select_run + select_spare : 0);
  return s;
}

uint64_t keep_from(const select_source& source, uint32_t low, const select_memory& memory, cpu_level level) {
  keeper k(source, memory, {}, level);
  k.collect(low, 0, 0);
  k.close();
  return k.count();
}

uint64_t keep_largest(const select_source& source, uint64_t target, const select_memory& memory,
                      const select_scratch& scratch, cpu_level level) {
  if (target >= source.elements()) return keep_from(source, 1, memory, level);
  return keeper(source, memory, scratch, level).largest(target);
}

}  // namespace dr
