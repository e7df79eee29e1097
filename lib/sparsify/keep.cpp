// Selection in one pass: of all magnitudes from one upward, and of the largest.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "primitive/rng.hpp"
#include "sparsify/rank.hpp"
#include "sparsify/source_walk.hpp"

namespace dr {
namespace {

constexpr uint64_t sample_whole = 2048;  // so few values are all sampled

// So many that the target-th magnitude is known to a few percent, and a small part of the pass.
uint64_t sample_wanted(uint64_t n) {
  constexpr uint64_t usual = 4096, most = 262144;
  return n <= sample_whole ? n : std::max(std::min(n / 8, usual), std::min(n / 512, most));
}

class keeper {
 public:
  keeper(const select_source& source, const select_memory& memory, const select_crew& crew, bool loaded)
      : s_(source),
        m_(memory),
        crew_(crew),
        scratch_(crew.scratch ? crew.scratch[0] : select_scratch{}),
        k_(select_at(crew.level, source.dtype)),
        keys_(select_at(crew.level, DR_F32)),
        walk_(source, crew, loaded),
        n_(walk_.elements()),
        out_{memory, source.dtype} {}

  kept_count from(uint32_t low) {
    collect(low, 0, 0);
    out_.close(s_);
    return result();
  }

  kept_count largest(uint64_t target) {
    const uint64_t sampled = n_ ? sample() : 0;
    double part = static_cast<double>(sampled) / static_cast<double>(n_);
    double expected = part * static_cast<double>(target);
    // Eight standard deviations, because neighbours are correlated and so carry less information than as many
    // independent draws.
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
      if (out_.count >= target || low == 1) {
        out_.close(s_);
        if (out_.count > target) cut(target);
        return result();
      }
      put_back();
      // The sample promised too much: as much less of it, and twice as far.
      expected *= static_cast<double>(target) / static_cast<double>(std::max<uint64_t>(out_.count, 1));
      slack = expected + 2 * slack;
    }
    put_back();
    by_radix(target);
    return result();
  }

 private:
  kept_count result() const { return {out_.count, taken_from_}; }

  void begin(uint32_t low, uint32_t high) {
    out_.count = in_middle_ = 0;
    out_.range = 0;
    low_ = least_ = low;
    high_ = high;
    taken_from_ = s_.place ? std::max(low, high) : magnitudes_end;
    told_ = s_.found != nullptr;
  }

  // false: cut too often, so it would be quicker to ask the radix.
  bool collect(uint32_t low, uint32_t high, uint64_t target) {
    if (walk_.shares() && collect_shared(low, high)) return true;
    put_back();
    return collect_alone(low, high, target);
  }

  bool collect_alone(uint32_t low, uint32_t high, uint64_t target) {
    begin(low, high);
    unsigned cuts = 0;
    constexpr unsigned cuts_most = 6;
    return walk_.each_run([&](size_t piece, const void* v, uint64_t at, uint32_t n) {
      const select_piece& p = s_.pieces[piece];
      out_.enter(p);
      std::byte* const kept = out_.kept_at(out_.count);
      const uint32_t found =
          k_.collect(v, n, low_, p.position + static_cast<uint32_t>(at), out_.positions_at(out_.count), kept);
      out_.count += found;
      if (low_ < high_) in_middle_ += k_.magnitudes(kept, found, low_, high_, scratch_.middle + in_middle_);
      if (in_middle_ > scratch_.middle_room) high_ = 0;
      if (taken_from_ != magnitudes_end) take(piece, out_.positions_at(out_.count - found), kept, found);
      if (s_.found) s_.found(s_.self, piece, out_.positions_at(out_.count - found), found, out_.count - found);
      if (out_.count <= m_.room) return true;
      if (cuts++ == cuts_most) return false;
      // More than the target are collected already: of the following values only larger ones matter.
      m_.ends[out_.range] = out_.count;
      low_ = cut(target) + 1;
      high_ = 0;
      return true;
    });
  }

  // false: too much to keep for workers who know nothing of one another.
  bool collect_shared(uint32_t low, uint32_t high) {
    begin(low, high);
    bool fits = true;
    struct found {
      uint64_t n, near;
    };
    walk_.each_block<found>(
        [&](const select_piece& p) { out_.enter(p); },
        [&](found& block, size_t worker, size_t piece, const void* v, uint64_t at, uint32_t n) {
          const select_scratch& w = crew_.scratch[worker];
          auto* const kept = static_cast<std::byte*>(w.kept) + block.n * value_size(s_.dtype);
          const uint32_t more = k_.collect(v, n, low_, s_.pieces[piece].position + static_cast<uint32_t>(at),
                                           w.positions + block.n, kept);
          if (low_ < high_) block.near += k_.magnitudes(kept, more, low_, high_, w.near + block.near);
          block.n += more;
        },
        [&](const found& block, size_t worker, size_t piece, auto&& next) {
          const select_scratch& w = crew_.scratch[worker];
          const uint64_t to = out_.count, to_middle = in_middle_;
          const bool goes = fits = fits && to + block.n <= m_.room && to_middle + block.near <= scratch_.middle_room;
          if (goes) {
            out_.count += block.n;
            in_middle_ += block.near;
          }
          next();
          if (!goes) return;
          out_.put(to, w.positions, w.kept, block.n);
          if (block.near) std::memcpy(scratch_.middle + to_middle, w.near, block.near * sizeof(uint32_t));
          if (taken_from_ != magnitudes_end) take(piece, w.positions, w.kept, block.n);
          if (s_.found) s_.found(s_.self, piece, w.positions, block.n, to);
        });
    return fits;
  }

  // Of pairs that were found in a piece, takes those that are surely kept. (Inlined it costs the loop 8 % even where
  // nothing is taken.)
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

  // The estimate of the sample failed: all collected values go back to their places.
  void put_back() {
    if (told_) drop();
    if (taken_from_ == magnitudes_end) return;
    taken_from_ = magnitudes_end;
    uint64_t i = 0;
    for (size_t piece = 0; piece < s_.pieces.size(); ++piece) {
      const select_piece& p = s_.pieces[piece];
      const uint64_t end = p.range < out_.range ? m_.ends[p.range] : p.range == out_.range ? out_.count : 0;
      float* const to = s_.place(s_.self, piece);
      for (; i < end && m_.positions[i] - p.position < p.n; ++i)
        std::memcpy(to + (m_.positions[i] - p.position), out_.kept_at(i), sizeof(float));
    }
  }

  // No collected value remains to be taken from the source.
  void drop() {
    told_ = false;
    uint64_t begin = 0;
    for (uint32_t r = 0; r <= out_.range; ++r) {
      const uint64_t end = r < out_.range ? m_.ends[r] : out_.count;
      s_.cut(s_.self, r, out_.positions_at(begin), out_.kept_at(begin), begin, end - begin, 0, magnitudes_end, 0);
      begin = end;
    }
  }

  // Magnitudes of jittered cache lines, one of each stretch; of all values if there are few.
  uint64_t sample() {
    uint64_t wanted = sample_wanted(n_);
    // Values that stand for several elements cost more to find in vain.
    if (s_.found && wanted < n_) wanted = std::min({3 * wanted, n_ / 8, scratch_.sample_room});
    uint64_t taken = 0;
    if (wanted >= n_) {
      walk_.each_run([&](size_t, const void* v, uint64_t, uint32_t n) {
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
          v = s_.load(s_.self, r.piece, r.at, r.n, walk_.loaded() ? select_load::again : select_load::peek, room);
        taken += k_.magnitudes(v, r.n, 0, magnitudes_end, scratch_.sample + taken);
      }
    }
    return taken;
  }

  ranked sampled_rank(const uint32_t* keys, uint64_t n, uint64_t rank, uint32_t low) const {
    return find_rank(keys_, keys, n, rank, low, magnitudes_end, scratch_.middle);
  }

  // Keeps the `target` largest of the collected values; returns the smallest magnitude of them.
  uint32_t cut(uint64_t target) {
    selection s{};
    const uint64_t above = out_.count - in_middle_;
    if (low_ < high_ && above < target) {
      const ranked r = find_rank(keys_, scratch_.middle, in_middle_, target - above, low_, high_, scratch_.middle);
      s = {r.key, target - above - r.above, target};
    } else if (const uint64_t larger = k_.count(m_.kept, out_.count, least_ + 1); larger < target) {
      s = {least_, target - larger, target};  // as where much is equal: clipped, constant
    } else {
      s = select_largest(s_.dtype, m_.kept, out_.count, target);
    }
    if (s.above >= taken_from_) put_back();
    uint64_t begin = 0, out = 0;
    for (uint32_t r = 0; r <= out_.range; ++r) {
      const uint64_t end = m_.ends[r];
      if (s_.cut)
        s_.cut(s_.self, r, out_.positions_at(begin), out_.kept_at(begin), begin, end - begin, out, s.above, s.ties);
      out += k_.cut(begin - out, end - begin, s.above, s.ties, m_.positions + out, out_.kept_at(out));
      begin = end;
      m_.ends[r] = out;
    }
    out_.count = out;
    in_middle_ = 0;
    least_ = s.above;
    return s.above;
  }

  void by_radix(uint64_t target) {
    selection s = radix_select(s_.dtype, target, [&](auto&& f) {
      walk_.each_run([&](size_t, const void* v, uint64_t, uint32_t n) {
        f(v, n);
        return true;
      });
    });
    out_.count = 0;
    out_.range = 0;
    walk_.each_run([&](size_t piece, const void* v, uint64_t at, uint32_t n) {
      const select_piece& p = s_.pieces[piece];
      out_.enter(p);
      uint32_t* const positions = out_.positions_at(out_.count);
      const uint64_t found = compact_selected(s_.dtype, v, n, s, positions);
      with_value_type(s_.dtype, [&](auto type) {
        using bits = typename decltype(type)::bits;
        auto* const kept = reinterpret_cast<bits*>(out_.kept_at(out_.count));
        for (uint64_t i = 0; i < found; ++i) {
          kept[i] = static_cast<const bits*>(v)[positions[i]];
          positions[i] += p.position + static_cast<uint32_t>(at);
        }
      });
      if (s_.found) s_.found(s_.self, piece, positions, found, out_.count);
      out_.count += found;
      return true;
    });
    out_.close(s_);
  }

  const select_source& s_;
  const select_memory& m_;
  const select_crew& crew_;
  const select_scratch scratch_;
  const select_kernels &k_, &keys_;
  source_walk walk_;
  const uint64_t n_;
  kept_pairs out_;
  uint64_t in_middle_ = 0;  // of those collected, in [low_, high_): their magnitudes are in the middle
  uint32_t low_ = 1, high_ = 0;
  uint32_t least_ = 1;  // no magnitude collected is below it
  uint32_t taken_from_ = magnitudes_end;
  bool told_ = false;  // the source, of what was found
};

// Twice the target, and at least the margin of error of a sample.
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
  return keeper(source, memory, crew, false).from(low);
}

kept_count keep_largest(const select_source& source, uint64_t target, const select_memory& memory,
                        const select_crew& crew, bool loaded) {
  keeper k(source, memory, crew, loaded);
  return target >= source.elements() ? k.from(1) : k.largest(target);
}

}  // namespace dr
