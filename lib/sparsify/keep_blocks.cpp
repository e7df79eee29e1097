// Blocks are selected as values are, from a source that makes their energies of what it is given.
#include "sparsify/keep_blocks.hpp"

#include "sparsify/block_map.hpp"
#include "sparsify/energy_kernel.hpp"
#include "sparsify/source_walk.hpp"

namespace dr {
namespace {

constexpr uint64_t span = uint64_t{1} << 31;  // so many blocks are numbered together, in 32 bits
constexpr uint32_t block_most = 1u << (block_sizes - 1);

// Values that are asked for together: of what is looked at before the rest, a cache line.
constexpr uint64_t made_together = 1024;
uint64_t peeked_together(uint32_t dtype) { return 64 / value_size(dtype); }

struct energy_source {
  const select_source& from;
  const block_map& map;
  energies_of energies;

  // Energies of n blocks from b on.
  void make(uint64_t b, uint64_t n, select_load what, float* to) const {
    const uint64_t size = value_size(from.dtype), block = map.block();
    alignas(64) std::byte room[4 * (made_together + block_most)], broken[4 * block_most];
    uint64_t begun = 0;  // values of a block that goes on in the next piece, or in what is asked for next
    const auto one = [&] {
      std::memset(broken + begun * size, 0, (block - begun) * size);
      energies(broken, 1, to++);
      begun = 0;
    };
    map.each_part(
        b, n,
        [&](size_t piece, uint64_t at, uint64_t count) {
          while (count) {
            uint64_t some = count;
            if (!from.pieces[piece].values)
              some = std::min(count, what == select_load::peek ? peeked_together(from.dtype)
                                                               : made_together + (begun ? block - begun : 0));
            const auto* v =
                static_cast<const std::byte*>(values_of(from, piece, at, static_cast<uint32_t>(some), what, room));
            at += some;
            count -= some;
            if (begun) {
              const uint64_t more = std::min(some, block - begun);
              std::memcpy(broken + begun * size, v, more * size);
              begun += more;
              v += more * size;
              some -= more;
              if (begun == block) one();
            }
            if (!some) continue;
            energies(v, some / block, to);
            to += some / block;
            begun = some % block;
            std::memcpy(broken, v + (some - begun) * size, begun * size);
          }
        },
        [&] {
          if (begun) one();
        });
  }
  // To have blocks at hand, the first lines of each piece are enough: what follows them, the CPU foresees.
  void hint(uint64_t b, uint64_t n) const {
    constexpr uint64_t most = 8;
    const uint64_t line = 64 / value_size(from.dtype);
    map.each_part(
        b, n,
        [&](size_t piece, uint64_t at, uint64_t count) {
          for (uint64_t i = 0; i < std::min(count, most * line); i += line) {
            const auto some = static_cast<uint32_t>(std::min(line, count - i));
            if (const void* const v = from.pieces[piece].values)
              __builtin_prefetch(static_cast<const std::byte*>(v) + (at + i) * value_size(from.dtype));
            else
              from.load(from.self, piece, at + i, some, select_load::hint, nullptr);
          }
        },
        [] {});
  }

  static const void* load(void* self, size_t range, uint64_t at, uint32_t n, select_load what, void* room) {
    const auto& s = *static_cast<const energy_source*>(self);
    const uint64_t b = range * span + at;
    if (what == select_load::hint) {
      s.hint(b, n);
      return nullptr;
    }
    s.make(b, n, what, static_cast<float*>(room));
    return room;
  }
};

// What kept blocks hold goes to the memory, range after range.
class block_elements {
 public:
  block_elements(const select_source& source, uint32_t block, const select_memory& memory)
      : source_(source), block_(block), memory_(memory) {}

  // Blocks ids[i] + before, ascending, i < n. The memory's ends are still those of the map, from the range on that is at.
  void add(const uint32_t* ids, uint64_t n, uint64_t before) {
    for (uint64_t i = 0; i < n;) {
      const uint64_t b = before + ids[i];
      while (b >= memory_.ends[range_]) close();
      const uint64_t e = (b - first_) * block_;
      while (source_.pieces[piece_].range < range_ || e - source_.pieces[piece_].position >= source_.pieces[piece_].n)
        ++piece_;
      const select_piece& p = source_.pieces[piece_];
      // Of those that are whole in this piece and begin no earlier: all at once.
      const uint64_t behind = first_ + (p.position + p.n) / block_;
      const uint64_t whole =
          behind <= b ? 0 : static_cast<uint64_t>(std::lower_bound(ids + i, ids + n, behind - before) - (ids + i));
      if (whole == 0)
        add_broken(e);
      else
        add_whole(ids + i, whole, static_cast<uint32_t>(first_ - before));
      i += std::max<uint64_t>(whole, 1);
    }
  }
  // Ends what is left of the ranges. Returns how many elements were kept.
  uint64_t end() {
    if (source_.pieces.empty()) return 0;
    while (range_ <= source_.pieces.back().range) close();
    return count_;
  }

 private:
  void close() {
    first_ = memory_.ends[range_];
    memory_.ends[range_++] = count_;
  }
  template <class Bits>
  Bits* kept() const {
    return static_cast<Bits*>(memory_.kept) + count_;
  }

  // A block that ends behind its piece, or with its range.
  void add_broken(uint64_t e) {
    const uint64_t size = value_size(source_.dtype);
    uint64_t left = block_, at = e - source_.pieces[piece_].position;
    for (size_t k = piece_; left && k < source_.pieces.size() && source_.pieces[k].range == range_; ++k, at = 0) {
      const uint64_t some = std::min(left, source_.pieces[k].n - at);
      if (some) take(k, at, static_cast<uint32_t>(some), static_cast<std::byte*>(memory_.kept) + count_ * size);
      for (uint64_t i = 0; i < some; ++i) memory_.positions[count_++] = static_cast<uint32_t>(e++);
      left -= some;
    }
  }
  // Values of a piece, which leave their place if there is one.
  void take(size_t piece, uint64_t at, uint32_t n, std::byte* to) {
    alignas(64) std::byte room[4 * block_most];
    std::memcpy(to, values_of(source_, piece, at, n, select_load::again, room), n * value_size(source_.dtype));
    if (source_.place) std::fill_n(source_.place(source_.self, piece) + at, n, 0.0f);
  }

  void add_whole(const uint32_t* ids, uint64_t n, uint32_t first) {
    const auto with_block = [&](auto bits) {
      using B = decltype(bits);
      switch (block_) {
        case 1: return add_whole<B, 1>(ids, n, first);
        case 2: return add_whole<B, 2>(ids, n, first);
        case 4: return add_whole<B, 4>(ids, n, first);
        case 8: return add_whole<B, 8>(ids, n, first);
        case 16: return add_whole<B, 16>(ids, n, first);
        default: return add_whole<B, 32>(ids, n, first);
      }
    };
    source_.dtype == DR_F32 ? with_block(uint32_t{}) : with_block(uint16_t{});
  }
  template <class Bits, uint32_t block>
  void add_whole(const uint32_t* ids, uint64_t n, uint32_t first) {
    constexpr uint64_t ahead = 24;
    const select_piece& p = source_.pieces[piece_];
    auto* const place = source_.place ? reinterpret_cast<Bits*>(source_.place(source_.self, piece_)) : nullptr;
    const auto* const values = place ? place : static_cast<const Bits*>(p.values);
    uint32_t* positions = memory_.positions + count_;
    Bits* to = kept<Bits>();
    for (uint64_t i = 0; i < n; ++i, positions += block, to += block) {
      const uint32_t e = (ids[i] - first) * block, at = e - p.position;
      if (const uint64_t next = i + ahead; next < n) {
        const uint32_t then = (ids[next] - first) * block - p.position;
        if (values) {
          __builtin_prefetch(values + then);
          __builtin_prefetch(values + then + block - 1);
        } else {
          source_.load(source_.self, piece_, then, block, select_load::hint, nullptr);
        }
      }
      if (values)
        std::memcpy(to, values + at, block * sizeof(Bits));
      else
        take(piece_, at, block, reinterpret_cast<std::byte*>(to));
      if (place) std::memset(place + at, 0, block * sizeof(Bits));
      for (uint32_t k = 0; k < block; ++k) positions[k] = e + k;
    }
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

}  // namespace

uint64_t keep_blocks_scratch(uint64_t universe, uint64_t target_blocks) {
  arena memory;
  (void)memory.take<select_piece>(spans(universe));
  (void)select_memory::take(memory, DR_F32, universe, target_blocks, spans(universe));
  return memory.used() + arena::alignment;
}

kept_count keep_blocks(const select_source& source, uint64_t universe, uint32_t block, uint64_t target_blocks,
                       const select_memory& memory, const select_crew& crew, void* scratch) {
  const block_map map(source, block, memory.ends);
  const uint64_t blocks = map.blocks(), target = target_blocks >= ceil_div(universe, block) ? blocks : target_blocks;
  arena room(scratch, keep_blocks_scratch(universe, target_blocks));
  auto* const pieces = room.take<select_piece>(spans(blocks));
  const select_memory kept = select_memory::take(room, DR_F32, blocks, target, spans(blocks));
  uint32_t n = 0;
  for (uint64_t b = 0; b < blocks; b += span, ++n) pieces[n] = {nullptr, std::min(span, blocks - b), 0, n, b};
  energy_source energies{source, map, energies_at(crew.level, source.dtype, block)};
  (void)keep_largest({DR_F32, {pieces, n}, energy_source::load, &energies}, target, kept, crew);
  block_elements elements(source, block, memory);
  uint64_t begin = 0;
  for (uint32_t k = 0; k < n; ++k) {
    elements.add(kept.positions + begin, kept.ends[k] - begin, k * span);
    begin = kept.ends[k];
  }
  return {elements.end(), source.place ? 1 : 0x80000000, block};
}

}  // namespace dr
