// The largest magnitudes of every chunk of contiguous elements (SPEC.md).
#include <algorithm>
#include <atomic>
#include <thread>

#include "codecs/sparsifiers.hpp"
#include "sparsify/block_map.hpp"
#include "sparsify/rank.hpp"
#include "sparsify/select_device.hpp"
#include "sparsify/source_walk.hpp"

namespace dr {
namespace {

enum param : size_t { ratio = share_ratio, count = share_count, size };

// So many values of a chunk, at most, that what a worker finds in it fits its scratch.
constexpr uint64_t chunk_max = select_block;

uint64_t chunk_size(const dr_params& p) { return static_cast<uint64_t>(param_value(p, size).number); }

// Of a chunk of n elements.
uint64_t target_of(const dr_params& p, uint64_t n) {
  const uint64_t s = chunk_size(p), whole = share_target(p, s);
  return n == s ? whole : n ? std::max<uint64_t>(1, whole * n / s) : 0;
}

uint64_t target(const dr_params& p, uint64_t universe) {
  const uint64_t s = chunk_size(p);
  return universe / s * target_of(p, s) + target_of(p, universe % s);
}

// What a chunk is cut at, and how far below it the next one's candidates begin. A matter of time only, so that workers
// may share it: the memory of it is relaxed.
struct cut_guess {
  std::atomic<uint32_t> key{0}, margin;

  explicit cut_guess(uint32_t dtype) : margin(octave(dtype) / 4) {}
  static uint32_t octave(uint32_t dtype) {
    return with_value_type(dtype, [](auto type) {
      const uint32_t infinity = decltype(type)::infinity;
      return infinity & (0 - infinity);
    });
  }
};

// Chunks of a source, each selected by itself. The pairs of a group of chunks go to a place of their own.
class chunk_pass {
 public:
  explicit chunk_pass(const keep_call& call)
      : s_(call.source),
        call_(call),
        k_(select_at(call.crew.level, s_.dtype)),
        keys_(select_at(call.crew.level, DR_F32)),
        n_(s_.elements()),
        size_(chunk_size(call.params)),
        chunks_(ceil_div(call.universe, size_)),
        whole_target_(target_of(call.params, size_)),
        last_target_(target_of(call.params, call.universe % size_)),
        octave_(cut_guess::octave(s_.dtype)),
        guess_(s_.dtype) {}

  selection_result run() {
    const uint32_t cleared_from = s_.place ? 1 : magnitudes_end;
    if (s_.pieces.empty()) return {0, cleared_from};
    const select_crew& crew = call_.crew;
    if (!crew.workers || crew.workers->workers() == 1 || n_ < select_shared) {
      auto* const keys = static_cast<uint32_t*>(call_.scratch);
      return {keep_group(0, chunks_, {call_.memory.positions, call_.memory.values, keys}), cleared_from};
    }
    const uint64_t each = std::max<uint64_t>(1, select_block / size_);
    const auto groups = static_cast<size_t>(ceil_div(chunks_, each));
    std::atomic<size_t> turn = 0;
    uint64_t total = 0;
    const selected_pairs out{call_.memory, s_.dtype};
    auto one = [&](size_t group, size_t worker) {
      const select_scratch& w = crew.scratch[worker];
      const uint64_t first = group * each, behind = std::min(chunks_, first + each);
      const uint64_t found = keep_group(first, behind, {w.positions, w.values, w.near});
      fence_streams();
      // Groups begin in order, so a worker that others wait for is running.
      for (unsigned spins = 0; turn.load(std::memory_order_acquire) != group; ++spins)
        if (spins > 1000) std::this_thread::yield();
      const uint64_t to = total;
      total += found;
      turn.store(group + 1, std::memory_order_release);
      out.put(to, w.positions, w.values, found);
      for (uint32_t r = range_of(first), end = closed_by(behind); r < end; ++r) call_.memory.ends[r] += to;
    };
    using task = decltype(one);
    crew.workers->run(
        groups, [](void* f, size_t group, size_t worker) { (*static_cast<task*>(f))(group, worker); }, &one);
    return {total, cleared_from};
  }

 private:
  struct group_memory {
    uint32_t* positions;
    void* values;
    uint32_t* keys;  // of a chunk, and select_spare
  };
  struct cut_at {
    uint32_t above;
    uint64_t ties;
  };
  struct part {
    size_t piece;
    uint64_t at, n;
  };

  // The place of a chunk's first value among the source's.
  uint64_t first_of(uint64_t chunk) const {
    if (chunk >= chunks_) return n_;
    if (!call_.indices) return chunk * size_;
    return static_cast<uint64_t>(std::lower_bound(call_.indices, call_.indices + n_, chunk * size_) - call_.indices);
  }
  size_t piece_of(uint64_t value) const {
    const auto behind = std::upper_bound(s_.pieces.begin(), s_.pieces.end(), value,
                                         [](uint64_t v, const select_piece& p) { return v < p.before; });
    return static_cast<size_t>(behind - s_.pieces.begin()) - 1;
  }
  // A group ends the ranges from that of its first value up to that of the next group's.
  uint32_t range_of(uint64_t chunk) const {
    return chunk ? s_.pieces[piece_of(std::min(first_of(chunk), n_ - 1))].range : 0;
  }
  uint32_t closed_by(uint64_t chunk) const { return chunk < chunks_ ? range_of(chunk) : s_.pieces.back().range + 1; }

  // Calls f(part) for those of the values from `begin` to `end`, in order.
  template <class F>
  void each_part(size_t piece, uint64_t begin, uint64_t end, F&& f) const {
    for (; begin < end; ++piece) {
      const select_piece& p = s_.pieces[piece];
      const uint64_t stop = std::min(end, p.before + p.n);
      if (stop > begin) f(part{piece, begin - p.before, stop - begin});
      begin = std::max(begin, stop);
    }
  }

  // The pairs of chunks [first, behind); the ends of ranges count from the group's first pair. Returns their number.
  uint64_t keep_group(uint64_t first, uint64_t behind, const group_memory& m) {
    uint64_t out = 0, begin = first_of(first);
    if (n_ == 0) {
      std::fill_n(call_.memory.ends, s_.pieces.back().range + 1, 0);
      return 0;
    }
    uint32_t range = range_of(first);
    for (uint64_t c = first; c < behind; ++c) {
      const uint64_t end = first_of(c + 1);
      const uint64_t chunk_target = (c + 1) * size_ <= call_.universe ? whole_target_ : last_target_;
      if (end > begin) out = keep_chunk(begin, end, chunk_target, m, range, out);
      begin = end;
    }
    for (const uint32_t closed = closed_by(behind); range < closed; ++range) call_.memory.ends[range] = out;
    return out;
  }

  // Appends the pairs of a chunk behind `out` others, of which `range` is the last one's. Returns the number of all.
  uint64_t keep_chunk(uint64_t begin, uint64_t end, uint64_t target, const group_memory& m, uint32_t& range,
                      uint64_t out) {
    const uint64_t width = value_size(s_.dtype);
    const size_t piece = piece_of(begin);
    const uint32_t from_range = range;
    const uint32_t key = guess_.key.load(std::memory_order_relaxed);
    uint32_t margin = guess_.margin.load(std::memory_order_relaxed), below = margin;
    uint32_t low = key > below ? key - below : 1;
    uint64_t found = 0;
    for (select_load what = select_load::first;; what = select_load::again) {
      found = 0;
      range = from_range;
      each_part(piece, begin, end, [&](const part& p) {
        for (; range < s_.pieces[p.piece].range; ++range) call_.memory.ends[range] = out + found;
        found +=
            collect(p, low, what, m.positions + out + found, static_cast<std::byte*>(m.values) + (out + found) * width);
      });
      if (found >= target || low == 1) break;
      below = std::min(below, magnitudes_end / 8) * 4;
      low = low > below ? low - below : 1;
    }
    if (found > target) {
      const cut_at at = find_cut(static_cast<std::byte*>(m.values) + out * width, found, target, low, key, m.keys);
      learn(key, margin, at.above, below != margin, found > 2 * target);
      cut(m, from_range, range, out, found, at);
      found = target;
    }
    if (s_.place) take(piece, begin, end, from_range, range, m, out, found);
    return out + found;
  }

  uint32_t collect(const part& p, uint32_t low, select_load what, uint32_t* positions, std::byte* kept) const {
    alignas(64) std::byte room[4 * select_run];
    const select_piece& piece = s_.pieces[p.piece];
    const uint64_t step = piece.values ? select_run : select_run / 4;
    uint32_t found = 0;
    for (uint64_t at = p.at; at < p.at + p.n; at += step) {
      const auto n = static_cast<uint32_t>(std::min(step, p.at + p.n - at));
      const void* const v = values_of(s_, p.piece, at, n, what, room);
      found += k_.collect(v, n, low, piece.position + static_cast<uint32_t>(at), positions + found,
                          kept + found * value_size(s_.dtype));
    }
    return found;
  }

  // Where to cut: any magnitude between those kept and the others serves, and a few guesses between two that are known find
  // one, unless several are equal there.
  cut_at find_cut(const void* kept, uint64_t found, uint64_t target, uint32_t low, uint32_t guess,
                  uint32_t* keys) const {
    constexpr int guesses = 12;
    uint64_t from_low = found, from_high = 0;  // magnitudes from `low` on, more than the target; from `high` on, fewer
    uint32_t high = magnitudes_end, next = guess;
    for (int k = 0; k < guesses && next > low && next < high; ++k) {
      const uint64_t from = k_.count(kept, found, next);
      if (from == target) return {next - 1, 0};
      const double step = high < magnitudes_end || from < target
                              ? 0
                              : 1.25 * (next - low) * (static_cast<double>(from - target) + 0.5) /
                                    static_cast<double>(from_low - from + 1);
      (from > target ? low : high) = next;
      (from > target ? from_low : from_high) = from;
      const double over = static_cast<double>(from_low - target) + 0.5;
      next = high < magnitudes_end
                 ? low + static_cast<uint32_t>((high - low) * (over / static_cast<double>(from_low - from_high + 1)))
                 : low + static_cast<uint32_t>(std::min(step + 1, static_cast<double>(octave_)));
      next += next == low;
    }
    const uint64_t n = k_.magnitudes(kept, found, low, magnitudes_end, keys);
    const ranked r = find_rank(keys_, keys, n, target, low, magnitudes_end, keys);
    return {r.key, target - r.above};
  }

  // The next chunk's guess: between the last ones' cuts, unless this one's was far away.
  void learn(uint32_t key, uint32_t margin, uint32_t cut, bool missed, bool many) {
    const bool far = missed || (cut > key ? cut - key : key - cut) > octave_;
    guess_.key.store(far ? cut : key - key / 4 + cut / 4, std::memory_order_relaxed);
    if (missed && margin < octave_)
      guess_.margin.store(margin + margin / 4 + 1, std::memory_order_relaxed);
    else if (many && !far && margin > octave_ / 16)
      guess_.margin.store(margin - margin / 16, std::memory_order_relaxed);
  }

  // Of the pairs of a chunk those above `above`, and the first `ties` that equal it, range after range.
  void cut(const group_memory& m, uint32_t range, uint32_t last, uint64_t out, uint64_t found, cut_at at) const {
    const uint64_t width = value_size(s_.dtype), behind = out + found;
    for (uint64_t begin = out; range <= last; ++range) {
      const uint64_t end = range < last ? call_.memory.ends[range] : behind;
      out += k_.cut(begin - out, end - begin, at.above, at.ties, m.positions + out,
                    static_cast<std::byte*>(m.values) + out * width);
      begin = end;
      if (range < last) call_.memory.ends[range] = out;
    }
  }

  // Sets the selected values to 0 in their place.
  void take(size_t piece, uint64_t begin, uint64_t end, uint32_t range, uint32_t last, const group_memory& m,
            uint64_t i, uint64_t found) const {
    const uint64_t behind = i + found;
    each_part(piece, begin, end, [&](const part& p) {
      const select_piece& at = s_.pieces[p.piece];
      for (; range < at.range; ++range) i = call_.memory.ends[range];
      const uint64_t stop = range < last ? call_.memory.ends[range] : behind;
      float* const to = s_.place(s_.self, p.piece);
      for (; i < stop && m.positions[i] - at.position < at.n; ++i) to[m.positions[i] - at.position] = 0;
    });
  }

  const select_source& s_;
  const keep_call& call_;
  const select_kernels &k_, &keys_;
  const uint64_t n_, size_, chunks_, whole_target_, last_target_;
  const uint32_t octave_;
  cut_guess guess_;
};

selection_result keep(const keep_call& call) { return chunk_pass(call).run(); }

uint64_t scratch(const dr_params& p, uint64_t universe, uint64_t) {
  return (std::min(universe, chunk_size(p)) + select_spare) * sizeof(uint32_t);
}

void on_device(const dr_params& p, uint64_t universe, device_select_job& job) {
  job.kind = device_select_job::chunks;
  job.target = target(p, universe);
  job.chunk = static_cast<uint32_t>(chunk_size(p));
  job.chunk_target = static_cast<uint32_t>(target_of(p, chunk_size(p)));
}

dr_status check(const dr_codec& entry, const dr_params& params, dr_error& error) {
  if (const dr_status s = check_share(entry, params, error)) return s;
  const double wanted = param_value(params, count).number, of = param_value(params, size).number;
  if (wanted > of) return fail(error, DR_E_ARGUMENT, "plan: chunks(count) = %.0f is above size = %.0f", wanted, of);
  return DR_OK;
}

bool keeps_all(const dr_params& p) { return target_of(p, chunk_size(p)) == chunk_size(p); }

constexpr dr_param params[] = {param_real("ratio", "share of each chunk's elements to keep (or give count)", 0, 1, 0),
                               param_int("count", "number of elements of each chunk to keep", 0, chunk_max, 0),
                               param_int("size", "elements of a chunk", 1, chunk_max, 4096)};

}  // namespace

constinit const sparsifier chunks_sparsifier = {
    .entry =
        sparsifier_entry("chunks", "the largest magnitudes of every chunk of contiguous elements, exactly", 8, params),
    .keep = keep,
    .target = target,
    .scratch = scratch,
    .check = check,
    .keeps_all = keeps_all,
    .on_device = on_device};

}  // namespace dr
