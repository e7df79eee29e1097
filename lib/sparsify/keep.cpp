// Selection in one pass: of all magnitudes from one upward, and of the largest.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "primitive/rng.hpp"
#include "sparsify/rank.hpp"
#include "sparsify/source_walk.hpp"

namespace dr {
namespace {

constexpr uint64_t sample_whole = 2048;  // of up to so many values all are sampled

// Enough values to estimate the target-th magnitude to a few percent, at a small part of the time of the pass.
uint64_t sample_size(uint64_t n) {
  constexpr uint64_t usual = 4096, largest = 262144;
  return n <= sample_whole ? n : std::max(std::min(n / 8, usual), std::min(n / 512, largest));
}

// Magnitudes in [low, high): the target-th is probably among them.
struct band {
  uint32_t low, high;
};

class selection_pass {
 public:
  selection_pass(const select_source& source, const select_memory& memory, const select_crew& crew, bool loaded)
      : s_(source),
        m_(memory),
        crew_(crew),
        scratch_(crew.scratch ? crew.scratch[0] : select_scratch{}),
        k_(select_at(crew.level, source.dtype)),
        keys_(select_at(crew.level, DR_F32)),
        walk_(source, crew, loaded),
        n_(walk_.elements()),
        out_{memory, source.dtype} {}

  selection_result from(uint32_t low) {
    collect(low, std::nullopt, 0);
    out_.close(s_);
    return result();
  }

  selection_result largest(uint64_t target) {
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
        const double certain = std::floor(expected - slack / 2);  // (if it is not, the pass is slower)
        if (certain < 1)
          high = magnitudes_end;
        else if (certain <= static_cast<double>(upper))
          high = std::max(high, sampled_rank(scratch_.middle, upper, static_cast<uint64_t>(certain), low).key);
      }
      if (!collect(low, band{low, high}, target)) break;
      if (out_.count >= target || low == 1) {
        out_.close(s_);
        if (out_.count > target) cut(target);
        return result();
      }
      restore_source();
      // The sample overestimated: scale its expected rank by the error, and double the slack.
      expected *= static_cast<double>(target) / static_cast<double>(std::max<uint64_t>(out_.count, 1));
      slack = expected + 2 * slack;
    }
    restore_source();
    by_radix(target);
    return result();
  }

 private:
  selection_result result() const { return {out_.count, cleared_from_}; }

  void begin(uint32_t low, std::optional<band> middle) {
    out_.count = in_middle_ = 0;
    out_.range = 0;
    low_ = smallest_ = low;
    middle_ = middle;
    cleared_from_ = s_.place ? (middle ? middle->high : low) : magnitudes_end;
    notified_ = s_.found != nullptr;
  }

  // Collects all magnitudes from `low` on; once the room is full, only the `target` largest. false: that happened so
  // often that the radix selection is faster.
  bool collect(uint32_t low, std::optional<band> middle, uint64_t target) {
    if (walk_.shares() && collect_shared(low, middle)) return true;
    restore_source();
    return collect_alone(low, middle, target);
  }

  bool collect_alone(uint32_t low, std::optional<band> middle, uint64_t target) {
    begin(low, middle);
    unsigned cuts = 0;
    constexpr unsigned cuts_max = 6;
    return walk_.each_run([&](size_t piece, const void* v, uint64_t at, uint32_t n) {
      const select_piece& p = s_.pieces[piece];
      out_.enter(p);
      std::byte* const selected = out_.values_at(out_.count);
      const uint32_t found =
          k_.collect(v, n, low_, p.position + static_cast<uint32_t>(at), out_.positions_at(out_.count), selected);
      out_.count += found;
      if (middle_)
        in_middle_ += k_.magnitudes(selected, found, middle_->low, middle_->high, scratch_.middle + in_middle_);
      if (in_middle_ > scratch_.middle_capacity) middle_.reset();
      if (cleared_from_ != magnitudes_end) clear_source(piece, out_.positions_at(out_.count - found), selected, found);
      if (s_.found) s_.found(s_.self, piece, out_.positions_at(out_.count - found), found, out_.count - found);
      if (out_.count <= m_.capacity) return true;
      if (cuts++ == cuts_max) return false;
      // More than the target are collected: from here on only larger values matter.
      m_.ends[out_.range] = out_.count;
      low_ = cut(target) + 1;
      middle_.reset();
      return true;
    });
  }

  // Workers do not see one another's results, so none can cut. false: there is not enough room.
  bool collect_shared(uint32_t low, std::optional<band> middle) {
    begin(low, middle);
    bool fits = true;
    struct found {
      uint64_t n, near;
    };
    walk_.each_block<found>(
        [&](const select_piece& p) { out_.enter(p); },
        [&](found& block, size_t worker, size_t piece, const void* v, uint64_t at, uint32_t n) {
          const select_scratch& w = crew_.scratch[worker];
          auto* const selected = static_cast<std::byte*>(w.values) + block.n * value_size(s_.dtype);
          const uint32_t more = k_.collect(v, n, low_, s_.pieces[piece].position + static_cast<uint32_t>(at),
                                           w.positions + block.n, selected);
          if (middle_) block.near += k_.magnitudes(selected, more, middle_->low, middle_->high, w.near + block.near);
          block.n += more;
        },
        [&](const found& block, size_t worker, size_t piece, auto&& next) {
          const select_scratch& w = crew_.scratch[worker];
          const uint64_t to = out_.count, to_middle = in_middle_;
          const bool block_fits = fits =
              fits && to + block.n <= m_.capacity && to_middle + block.near <= scratch_.middle_capacity;
          if (block_fits) {
            out_.count += block.n;
            in_middle_ += block.near;
          }
          next();
          if (!block_fits) return;
          out_.put(to, w.positions, w.values, block.n);
          if (block.near) std::memcpy(scratch_.middle + to_middle, w.near, block.near * sizeof(uint32_t));
          if (cleared_from_ != magnitudes_end) clear_source(piece, w.positions, w.values, block.n);
          if (s_.found) s_.found(s_.self, piece, w.positions, block.n, to);
        });
    return fits;
  }

  // Sets the values that are certainly selected to 0 in the source, of pairs that were found in a piece. (Inlined it
  // costs the loop 8 % even where it is not called.)
  [[gnu::noinline]] void clear_source(size_t piece, const uint32_t* positions, const void* values, uint64_t n) const {
    const uint32_t first = s_.pieces[piece].position;
    float* const to = s_.place(s_.self, piece);
    for (uint64_t i = 0; i < n; ++i) {  // without a branch: the other values are written back unchanged
      uint32_t bits;
      std::memcpy(&bits, static_cast<const std::byte*>(values) + 4 * i, sizeof bits);
      bits &= 0 - uint32_t{magnitude<f32_type>(bits) < cleared_from_};
      std::memcpy(to + (positions[i] - first), &bits, sizeof bits);
    }
  }

  // The estimate of the sample failed: writes all collected values back to the source.
  void restore_source() {
    if (notified_) withdraw_all();
    if (cleared_from_ == magnitudes_end) return;
    cleared_from_ = magnitudes_end;
    uint64_t i = 0;
    for (size_t piece = 0; piece < s_.pieces.size(); ++piece) {
      const select_piece& p = s_.pieces[piece];
      const uint64_t end = p.range < out_.range ? m_.ends[p.range] : p.range == out_.range ? out_.count : 0;
      float* const to = s_.place(s_.self, piece);
      for (; i < end && m_.positions[i] - p.position < p.n; ++i)
        std::memcpy(to + (m_.positions[i] - p.position), out_.values_at(i), sizeof(float));
    }
  }

  // Notifies the source that no pair found so far is selected.
  void withdraw_all() {
    notified_ = false;
    uint64_t begin = 0;
    for (uint32_t r = 0; r <= out_.range; ++r) {
      const uint64_t end = r < out_.range ? m_.ends[r] : out_.count;
      s_.cut(s_.self, r, out_.positions_at(begin), out_.values_at(begin), begin, end - begin, 0, magnitudes_end, 0);
      begin = end;
    }
  }

  // Magnitudes of jittered cache lines, one per stretch; of all values if there are few.
  uint64_t sample() {
    uint64_t wanted_size = sample_size(n_);
    // Where a value stands for several elements, a surplus costs more.
    if (s_.found && wanted_size < n_) wanted_size = std::min({3 * wanted_size, n_ / 8, scratch_.sample_capacity});
    uint64_t sampled = 0;
    if (wanted_size >= n_) {
      walk_.each_run([&](size_t, const void* v, uint64_t, uint32_t n) {
        sampled += k_.magnitudes(v, n, 0, magnitudes_end, scratch_.sample + sampled);
        return true;
      });
      return sampled;
    }
    const uint64_t size = value_size(s_.dtype), line = 64 / size, lines = wanted_size / line, stretch = n_ / lines;
    // In groups: all lines of a group are prefetched before the first is read.
    struct run {
      size_t piece;
      uint64_t at;
      uint32_t n;
    };
    constexpr uint64_t group = 32;
    run runs[group];
    size_t i = 0;
    uint64_t begin = 0;  // of piece i
    for (uint64_t from = 0; from < lines; from += group) {
      const uint64_t to = std::min(lines, from + group);
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
        sampled += k_.magnitudes(v, r.n, 0, magnitudes_end, scratch_.sample + sampled);
      }
    }
    return sampled;
  }

  ranked sampled_rank(const uint32_t* keys, uint64_t n, uint64_t rank, uint32_t low) const {
    return find_rank(keys_, keys, n, rank, low, magnitudes_end, scratch_.middle);
  }

  // Reduces the collected values to the `target` largest; returns the smallest magnitude of these.
  uint32_t cut(uint64_t target) {
    selection s{};
    const uint64_t above = out_.count - in_middle_;
    if (middle_ && above < target) {
      const ranked r =
          find_rank(keys_, scratch_.middle, in_middle_, target - above, middle_->low, middle_->high, scratch_.middle);
      s = {r.key, target - above - r.above, target};
    } else if (const uint64_t larger = k_.count(m_.values, out_.count, smallest_ + 1); larger < target) {
      s = {smallest_, target - larger, target};  // (many equal values: clipped or constant data)
    } else {
      s = select_largest(s_.dtype, m_.values, out_.count, target);
    }
    if (s.above >= cleared_from_) restore_source();
    uint64_t begin = 0, out = 0;
    for (uint32_t r = 0; r <= out_.range; ++r) {
      const uint64_t end = m_.ends[r];
      if (s_.cut)
        s_.cut(s_.self, r, out_.positions_at(begin), out_.values_at(begin), begin, end - begin, out, s.above, s.ties);
      out += k_.cut(begin - out, end - begin, s.above, s.ties, m_.positions + out, out_.values_at(out));
      begin = end;
      m_.ends[r] = out;
    }
    out_.count = out;
    in_middle_ = 0;
    smallest_ = s.above;
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
        auto* const selected = reinterpret_cast<bits*>(out_.values_at(out_.count));
        for (uint64_t i = 0; i < found; ++i) {
          selected[i] = static_cast<const bits*>(v)[positions[i]];
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
  selected_pairs out_;
  uint32_t low_ = 1;            // the least magnitude to collect
  std::optional<band> middle_;  // if tracked: the collected magnitudes in it are in scratch_.middle
  uint64_t in_middle_ = 0;      // their number
  uint32_t smallest_ = 1;       // no collected magnitude is below it
  uint32_t cleared_from_ = magnitudes_end;
  bool notified_ = false;  // the source, of pairs that were found (select_source::found)
};

// Twice the target, and at least the margin of error of a sample.
uint64_t capacity_for(uint64_t n, uint64_t target) { return target < n ? std::min(n, 2 * target + 65536) : n; }

}  // namespace

select_memory select_memory::lay_out(arena& memory, uint32_t dtype, uint64_t n, uint64_t target, uint64_t ranges) {
  select_memory m{};
  m.capacity = capacity_for(n, target);
  const uint64_t spare = (m.capacity < n ? select_run : 0) + select_spare;
  m.positions = memory.allocate<uint32_t>(m.capacity + spare);
  m.values = memory.allocate<std::byte>((m.capacity + spare) * value_size(dtype));
  m.ends = memory.allocate<uint64_t>(ranges);
  return m;
}

void select_scratch::grow(uint64_t n, uint64_t target, bool shared) {
  if (shared && n >= select_shared) block_capacity = select_block;
  if (target >= n) return;
  // (With fewer values than `n`, the sample may be all of them.)
  sample_capacity = std::max({sample_capacity, std::min(n, sample_whole), sample_size(n)});
  middle_capacity = std::max({middle_capacity, capacity_for(n, target) / 2, sample_capacity});
}

select_scratch select_scratch::lay_out(arena& memory) const {
  const auto some = [&](uint64_t n) { return memory.allocate<uint32_t>(n ? n + select_run + select_spare : 0); };
  select_scratch s = *this;
  s.sample = some(sample_capacity);
  s.middle = some(middle_capacity);
  s.positions = some(block_capacity);
  s.near = some(block_capacity);
  s.values = some(block_capacity);
  return s;
}

selection_result keep_from(const select_source& source, uint32_t low, const select_memory& memory,
                           const select_crew& crew) {
  return selection_pass(source, memory, crew, false).from(low);
}

selection_result keep_largest(const select_source& source, uint64_t target, const select_memory& memory,
                              const select_crew& crew, bool loaded) {
  selection_pass pass(source, memory, crew, loaded);
  return target >= source.elements() ? pass.from(1) : pass.largest(target);
}

}  // namespace dr
