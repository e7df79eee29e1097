// Selection within chunks against its definition, at every level, on any number of threads, of values that are there or made.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "codecs/sparsifiers.hpp"
#include "levels.hpp"
#include "primitive/rng.hpp"
#include "sparsify/select.hpp"
#include "sweep.hpp"

namespace dr {
namespace {

double unit_of(uint64_t seed, uint64_t i) { return (static_cast<double>(draw(seed, i) >> 11) + 0.5) * 0x1p-53; }

struct gradient {
  std::string name;
  std::vector<uint32_t> bits;  // f32
};

// Ordinary ones, and those in which a chunk tells nothing of the next.
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
  add("all equal", [&](uint64_t i) { return number(i % 3 ? 1 : -1); });
  add("all zeros", [](uint64_t i) { return static_cast<uint32_t>(i % 2) << 31; });
  add("mostly zeros", [&](uint64_t i) { return draw(3, i) % 500 ? 0 : number(laplace(i)); });
  add("NaN and infinities", [&](uint64_t i) {
    return i % 70 ? number(laplace(i)) : i % 3 ? 0xffc00001u : 0x7f800000u;
  });
  add("all the largest NaN", [](uint64_t) { return 0x7fffffffu; });
  add("each thousand of another scale",
      [&](uint64_t i) { return number(laplace(i) * std::pow(10, static_cast<double>(i / 1000 % 7) * 5 - 15)); });
  add("ascending", [](uint64_t i) { return static_cast<uint32_t>(0x3f000000 + i); });
  add("descending", [](uint64_t i) { return static_cast<uint32_t>(0x3fffffff - i); });
  return all;
}

struct kept {
  std::vector<uint32_t> positions, values;
  std::vector<uint64_t> ends;
  bool operator==(const kept&) const = default;
};

struct cuts {
  uint64_t piece, range;
};

struct chunked {
  uint64_t size, count;
};

// As the SPEC.md has it, in plain code.
template <class Bits>
kept expected(const std::vector<Bits>& v, chunked how, uint64_t range) {
  constexpr Bits mask = static_cast<Bits>(~Bits{0}) >> 1;
  std::vector<uint64_t> all;
  for (uint64_t begin = 0; begin < v.size(); begin += how.size) {
    const uint64_t n = std::min<uint64_t>(how.size, v.size() - begin);
    std::vector<uint64_t> order;
    for (uint64_t i = begin; i < begin + n; ++i)
      if (v[i] & mask) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) { return (v[a] & mask) > (v[b] & mask); });
    order.resize(std::min<uint64_t>(order.size(), std::max<uint64_t>(1, how.count * n / how.size)));
    std::sort(order.begin(), order.end());
    all.insert(all.end(), order.begin(), order.end());
  }
  kept out;
  size_t k = 0;
  for (uint64_t from = 0; from < v.size(); from += range) {
    for (; k < all.size() && all[k] < from + range; ++k) {
      out.positions.push_back(static_cast<uint32_t>(all[k] - from));
      out.values.push_back(v[all[k]]);
    }
    out.ends.push_back(k);
  }
  return out;
}

// Values that a source makes, each once before it is asked for again; those that are taken are 0 in `sums` then.
template <class Bits>
struct made_values {
  const std::vector<Bits>* v;
  std::vector<float> sums;
  std::vector<uint64_t> begin;  // of each piece
  std::vector<uint8_t> first;   // how often each was asked for the first time

  static const void* load(void* self, size_t piece, uint64_t at, uint32_t n, select_load what, void* room) {
    auto& m = *static_cast<made_values*>(self);
    const uint64_t from = m.begin[piece] + at;
    for (uint64_t i = from; i < from + n; ++i) {
      m.first[i] = static_cast<uint8_t>(m.first[i] + (what == select_load::first));
      if (m.first[i] != 1) m.first[i] = 2;
    }
    if (!m.sums.empty()) return m.sums.data() + from;
    std::copy_n(m.v->data() + from, n, static_cast<Bits*>(room));
    return room;
  }
  static float* place(void* self, size_t piece) {
    auto& m = *static_cast<made_values*>(self);
    return m.sums.data() + m.begin[piece];
  }
};

enum class source_kind { there, made, taken };

template <class Bits>
kept found(uint32_t dtype, const std::vector<Bits>& v, chunked how, cuts c, source_kind kind, cpu_level level,
           pool* workers = nullptr) {
  std::vector<select_piece> pieces;
  made_values<Bits> values{&v, {}, {}, std::vector<uint8_t>(v.size() + 1)};
  for (uint64_t at = 0; at < v.size();) {
    const uint64_t range = at / c.range;
    const uint64_t end = std::min<uint64_t>({at + c.piece, (range + 1) * c.range, v.size()});
    pieces.push_back({kind == source_kind::there ? v.data() + at : nullptr, end - at,
                      static_cast<uint32_t>(at - range * c.range), static_cast<uint32_t>(range), at});
    values.begin.push_back(at);
    at = end;
  }
  select_source source{dtype, pieces, made_values<Bits>::load, &values};
  if (kind == source_kind::taken) {
    values.sums.resize(v.size() + 1);
    if (!v.empty()) std::memcpy(values.sums.data(), v.data(), v.size() * sizeof(Bits));
    source.place = made_values<Bits>::place;
  }
  const uint64_t n = v.size(), ranges = n ? (n - 1) / c.range + 1 : 1;
  dr_value given[3] = {};
  for (dr_value& value : given) value.struct_size = sizeof value;
  given[1].number = static_cast<double>(how.count);
  given[1].given = 1;
  given[2].number = static_cast<double>(how.size);
  dr_params params{};
  params.struct_size = sizeof params;
  params.values = given;
  const sparsifier& chunks = chunks_sparsifier;
  const uint64_t target = chunks.target(params, n);
  arena measuring;
  (void)select_memory::lay_out(measuring, dtype, n, target, ranges);
  select_scratch scratch{};
  scratch.grow(n, target, true);
  const uint32_t crew = workers ? workers->workers() : 1;
  for (uint32_t k = 0; k < crew; ++k) (void)scratch.lay_out(measuring);
  (void)measuring.allocate<std::byte>(chunks.scratch(params, n, n));
  std::vector<std::byte> block(measuring.used() + 64, std::byte{0xee});
  arena memory(block.data() + (64 - reinterpret_cast<uintptr_t>(block.data()) % 64) % 64, measuring.used());
  const select_memory m = select_memory::lay_out(memory, dtype, n, target, ranges);
  std::vector<select_scratch> scratches;
  for (uint32_t k = 0; k < crew; ++k) scratches.push_back(scratch.lay_out(memory));
  void* const room = memory.allocate<std::byte>(chunks.scratch(params, n, n));
  REQUIRE(memory.fits());
  const selection_result result =
      chunks.keep({params, source, n, nullptr, 0, nullptr, room, m, {scratches.data(), workers, level}});
  kept out;
  out.positions.assign(m.positions, m.positions + result.count);
  out.values.assign(static_cast<const Bits*>(m.values), static_cast<const Bits*>(m.values) + result.count);
  if (n) out.ends.assign(m.ends, m.ends + ranges);
  if (kind != source_kind::there)
    CHECK(std::count(values.first.begin(), values.first.end(), 1) == static_cast<ptrdiff_t>(n));
  if (kind != source_kind::taken) return out;
  CHECK(result.cleared_from == 1);
  std::vector<float> rest(n + 1);
  if (n) std::memcpy(rest.data(), v.data(), n * sizeof(Bits));
  uint64_t k = 0;
  for (uint64_t r = 0; r < out.ends.size(); ++r)
    for (; k < out.ends[r]; ++k) rest[r * c.range + out.positions[k]] = 0;
  CHECK(std::memcmp(rest.data(), values.sums.data(), 4 * n) == 0);
  return out;
}

template <class F>
void each_level(F&& f) {
  f(cpu_level::scalar);
  each_fast_level(f);
}

}  // namespace

TEST_CASE("chunks keep what their definition keeps, at every level and for every type") {
  pool three(3);
  for (const uint64_t n : {0u, 1u, 17u, 100u, 4095u, 4096u, 4097u, 9001u, 70001u, 300001u})
    for (const gradient& g : gradients(n)) {
      if (!whole_sweep && n > 100000 && g.name[0] == 'a') continue;
      CAPTURE(n);
      CAPTURE(g.name);
      std::vector<uint16_t> half(n), bfloat(n);
      for (uint64_t i = 0; i < n; ++i) {
        half[i] = f64_to_f16(static_cast<double>(std::bit_cast<float>(g.bits[i])));
        bfloat[i] = static_cast<uint16_t>(g.bits[i] >> 16);
      }
      for (const chunked how : {chunked{4096, 64}, {4096, 4}, {100, 3}, {32768, 500}, {1, 1}, {7, 6}}) {
        if (!whole_sweep && n > 100000 && how.size < 4096) continue;
        CAPTURE(how.size);
        const cuts one{std::max<uint64_t>(n, 1), std::max<uint64_t>(n, 1)}, many{1234, 40000}, tiny{50, 70};
        const kept whole = expected(g.bits, how, one.range), wholebf = expected(bfloat, how, one.range);
        const kept whole16 = expected(half, how, one.range), cut = expected(g.bits, how, many.range);
        const kept small = n < 10000 ? expected(g.bits, how, tiny.range) : kept{};
        each_level([&](cpu_level level) {
          CHECK(found(DR_F32, g.bits, how, one, source_kind::there, level) == whole);
          CHECK(found(DR_F16, half, how, one, source_kind::there, level) == whole16);
          CHECK(found(DR_BF16, bfloat, how, one, source_kind::made, level) == wholebf);
          CHECK(found(DR_F32, g.bits, how, many, source_kind::made, level) == cut);
          CHECK(found(DR_F32, g.bits, how, many, source_kind::taken, level) == cut);
          if (n < 10000) CHECK(found(DR_F32, g.bits, how, tiny, source_kind::taken, level) == small);
          if (n < select_shared) return;
          CHECK(found(DR_F32, g.bits, how, one, source_kind::there, level, &three) == whole);
          CHECK(found(DR_BF16, bfloat, how, one, source_kind::there, level, &three) == wholebf);
          CHECK(found(DR_F32, g.bits, how, many, source_kind::made, level, &three) == cut);
          CHECK(found(DR_F32, g.bits, how, many, source_kind::taken, level, &three) == cut);
        });
      }
    }
}

}  // namespace dr
