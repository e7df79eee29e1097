// Selection in one pass against its definition: select_largest and compact_selected.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "levels.hpp"
#include "primitive/rng.hpp"
#include "sparsify/select.hpp"
#include "sparsify/select_kernel.hpp"
#include "sweep.hpp"

namespace dr {
namespace {

struct gradient {
  std::string name;
  std::vector<uint32_t> bits;  // f32
};

double unit_of(uint64_t seed, uint64_t i) { return (static_cast<double>(draw(seed, i) >> 11) + 0.5) * 0x1p-53; }
uint32_t as_bits(double x) { return std::bit_cast<uint32_t>(static_cast<float>(x)); }

// Ordinary ones, and those that a sample or a capacity is wrong about.
std::vector<gradient> gradients(uint64_t n) {
  std::vector<gradient> all;
  const auto add = [&](const char* name, auto&& f) {
    gradient g{name, std::vector<uint32_t>(n)};
    for (uint64_t i = 0; i < n; ++i) g.bits[i] = f(i);
    all.push_back(std::move(g));
  };
  const auto laplace = [](uint64_t i) {
    const double u = unit_of(1, i) - 0.5;
    return (u < 0 ? 1 : -1) * std::log(1 - 2 * std::fabs(u));
  };
  add("laplace", [&](uint64_t i) { return as_bits(1e-3 * laplace(i)); });
  add("any bits", [](uint64_t i) { return static_cast<uint32_t>(draw(2, i)); });
  add("all equal", [](uint64_t i) { return as_bits(i % 3 ? 1 : -1); });
  add("all zeros", [](uint64_t i) { return static_cast<uint32_t>(i % 2) << 31; });
  add("NaN and infinities", [&](uint64_t i) {
    return i % 7 ? i % 5 ? as_bits(laplace(i)) : 0x7f800000u : 0xffc00000u + static_cast<uint32_t>(i % 3);
  });
  add("all the largest NaN", [](uint64_t) { return 0x7fffffffu; });
  add("close together", [](uint64_t i) { return 0x3f800000u + static_cast<uint32_t>(draw(12, i) % 1000); });
  add("mostly zeros", [&](uint64_t i) { return draw(3, i) % 500 ? 0 : as_bits(laplace(i)); });
  add("one nonzero", [&](uint64_t i) { return i == n / 3 ? 1u : 0u; });
  add("three magnitudes", [](uint64_t i) { return as_bits(static_cast<double>(draw(4, i) % 4)); });
  add("ascending", [](uint64_t i) { return static_cast<uint32_t>(0x3f000000 + i); });
  add("descending", [](uint64_t i) { return static_cast<uint32_t>(0x3fffffff - i); });
  add("constant but for a few", [](uint64_t i) { return as_bits(draw(5, i) % 2000 ? 0.25 : 1 + unit_of(6, i)); });
  add("clipped", [&](uint64_t i) { return as_bits(std::clamp(laplace(i), -0.5, 0.5)); });
  add("a period of a line", [](uint64_t i) { return as_bits(i % 16 ? 1e-6 * unit_of(7, i) : 1 + unit_of(7, i)); });
  add("long runs", [](uint64_t i) { return as_bits((i / 4096) % 97 ? 1e-6 * unit_of(8, i) : 1 + unit_of(8, i)); });
  add("large ones at the end", [&](uint64_t i) { return as_bits(unit_of(9, i) * (i + n / 50 > n ? 1e6 : 1)); });
  // What no sample sees: all that matters stands where it does not look.
  add("hidden", [&](uint64_t i) { return as_bits(i >= 17 && i < 17 + 512 ? 1 + unit_of(10, i) : 0); });
  return all;
}

struct selected_pairs {
  std::vector<uint32_t> positions, values;
  std::vector<uint64_t> ends;
  bool operator==(const selected_pairs&) const = default;
};

// Cut into pieces and ranges, as tensors and segments are.
struct cuts {
  uint64_t piece, range;
};

template <class Bits>
std::vector<select_piece> pieces_of(const std::vector<Bits>& v, cuts c, bool made) {
  std::vector<select_piece> all;
  for (uint64_t at = 0; at < v.size();) {
    const uint64_t range = at / c.range;
    const uint64_t end = std::min<uint64_t>({at + c.piece, (range + 1) * c.range, v.size()});
    all.push_back({made ? nullptr : v.data() + at, end - at, static_cast<uint32_t>(at - range * c.range),
                   static_cast<uint32_t>(range), at});
    at = end;
  }
  return all;
}

template <class Bits>
selected_pairs expected(uint32_t dtype, const std::vector<Bits>& v, uint64_t target, uint64_t range) {
  selection s = select_largest(dtype, v.data(), v.size(), target);
  selected_pairs out;
  std::vector<uint32_t> found(v.size());
  for (uint64_t at = 0; at < v.size(); at += range) {
    const uint64_t n = compact_selected(dtype, v.data() + at, std::min(range, v.size() - at), s, found.data());
    for (uint64_t i = 0; i < n; ++i) {
      out.positions.push_back(found[i]);
      out.values.push_back(v[at + found[i]]);
    }
    out.ends.push_back(out.positions.size());
  }
  return out;
}

template <class Bits>
struct made_values {
  const std::vector<Bits>* v;
  std::vector<float> sums;          // of a source whose selected values are cleared
  std::vector<uint64_t> begin;      // of each piece
  std::atomic<uint64_t> first = 0;  // values that were asked for the first time
  bool shared = false;

  static const void* load(void* self, size_t piece, uint64_t at, uint32_t n, select_load what, void* room) {
    auto& m = *static_cast<made_values*>(self);
    const uint64_t from = m.begin[piece] + at;
    CHECK(n <= select_run);
    if (what == select_load::hint) return nullptr;
    if (what == select_load::first) {
      if (!m.shared) CHECK(from == m.first);
      m.first += n;
    }
    if (what == select_load::again) CHECK(from + n <= m.first);
    if (!m.sums.empty() && what != select_load::peek) return m.sums.data() + from;
    std::copy_n(m.v->data() + from, n, static_cast<Bits*>(room));
    return room;
  }
  static float* place(void* self, size_t piece) {
    auto& m = *static_cast<made_values*>(self);
    return m.sums.data() + m.begin[piece];
  }
  // Selected values are cleared from a magnitude on; all others are unchanged.
  void check_taken(const std::vector<select_piece>& pieces, const select_memory& memory, selection_result result) {
    std::vector<float> rest(v->size());
    std::memcpy(rest.data(), v->data(), 4 * rest.size());
    uint64_t i = 0;
    for (size_t k = 0; k < pieces.size(); ++k)
      for (; i < memory.ends[pieces[k].range] && memory.positions[i] - pieces[k].position < pieces[k].n; ++i) {
        const uint32_t bits = static_cast<const uint32_t*>(memory.values)[i];
        if ((bits & 0x7fffffff) >= result.cleared_from) rest[begin[k] + memory.positions[i] - pieces[k].position] = 0;
      }
    CHECK(std::memcmp(rest.data(), sums.data(), 4 * rest.size()) == 0);
  }
};

template <class Bits>
selected_pairs found(uint32_t dtype, const std::vector<Bits>& v, uint64_t target, cuts c, bool made, cpu_level level,
                     pool* workers = nullptr, bool taken = false, uint64_t* left = nullptr) {
  const auto pieces = pieces_of(v, c, made);
  select_source source{dtype, pieces};
  made_values<Bits> values{&v, {}};
  values.shared = workers && v.size() >= select_shared;
  uint64_t begin = 0;
  for (const select_piece& p : pieces) {
    values.begin.push_back(begin);
    begin += p.n;
  }
  source.load = made_values<Bits>::load;
  if (taken) {
    values.sums.resize(v.size() + 1);
    std::memcpy(values.sums.data(), v.data(), v.size() * sizeof(Bits));
    source.place = made_values<Bits>::place;
  }
  source.self = &values;
  const uint64_t ranges = v.empty() ? 1 : (v.size() - 1) / c.range + 1;
  arena measuring;
  (void)select_memory::lay_out(measuring, dtype, v.size(), target, ranges);
  select_scratch scratch{};
  scratch.grow(v.size(), target, true);
  const uint32_t crew = workers ? workers->workers() : 1;
  for (uint32_t k = 0; k < crew; ++k) (void)scratch.lay_out(measuring);
  std::vector<std::byte> block(measuring.used() + 64, std::byte{0xee});
  arena memory(block.data() + (64 - reinterpret_cast<uintptr_t>(block.data()) % 64) % 64, measuring.used());
  const select_memory m = select_memory::lay_out(memory, dtype, v.size(), target, ranges);
  std::vector<select_scratch> scratches;
  for (uint32_t k = 0; k < crew; ++k) scratches.push_back(scratch.lay_out(memory));
  REQUIRE(memory.fits());
  const selection_result result = keep_largest(source, target, m, {scratches.data(), workers, level});
  const uint64_t n = result.count;
  if (made) CHECK(values.first == v.size());
  if (taken) values.check_taken(pieces, m, result);
  if (left)
    for (uint64_t i = 0; i < n; ++i)
      *left += (static_cast<const Bits*>(m.values)[i] & 0x7fffffff) >= result.cleared_from;
  selected_pairs out;
  out.positions.assign(m.positions, m.positions + n);
  out.values.assign(static_cast<const Bits*>(m.values), static_cast<const Bits*>(m.values) + n);
  if (!v.empty()) out.ends.assign(m.ends, m.ends + ranges);
  return out;
}

template <class F>
void each_level(F&& f) {
  f(cpu_level::scalar);
  each_fast_level(f);
}

}  // namespace

TEST_CASE("topr in one pass keeps what its definition keeps, at every level and for every type") {
  pool three(3);
  uint64_t left = 0;
  for (const uint64_t n : {0u, 1u, 15u, 17u, 33u, 100u, 1000u, 2048u, 2049u, 5000u, 9001u, 70001u, 400000u})
    for (const gradient& g : gradients(n)) {
      CAPTURE(n);
      CAPTURE(g.name);
      std::vector<uint16_t> half(n), bfloat(n);
      for (uint64_t i = 0; i < n; ++i) {
        half[i] = f64_to_f16(static_cast<double>(std::bit_cast<float>(g.bits[i])));
        bfloat[i] = static_cast<uint16_t>(g.bits[i] >> 16);
      }
      for (const uint64_t target :
           {uint64_t{1}, uint64_t{2}, n / 1000, n / 100, n / 10, n / 2, n - n / 100, n - 1, n}) {
        if (target == 0 || target > n) continue;
        if (!whole_sweep && n > 10000 && target != n / 100 && target != n - 1) continue;
        CAPTURE(target);
        const auto whole32 = expected(DR_F32, g.bits, target, n), whole16 = expected(DR_F16, half, target, n),
                   wholebf = expected(DR_BF16, bfloat, target, n);
        const cuts one{n, n}, many{1234, 40000};
        const auto cut32 = expected(DR_F32, g.bits, target, many.range);
        each_level([&](cpu_level level) {
          CHECK(found(DR_F32, g.bits, target, one, false, level) == whole32);
          CHECK(found(DR_F16, half, target, one, false, level) == whole16);
          CHECK(found(DR_BF16, bfloat, target, one, false, level) == wholebf);
          CHECK(found(DR_F32, g.bits, target, many, false, level) == cut32);
          CHECK(found(DR_F32, g.bits, target, many, true, level) == cut32);
          CHECK(found(DR_F32, g.bits, target, many, true, level, nullptr, true, &left) == cut32);
          if (n < select_shared) return;
          CHECK(found(DR_F32, g.bits, target, one, false, level, &three) == whole32);
          CHECK(found(DR_BF16, bfloat, target, one, false, level, &three) == wholebf);
          CHECK(found(DR_F32, g.bits, target, one, true, level, &three) == whole32);
          CHECK(found(DR_F32, g.bits, target, one, true, level, &three, true) == whole32);
          CHECK(found(DR_F32, g.bits, target, many, false, level, &three) == cut32);
        });
      }
    }
}

TEST_CASE("a survey counts what is not zero and finds the largest magnitude, at every level") {
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
    for (const uint32_t n : {0u, 1u, 7u, 8u, 33u, 4096u, 16384u, 16385u, 70000u})
      for (const uint32_t zeros : {0u, 1u, 2u}) {  // none, of either sign in turn with others, all
        const uint32_t minus = dtype == DR_F32 ? 0x80000000 : 0x8000, size = value_size(dtype);
        std::vector<uint32_t> v(n + 1);  // aligned to one value only
        auto* const from = reinterpret_cast<std::byte*>(v.data()) + size;
        uint64_t kept = 0;
        uint32_t most = 5;
        for (uint32_t i = 0; i < n; ++i) {
          const auto drawn = static_cast<uint32_t>(draw(n, i));
          uint32_t bits = (drawn | 1) & (minus | (minus - 1));
          if (zeros == 2 || (zeros == 1 && i % 3 == 0)) bits &= minus;
          kept += (bits & ~minus) != 0;
          most = std::max(most, bits & ~minus);
          store_bits(dtype, from, i, bits);
        }
        for (const cpu_level level : cpu_levels) {
          if (level > cpu_detected()) continue;
          CAPTURE(n);
          uint32_t largest = 5;
          CHECK(select_at(level, dtype).survey(from, n, largest) == kept);
          CHECK(largest == most);
        }
      }
}

TEST_CASE("the loops of selection write the same at every level") {
  for (const uint32_t dtype : {DR_F32, DR_F16})
    for (const uint32_t n : {0u, 1u, 7u, 8u, 16u, 31u, 33u, 100u, 4095u, 4096u})
      for (const uint32_t low : {1u, 0x8000u, 0x80000000u, 0x3c00u, 0x7c00u, 0x3f800000u, 0x7f800001u}) {
        std::vector<uint32_t> v(n + 1);
        for (uint32_t i = 0; i < n; ++i) v[i] = static_cast<uint32_t>(draw(low, i)) | 0x3000;
        const select_kernels& plain = select_at(cpu_level::scalar, dtype);
        std::vector<uint32_t> at(n + select_spare), bits(n + select_spare), keys(n + select_spare);
        const uint32_t count = plain.collect(v.data(), n, low, 77, at.data(), bits.data());
        const uint64_t span = plain.magnitudes(v.data(), n, low, low + 5000000, keys.data());
        CHECK(plain.count(v.data(), n, low) == count);
        const uint32_t edge = n ? v[n / 2] & (dtype == DR_F32 ? 0x7fffffff : 0x7fff) : 1;
        each_fast_level([&](cpu_level level) {
          CAPTURE(n);
          CAPTURE(low);
          const select_kernels& fast = select_at(level, dtype);
          std::vector<uint32_t> at2(n + select_spare), bits2(n + select_spare), keys2(n + select_spare);
          REQUIRE(fast.collect(v.data(), n, low, 77, at2.data(), bits2.data()) == count);
          CHECK(fast.count(v.data(), n, low) == count);
          CHECK(std::equal(at.begin(), at.begin() + count, at2.begin()));
          CHECK(!std::memcmp(bits.data(), bits2.data(), count * value_size(dtype)));
          REQUIRE(fast.magnitudes(v.data(), n, low, low + 5000000, keys2.data()) == span);
          CHECK(std::equal(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(span), keys2.begin()));
          // In place, of a part, with others behind it.
          if (n < 20) return;
          for (const uint64_t ties : {0, 1, 1000}) {
            std::vector<uint32_t> p1(n), p2, k1 = v, k2 = v;
            for (uint32_t i = 0; i < n; ++i) p1[i] = i;
            p2 = p1;
            uint64_t t1 = ties, t2 = ties;
            const uint64_t kept = plain.cut(3, n - 10, edge, t1, p1.data(), k1.data());
            REQUIRE(fast.cut(3, n - 10, edge, t2, p2.data(), k2.data()) == kept);
            CHECK(t1 == t2);
            CHECK(std::equal(p1.begin(), p1.begin() + static_cast<ptrdiff_t>(kept), p2.begin()));
            CHECK(!std::memcmp(k1.data(), k2.data(), kept * value_size(dtype)));
            for (uint32_t i = n - 7; i < n; ++i) CHECK(p2[i] == i);
            const uint32_t size = value_size(dtype), behind = (n - 7) * size;
            CHECK(!std::memcmp(reinterpret_cast<const char*>(k2.data()) + behind,
                               reinterpret_cast<const char*>(v.data()) + behind, 7 * size));
          }
        });
      }
}

}  // namespace dr
