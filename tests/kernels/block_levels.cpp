// Selection of blocks against its definition, at every level, on any number of threads, of values that are there or made.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "levels.hpp"
#include "primitive/rng.hpp"
#include "sparsify/block_size.hpp"
#include "sparsify/energy_kernel.hpp"
#include "sparsify/keep_blocks.hpp"
#include "sweep.hpp"

namespace dr {
namespace {

double unit_of(uint64_t seed, uint64_t i) { return (static_cast<double>(draw(seed, i) >> 11) + 0.5) * 0x1p-53; }

struct gradient {
  std::string name;
  std::vector<uint32_t> bits;  // f32
};

std::vector<gradient> gradients(uint64_t n) {
  std::vector<gradient> all;
  const auto add = [&](const char* name, auto&& f) {
    gradient g{name, std::vector<uint32_t>(n)};
    for (uint64_t i = 0; i < n; ++i) g.bits[i] = f(i);
    all.push_back(std::move(g));
  };
  const auto number = [](double x) { return std::bit_cast<uint32_t>(static_cast<float>(x)); };
  const auto laplace = [](uint64_t i) {
    const double u = unit_of(1, i) - 0.5;
    return (u < 0 ? 1e-3 : -1e-3) * std::log(1 - 2 * std::fabs(u));
  };
  add("laplace", [&](uint64_t i) { return number(laplace(i)); });
  add("any bits", [](uint64_t i) { return static_cast<uint32_t>(draw(2, i)); });
  add("all equal", [&](uint64_t i) { return number(i % 3 ? 0.7 : -0.7); });
  add("all zeros", [](uint64_t i) { return static_cast<uint32_t>(i % 2) << 31; });
  add("squares below every number", [](uint64_t i) { return i % 50 ? 0x00700000u : 0x1f800000u; });
  add("squares above every number", [&](uint64_t i) { return number(i % 40 ? 1e15 : 3e19); });
  add("NaN and infinities", [&](uint64_t i) {
    return i % 70 ? number(laplace(i)) : i % 3 ? 0xffc00001u : 0x7f800000u;
  });
  add("mostly zeros", [&](uint64_t i) { return draw(3, i) % 500 ? 0 : number(laplace(i)); });
  add("rows", [&](uint64_t i) { return number(laplace(i) * (draw(4, i / 16) % 20 ? 0.1 : 10)); });
  add("the end", [&](uint64_t i) { return i + 3 > n ? number(5) : number(laplace(i)); });
  return all;
}

// As the SPEC.md has it, in plain code.
float energy(const std::vector<float>& values) {
  std::vector<float> q;
  for (const float x : values) q.push_back(x * x);
  while (q.size() > 1) {
    std::vector<float> halves;
    for (size_t i = 0; i < q.size() / 2; ++i) halves.push_back(q[i] + q[i + q.size() / 2]);
    q = halves;
  }
  return q[0];
}
uint32_t rank_of(float e) { return std::isnan(e) ? 0x7fc00000 : std::bit_cast<uint32_t>(e); }

struct kept {
  std::vector<uint32_t> positions, values;
  std::vector<uint64_t> ends;
  uint64_t rest = 0;  // values that are not where they were, beside those that were taken
  bool operator==(const kept&) const = default;
};

// Cut into pieces and ranges, as tensors and segments are.
struct cuts {
  uint64_t piece, range;
};

template <class Bits>
kept expected(uint32_t dtype, const std::vector<Bits>& v, uint32_t block, uint64_t target, uint64_t range) {
  struct one {
    uint64_t first, n;
    uint32_t energy;
  };
  std::vector<one> blocks;
  for (uint64_t from = 0; from < v.size(); from += range)
    for (uint64_t at = from, end = std::min<uint64_t>(from + range, v.size()); at < end; at += block) {
      std::vector<float> values(block, 0.0f);
      const uint64_t n = std::min<uint64_t>(block, end - at);
      for (uint64_t i = 0; i < n; ++i) values[i] = value_of(dtype, v[at + i]);
      blocks.push_back({at, n, rank_of(energy(values))});
    }
  if (target >= ceil_div(v.size(), block)) target = blocks.size();
  std::vector<one> order = blocks;
  std::stable_sort(order.begin(), order.end(), [](const one& a, const one& b) { return a.energy > b.energy; });
  order.resize(std::min<uint64_t>(order.size(), target));
  std::erase_if(order, [](const one& b) { return b.energy == 0; });
  std::sort(order.begin(), order.end(), [](const one& a, const one& b) { return a.first < b.first; });
  kept out;
  size_t k = 0;
  for (uint64_t from = 0; from < v.size(); from += range) {
    for (; k < order.size() && order[k].first < from + range; ++k)
      for (uint64_t i = 0; i < order[k].n; ++i) {
        out.positions.push_back(static_cast<uint32_t>(order[k].first + i - from));
        out.values.push_back(v[order[k].first + i]);
      }
    out.ends.push_back(out.positions.size());
  }
  return out;
}

// Values that a source makes, each once, in runs that follow one another.
template <class Bits>
struct made_values {
  std::vector<Bits> made;
  std::vector<uint64_t> begin;       // of each piece
  std::vector<uint8_t> first;        // how often each was asked for the first time
  std::atomic<uint64_t> behind = 0;  // of what was asked for
  bool shared = false;

  std::atomic<bool> sound = true;  // of what was asked for

  static const void* load(void* self, size_t piece, uint64_t at, uint32_t n, select_load what, void* room) {
    auto& m = *static_cast<made_values*>(self);
    const uint64_t from = m.begin[piece] + at;
    const auto expect = [&](bool b) {
      if (!b) m.sound = false;
    };
    expect(n <= select_run);
    expect(from + n <= (piece + 1 < m.begin.size() ? m.begin[piece + 1] : m.made.size()));
    if (what == select_load::hint) return nullptr;
    if (what == select_load::peek) expect(n * sizeof(Bits) <= 64);
    if (what == select_load::first) {
      if (!m.shared) expect(from == m.behind.load());
      m.behind += n;
      for (uint64_t i = from; i < from + n; ++i) ++m.first[i];
    }
    if (what == select_load::again)
      expect(std::all_of(&m.first[from], &m.first[from] + n, [](uint8_t f) { return f == 1; }));
    if (sizeof(Bits) == 4 && what != select_load::peek) return m.made.data() + from;
    std::copy_n(m.made.data() + from, n, static_cast<Bits*>(room));
    return room;
  }
  static float* place(void* self, size_t piece) {
    auto& m = *static_cast<made_values*>(self);
    return reinterpret_cast<float*>(m.made.data() + m.begin[piece]);
  }
};

enum class values_are { there, made, taken };

template <class Bits>
kept found(uint32_t dtype, const std::vector<Bits>& v, uint32_t block, uint64_t target, cuts c, values_are how,
           cpu_level level, pool* workers = nullptr) {
  std::vector<select_piece> pieces;
  made_values<Bits> source{v, {}, std::vector<uint8_t>(v.size())};
  source.shared = workers;
  uint32_t ranges = 0;
  for (uint64_t at = 0; at < v.size();) {
    const uint64_t range = at / c.range, end = std::min<uint64_t>({at + c.piece, (range + 1) * c.range, v.size()});
    ranges = static_cast<uint32_t>(range) + 1;
    for (const uint64_t stop : {at, end}) {  // (an empty one, too)
      pieces.push_back({how == values_are::there ? v.data() + at : nullptr, stop - at,
                        static_cast<uint32_t>(at - range * c.range), static_cast<uint32_t>(range), at});
      source.begin.push_back(at);
    }
    at = end;
  }
  const select_source from{dtype, pieces, made_values<Bits>::load, &source,
                           how == values_are::taken ? made_values<Bits>::place : nullptr};
  const uint64_t n = v.size(), most = std::min<uint64_t>(n, target * block);
  const uint32_t crew = workers ? workers->workers() : 1;
  std::vector<std::byte> bytes;
  select_memory memory{};
  std::vector<select_scratch> scratches;
  void* scratch = nullptr;
  for (const bool real : {false, true}) {
    arena room;
    if (real)
      room = arena(bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64, bytes.size() - 64);
    memory = select_memory::lay_out(room, dtype, n, most, ranges);
    select_scratch s{};
    s.grow(n, most, true);
    scratches.clear();
    for (uint32_t k = 0; k < crew; ++k) scratches.push_back(s.lay_out(room));
    scratch = room.allocate<std::byte>(keep_blocks_scratch(n, block, target));
    if (real) REQUIRE(room.fits());
    bytes.assign(room.used() + 64, std::byte{0xee});
  }
  const selection_result result =
      keep_blocks(from, n, block, target, memory, {scratches.data(), workers, level}, scratch);
  CHECK(result.block == block);
  CHECK(source.sound.load());
  REQUIRE(result.count <= most);
  if (how != values_are::there)
    CHECK(std::all_of(source.first.begin(), source.first.end(), [](uint8_t f) { return f == 1; }));
  kept out;
  out.positions.assign(memory.positions, memory.positions + result.count);
  const auto* const values = static_cast<const Bits*>(memory.values);
  out.values.assign(values, values + result.count);
  if (n) out.ends.assign(memory.ends, memory.ends + ranges);
  if (how == values_are::taken) {
    CHECK(result.cleared_from == 1);
    uint64_t i = 0;
    for (uint32_t r = 0; r < ranges; ++r)
      for (; i < memory.ends[r]; ++i) {
        Bits& left = source.made[r * c.range + memory.positions[i]];
        out.rest += left != 0;
        left = v[r * c.range + memory.positions[i]];
      }
    out.rest += source.made != v;
  }
  return out;
}

template <class F>
void each_level(F&& f) {
  f(cpu_level::scalar);
  each_fast_level(f);
}

constexpr uint32_t sizes[] = {1, 2, 4, 8, 16, 32};

}  // namespace

TEST_CASE("energies are the same bits at every level, and those of the plain sum") {
  for (const gradient& g : gradients(32 * 67 + 1))
    for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
      for (const uint32_t block : sizes)
        for (const uint64_t n : {0u, 1u, 7u, 16u, 31u, 67u}) {
          CAPTURE(g.name);
          CAPTURE(dtype);
          CAPTURE(block);
          CAPTURE(n);
          std::vector<uint16_t> half;
          for (const uint32_t b : g.bits)
            half.push_back(
                static_cast<uint16_t>(dtype == DR_F16 ? f32_to_f16_finite(std::bit_cast<float>(b)) : b >> 16));
          const std::byte* const v = dtype == DR_F32 ? reinterpret_cast<const std::byte*>(g.bits.data() + 1)
                                                     : reinterpret_cast<const std::byte*>(half.data() + 1);
          std::vector<float> plain;
          for (uint64_t b = 0; b < n; ++b) {
            std::vector<float> values;
            for (uint32_t i = 0; i < block; ++i) values.push_back(value_at(dtype, v, b * block + i));
            plain.push_back(energy(values));
          }
          each_level([&](cpu_level level) {
            std::vector<float> to(n + 1, -1.0f);
            energies_at(level, dtype, block)(v, n, to.data());
            std::vector<uint32_t> ranks, wanted;
            for (uint64_t b = 0; b < n; ++b) {
              ranks.push_back(std::bit_cast<uint32_t>(to[b]));
              wanted.push_back(rank_of(plain[b]));
            }
            CHECK(ranks == wanted);
            CHECK(to[n] == -1);
          });
        }
}

TEST_CASE("segments shorter than a block have room for all of theirs") {
  constexpr uint64_t n = 200000;
  const std::vector<uint32_t> v = gradients(n).front().bits;
  const cuts single{1, 1};
  for (const uint64_t target : {ceil_div(n, uint64_t{32}), ceil_div(n, uint64_t{32}) - 1})
    each_level([&](cpu_level level) {
      CHECK(found(DR_F32, v, 32, target, single, values_are::there, level) ==
            expected(DR_F32, v, 32, target, single.range));
    });
}

TEST_CASE("blocks in one pass are what their definition keeps, at every level and for every type") {
  pool three(3);
  for (const uint64_t n : {0u, 1u, 7u, 33u, 100u, 1000u, 5000u, 20001u, 300000u})
    for (const gradient& g : gradients(n)) {
      if (!whole_sweep && n > 10000 && g.name != "laplace" && g.name != "all equal" && g.name != "rows") continue;
      CAPTURE(n);
      CAPTURE(g.name);
      std::vector<uint16_t> half(n), bfloat(n);
      for (uint64_t i = 0; i < n; ++i) {
        half[i] = f32_to_f16_finite(std::bit_cast<float>(g.bits[i]));
        bfloat[i] = static_cast<uint16_t>(g.bits[i] >> 16);
      }
      for (const uint32_t block : sizes) {
        const uint64_t blocks = ceil_div(n, block);
        for (const uint64_t target : {uint64_t{1}, blocks / 100, blocks / 10, blocks - blocks / 100, blocks}) {
          if (target == 0 || target > blocks) continue;
          if (!whole_sweep && n > 10000 && target != blocks / 100 && (target != blocks || block != 8)) continue;
          if (!whole_sweep && n > 100000 && block != 1 && block != 8 && block != 32) continue;
          CAPTURE(block);
          CAPTURE(target);
          // One tensor; tensors and segments of a bucket that end anywhere in a block; segments of whole blocks.
          const cuts one{n + 1, n + 1}, many{1234, 40001}, whole{500, 3200};
          const kept all32 = expected(DR_F32, g.bits, block, target, one.range),
                     many32 = expected(DR_F32, g.bits, block, target, many.range),
                     whole32 = expected(DR_F32, g.bits, block, target, whole.range),
                     all16 = expected(DR_F16, half, block, target, one.range),
                     many16 = expected(DR_F16, half, block, target, many.range),
                     allb = expected(DR_BF16, bfloat, block, target, one.range);
          each_level([&](cpu_level level) {
            CHECK(found(DR_F32, g.bits, block, target, one, values_are::there, level) == all32);
            CHECK(found(DR_F16, half, block, target, one, values_are::there, level) == all16);
            CHECK(found(DR_BF16, bfloat, block, target, one, values_are::there, level) == allb);
            CHECK(found(DR_F32, g.bits, block, target, many, values_are::there, level) == many32);
            CHECK(found(DR_F32, g.bits, block, target, many, values_are::made, level) == many32);
            CHECK(found(DR_F16, half, block, target, many, values_are::made, level) == many16);
            CHECK(found(DR_F32, g.bits, block, target, many, values_are::taken, level) == many32);
            CHECK(found(DR_F32, g.bits, block, target, one, values_are::taken, level) == all32);
            CHECK(found(DR_F32, g.bits, block, target, whole, values_are::taken, level) == whole32);
            if (n < select_shared) return;
            CHECK(found(DR_F32, g.bits, block, target, one, values_are::there, level, &three) == all32);
            CHECK(found(DR_F16, half, block, target, many, values_are::made, level, &three) == many16);
            CHECK(found(DR_F32, g.bits, block, target, one, values_are::taken, level, &three) == all32);
          });
        }
      }
    }
}

}  // namespace dr
