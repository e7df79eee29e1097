// Blocks are selected like values, from a source that computes their energies.
#include "sparsify/keep_blocks.hpp"

#include "sparsify/block_map.hpp"
#include "sparsify/energy_kernel.hpp"
#include "sparsify/rank.hpp"
#include "sparsify/source_walk.hpp"

namespace dr {
namespace {

constexpr uint64_t span = uint64_t{1} << 31;  // blocks whose 32-bit numbers have the same base
constexpr uint32_t block_max = 1u << (block_sizes - 1);

// Values that are loaded together: for the sample, a cache line.
constexpr uint64_t load_group = 1024;
uint64_t peek_group(uint32_t dtype) { return 64 / value_size(dtype); }

struct energy_source {
  const select_source& from;
  const block_map& map;
  energies_of energies;

  // Energies of n blocks from b on.
  void make(uint64_t b, uint64_t n, select_load what, float* to) const {
    const uint64_t size = value_size(from.dtype), block = map.block();
    alignas(64) std::byte room[4 * (load_group + block_max)], broken[4 * block_max];
    uint64_t partial = 0;  // values of a block that continues in the next piece or the next load
    const auto one = [&] {
      std::memset(broken + partial * size, 0, (block - partial) * size);
      energies(broken, 1, to++);
      partial = 0;
    };
    map.each_part(
        b, n,
        [&](size_t piece, uint64_t at, uint64_t count) {
          while (count) {
            uint64_t some = count;
            if (!from.pieces[piece].values)
              some = std::min(count, what == select_load::peek ? peek_group(from.dtype)
                                                               : load_group + (partial ? block - partial : 0));
            const auto* v =
                static_cast<const std::byte*>(values_of(from, piece, at, static_cast<uint32_t>(some), what, room));
            at += some;
            count -= some;
            if (partial) {
              const uint64_t more = std::min(some, block - partial);
              std::memcpy(broken + partial * size, v, more * size);
              partial += more;
              v += more * size;
              some -= more;
              if (partial == block) one();
            }
            if (!some) continue;
            energies(v, some / block, to);
            to += some / block;
            partial = some % block;
            std::memcpy(broken, v + (some - partial) * size, partial * size);
          }
        },
        [&] {
          if (partial) one();
        });
  }
  // Prefetches the first lines of blocks in each piece; the CPU prefetches the following ones.
  void hint(uint64_t b, uint64_t n) const {
    constexpr uint64_t lines = 8;
    const uint64_t line = 64 / value_size(from.dtype);
    map.each_part(
        b, n,
        [&](size_t piece, uint64_t at, uint64_t count) {
          for (uint64_t i = 0; i < std::min(count, lines * line); i += line) {
            const auto some = static_cast<uint32_t>(std::min(line, count - i));
            if (const void* const v = from.pieces[piece].values)
              __builtin_prefetch(static_cast<const std::byte*>(v) + (at + i) * value_size(from.dtype));
            else
              from.load(from.self, piece, at + i, some, select_load::hint, nullptr);
          }
        },
        [] {});
  }
};

// Calls f<bytes>() for the bytes of a block, a power of two.
template <class F>
void with_row_bytes(uint64_t bytes, F&& f) {
  switch (bytes) {
    case 2: return f.template operator()<2>();
    case 4: return f.template operator()<4>();
    case 8: return f.template operator()<8>();
    case 16: return f.template operator()<16>();
    case 32: return f.template operator()<32>();
    case 64: return f.template operator()<64>();
    default: return f.template operator()<128>();
  }
}

// Copies the values of blocks to rows in the memory as blocks are found, while they are in the cache.
class block_rows {
 public:
  block_rows(const select_source& source, const block_map& map, std::byte* to) : source_(source), map_(map), to_(to) {}

  // Copies blocks ids[i] + before, ascending, i < n, to element `at` of the memory and on. Returns their end.
  uint64_t copy(const uint32_t* ids, uint64_t n, uint64_t before, uint64_t at) const {
    if (n == 0) return at;
    block_map::place p = map_.find(before + ids[0]);
    for (uint64_t i = 0; i < n;) {
      const uint64_t b = before + ids[i];
      if (!map_.holds(p, b)) p = map_.find(b);
      // All blocks that lie within this piece at once.
      const uint64_t behind = map_.whole_until(p);
      if (b >= behind) {
        at += one(b, nullptr, to_ + at * size());
        ++i;
        continue;
      }
      const uint64_t some =
          ids[n - 1] + before < behind
              ? n - i
              : static_cast<uint64_t>(std::lower_bound(ids + i, ids + n, behind - before) - (ids + i));
      whole(p, ids + i, some, static_cast<uint32_t>(p.first - before), to_ + at * size());
      at += some * map_.block();
      i += some;
    }
    return at;
  }
  // Writes a block's values back to the source.
  void restore(uint64_t b, const std::byte* from) const { (void)one(b, from, nullptr); }

  uint64_t size() const { return value_size(source_.dtype); }

 private:
  // Copies a block, which may lie in several pieces. Returns its number of elements.
  uint64_t one(uint64_t b, const std::byte* from, std::byte* to) const {
    uint64_t count = 0;
    map_.each_part(
        b, 1,
        [&](size_t piece, uint64_t at, uint64_t n) {
          if (from)
            std::memcpy(source_.place(source_.self, piece) + at, from + count * size(), n * size());
          else
            move_values(piece, at, static_cast<uint32_t>(n), to + count * size());
          count += n;
        },
        [] {});
    return count;
  }
  // Copies values of a piece and, if the source has a place for them, sets them to 0 there.
  void move_values(size_t piece, uint64_t at, uint32_t n, std::byte* to) const {
    alignas(64) std::byte room[4 * block_max];
    std::memcpy(to, values_of(source_, piece, at, n, select_load::again, room), n * size());
    if (source_.place) std::fill_n(source_.place(source_.self, piece) + at, n, 0.0f);
  }

  void whole(const block_map::place& p, const uint32_t* ids, uint64_t n, uint32_t first, std::byte* to) const {
    with_row_bytes(map_.block() * size(), [&]<uint32_t row>() { copy_whole<row>(p, ids, n, first, to); });
  }
  template <uint32_t row>
  void copy_whole(const block_map::place& p, const uint32_t* ids, uint64_t n, uint32_t first, std::byte* to) const {
    constexpr uint64_t ahead = 16;
    const select_piece& piece = source_.pieces[p.piece];
    auto* const place = source_.place ? reinterpret_cast<std::byte*>(source_.place(source_.self, p.piece)) : nullptr;
    const auto* const values = place ? place : static_cast<const std::byte*>(piece.values);
    const uint64_t block = map_.block();
    const auto at = [&](uint64_t i) {
      return uint64_t{(ids[i] - first) * static_cast<uint32_t>(block)} - piece.position;
    };
    for (uint64_t i = 0; i < n; ++i, to += row) {
      if (!values) {
        move_values(p.piece, at(i), static_cast<uint32_t>(block), to);
        continue;
      }
      if (i + ahead < n) __builtin_prefetch(values + at(i + ahead) * (row / block));
      __builtin_prefetch(to + 1024, 1);  // output position of the next find
      std::memcpy(to, values + at(i) * (row / block), row);
      if (place) std::memset(place + at(i) * (row / block), 0, row);
    }
  }

  const select_source& source_;
  const block_map& map_;
  std::byte* const to_;
};

// The source of energies, and the reaction to blocks that the selection finds.
struct found_blocks {
  energy_source energies;
  block_rows rows;
  const select_memory& memory;

  static const void* load(void* self, size_t range, uint64_t at, uint32_t n, select_load what, void* room) {
    const energy_source& energies = static_cast<const found_blocks*>(self)->energies;
    if (what == select_load::hint)
      energies.hint(range * span + at, n);
    else
      energies.make(range * span + at, n, what, static_cast<float*>(room));
    return room;
  }
  static void found(void* self, size_t range, const uint32_t* ids, uint64_t n, uint64_t to) {
    const auto& s = *static_cast<const found_blocks*>(self);
    (void)s.rows.copy(ids, n, range * span, to * s.energies.map.block());
  }
  static void cut(void* self, uint32_t range, const uint32_t* ids, const void* energies, uint64_t from, uint64_t n,
                  uint64_t to, uint32_t above, uint64_t ties) {
    const auto& s = *static_cast<const found_blocks*>(self);
    const auto* const e = static_cast<const uint32_t*>(energies);
    if (s.energies.from.place)
      for (uint64_t i = 0, left = ties; i < n; ++i) {
        const bool tie = e[i] == above && left;
        left -= tie;
        if (e[i] <= above && !tie)
          s.rows.restore(range * span + ids[i], static_cast<const std::byte*>(s.memory.values) + (from + i) * s.row());
      }
    if (above == magnitudes_end) return;
    with_row_bytes(s.row(), [&]<uint32_t row>() {
      const auto* v = static_cast<const std::byte*>(s.memory.values) + from * row;
      std::byte* out = static_cast<std::byte*>(s.memory.values) + to * row;
      for (uint64_t i = 0, left = ties; i < n; ++i, v += row) {  // without a branch, which would be unpredictable
        const bool tie = e[i] == above && left;
        left -= tie;
        std::byte block[row];
        std::memcpy(block, v, row);
        std::memcpy(out, block, row);
        out += e[i] > above || tie ? row : 0;
      }
    });
  }
  uint64_t row() const { return energies.map.block() * rows.size(); }
};

// Writes the positions of the elements of the selected blocks, range after range. Replaces memory.ends by the ends of
// the elements.
class block_positions {
 public:
  block_positions(const select_source& source, uint32_t block, const select_memory& memory)
      : source_(source), block_(block), memory_(memory) {}

  // Adds the elements of blocks ids[i] + before, ascending, i < n.
  void add(const uint32_t* ids, uint64_t n, uint64_t before) {
    for (uint64_t i = 0; i < n;) {
      while (before + ids[i] >= memory_.ends[range_]) close();
      const uint64_t end = memory_.ends[range_];
      const uint32_t* const behind =
          before + ids[n - 1] < end ? ids + n : std::lower_bound(ids + i, ids + n, end - before);
      const auto some = static_cast<uint64_t>(behind - (ids + i));
      write(ids + i, some, static_cast<uint32_t>(first_ - before));
      i += some;
      if (const uint64_t missing = (end - first_) * block_ - elements(); before + behind[-1] + 1 == end)
        count_ -= missing;
    }
  }
  // Returns their number.
  uint64_t end() {
    while (!source_.pieces.empty() && range_ <= source_.pieces.back().range) close();
    return count_;
  }

 private:
  void close() {
    first_ = memory_.ends[range_];
    memory_.ends[range_++] = count_;
  }
  // Elements of the range.
  uint64_t elements() {
    while (piece_ + 1 < source_.pieces.size() && source_.pieces[piece_ + 1].range <= range_) ++piece_;
    return source_.pieces[piece_].position + source_.pieces[piece_].n;
  }
  void write(const uint32_t* ids, uint64_t n, uint32_t first) {
    switch (block_) {
      case 1: return write_all<1>(ids, n, first);
      case 2: return write_all<2>(ids, n, first);
      case 4: return write_all<4>(ids, n, first);
      case 8: return write_all<8>(ids, n, first);
      case 16: return write_all<16>(ids, n, first);
      default: return write_all<32>(ids, n, first);
    }
  }
  template <uint32_t block>
  void write_all(const uint32_t* ids, uint64_t n, uint32_t first) {
    uint32_t* to = memory_.positions + count_;
    for (uint64_t i = 0; i < n; ++i, to += block)
      for (uint32_t k = 0; k < block; ++k) to[k] = (ids[i] - first) * block + k;
    count_ += n * block;
  }

  const select_source& source_;
  const uint32_t block_;
  const select_memory& memory_;
  uint32_t range_ = 0;
  uint64_t first_ = 0;  // block of the range
  size_t piece_ = 0;
  uint64_t count_ = 0;
};

constexpr uint64_t spans(uint64_t blocks) { return blocks / span + 1; }

// The target number of blocks: all blocks, if so many full ones would have all elements.
constexpr uint64_t target_of(uint64_t blocks, uint64_t universe, uint32_t block, uint64_t target_blocks) {
  return target_blocks >= ceil_div(universe, block) ? blocks : target_blocks;
}

}  // namespace

uint64_t keep_blocks_scratch(uint64_t universe, uint32_t block, uint64_t target_blocks) {
  arena memory;
  (void)memory.allocate<select_piece>(spans(universe));
  const uint64_t target = target_of(universe, universe, block, target_blocks);
  (void)select_memory::lay_out(memory, DR_F32, universe, target, spans(universe));
  return memory.used() + arena::alignment;
}

selection_result keep_blocks(const select_source& source, uint64_t universe, uint32_t block, uint64_t target_blocks,
                             const select_memory& memory, const select_crew& crew, void* scratch) {
  const block_map map(source, block, memory.ends);
  const uint64_t blocks = map.blocks(), target = target_of(blocks, universe, block, target_blocks);
  arena room(scratch, keep_blocks_scratch(universe, block, target_blocks));
  auto* const pieces = room.allocate<select_piece>(spans(blocks));
  select_memory selected = select_memory::lay_out(room, DR_F32, blocks, target, spans(blocks));
  uint32_t n = 0;
  for (uint64_t b = 0; b < blocks; b += span, ++n) pieces[n] = {nullptr, std::min(span, blocks - b), 0, n, b};
  found_blocks found{{source, map, energies_at(crew.level, source.dtype, block)},
                     {source, map, static_cast<std::byte*>(memory.values)},
                     memory};
  select_source from{DR_F32, {pieces, n}, found_blocks::load, &found};
  // If only the last block may be short, all rows have one length, and values can be copied as blocks are found.
  const bool at_once = map.only_last_short();
  if (at_once) {
    from.found = found_blocks::found;
    from.cut = found_blocks::cut;
    // (The memory has room for fewer values than the source has, and for one run more. Blocks are found in runs, after
    // which the room is checked.)
    if (memory.capacity < source.elements())
      selected.capacity = std::min(selected.capacity, (memory.capacity + select_run) / block - select_run / 4);
  }
  (void)keep_largest(from, target, selected, crew);
  uint64_t begin = 0, at = 0;
  for (uint32_t k = 0; k < n && !at_once; ++k) {
    at = found.rows.copy(selected.positions + begin, selected.ends[k] - begin, k * span, at);
    begin = selected.ends[k];
  }
  block_positions positions(source, block, memory);
  begin = 0;
  for (uint32_t k = 0; k < n; ++k) {
    positions.add(selected.positions + begin, selected.ends[k] - begin, k * span);
    begin = selected.ends[k];
  }
  return {positions.end(), source.place ? 1 : 0x80000000, block};
}

}  // namespace dr
