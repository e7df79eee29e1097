// random and dgc against plain code, written from their SPEC.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cases/sparsifier_case.hpp"
#include "codecs/sparsify/dgc/dgc.hpp"
#include "codecs/sparsify/random/random.hpp"
#include "core/arena.hpp"
#include "primitive/rng.hpp"

namespace {

using namespace dr;
using cases::positions;

positions bits_of(const std::vector<uint64_t>& words) {
  positions out;
  for (uint64_t i = 0; i < 64 * words.size(); ++i)
    if (words[i / 64] >> (i % 64) & 1) out.push_back(i);
  return out;
}

positions chosen(uint64_t key, uint64_t d, uint64_t target) {
  std::vector<uint64_t> words(random_words(d), 0x1234567);
  choose_random(key, d, target, words.data());
  return bits_of(words);
}

// A selection's memory, and what it was given.
struct kept {
  static inline std::vector<std::byte> memory = std::vector<std::byte>(4 << 20);
  arena from{memory.data(), memory.size()};
  select_memory room;
  select_scratch scratch{};
  std::vector<uint32_t> sample;

  kept(uint32_t dtype, uint64_t n, uint64_t most, uint64_t target, uint64_t ranges) {
    room = select_memory::lay_out(from, dtype, n, most, ranges);
    scratch.grow(n, target, false);
    scratch = scratch.lay_out(from);
    sample.resize(n);
  }
  // In the tensor, ranges having so many positions; all values checked.
  template <class Bits>
  positions of(const std::vector<Bits>& values, uint64_t range, uint64_t ranges, uint64_t count) const {
    positions out;
    for (uint64_t k = 0, i = 0; k < ranges; ++k)
      for (; i < room.ends[k]; ++i) {
        out.push_back(k * range + room.positions[i]);
        const bool same = static_cast<const Bits*>(room.values)[i] == values[out.back()];
        CHECK(same);
      }
    CHECK(out.size() == count);
    return out;
  }
};

// Ranges of so many positions, in pieces of so many; every other piece has to be loaded.
template <class Bits>
struct cut_source {
  const std::vector<Bits>& values;
  std::vector<select_piece> pieces;
  std::vector<uint64_t> begins;
  select_source source;

  cut_source(uint32_t dtype, const std::vector<Bits>& v, uint64_t range, uint64_t piece) : values(v) {
    for (uint64_t begin = 0, k = 0; begin < v.size(); begin += range, ++k)
      for (uint64_t at = begin; at < std::min<uint64_t>(begin + range, v.size()); at += piece) {
        const uint64_t n = std::min({piece, begin + range - at, v.size() - at});
        begins.push_back(at);
        pieces.push_back({pieces.size() % 2 ? nullptr : v.data() + at, n, static_cast<uint32_t>(at - begin),
                          static_cast<uint32_t>(k), at});
      }
    source = {dtype, pieces, load, this};
  }
  static const void* load(void* self, size_t k, uint64_t at, uint32_t n, select_load what, void* room) {
    auto& s = *static_cast<cut_source*>(self);
    const bool made = s.made_piece > k || (s.made_piece == k && s.made >= at + n);
    if (what == select_load::hint) return nullptr;
    if (what == select_load::peek) {
      const bool nothing_made = s.made_piece == 0 && s.made == 0;
      CHECK(nothing_made);
    }
    if (what == select_load::again) CHECK(made);
    if (what == select_load::first) {
      const bool follows = s.made_piece == k ? s.made == at : k > s.made_piece && at == 0;
      CHECK(follows);
      s.made_piece = k;
      s.made = at + n;
      s.made_all += n;
    }
    std::copy_n(s.values.data() + s.begins[k] + at, n, static_cast<Bits*>(room));
    return room;
  }
  // Each value that is to be made was, once, unless none had to be looked at.
  void check_made() const {
    uint64_t all = 0;
    for (const select_piece& p : pieces) all += p.values ? 0 : p.n;
    CHECK(made_all == all);
  }
  size_t made_piece = 0;
  uint64_t made = 0, made_all = 0;
};

}  // namespace

TEST_CASE("random: the positions that are drawn, so many and all different") {
  for (const uint64_t d : {1u, 2u, 63u, 64u, 65u, 1000u, 4096u})
    for (const uint64_t target : {uint64_t{0}, uint64_t{1}, d / 100, d / 3, d / 2, d / 2 + 1, d - 1, d})
      for (const uint64_t key : {1, 2, 3}) {
        if (target > d) continue;
        const positions got = chosen(key, d, target);
        CAPTURE(d);
        CAPTURE(target);
        CHECK(got.size() == target);
        CHECK(got == cases::drawn_positions(key, d, target));
      }
  CHECK(chosen(1, 0, 0).empty());
}

TEST_CASE("random: every position as often, and every pair") {
  constexpr uint64_t d = 12, target = 4;
  constexpr double keys = 30000, one = keys * target / d, two = keys * target * (target - 1) / (d * (d - 1));
  double single[d] = {}, pair[d][d] = {};
  for (uint64_t key = 0; key < keys; ++key)
    for (const uint64_t a : chosen(key, d, target)) {
      ++single[a];
      for (const uint64_t b : chosen(key, d, target)) ++pair[a][b];
    }
  for (uint64_t a = 0; a < d; ++a) {
    CHECK(std::abs(single[a] - one) < 5 * std::sqrt(one));
    for (uint64_t b = 0; b < a; ++b) CHECK(std::abs(pair[a][b] - two) < 5 * std::sqrt(two));
  }
}

TEST_CASE(
    "random: what is kept is the same in any segments and pieces, zeros too; of sparse values those that are chosen") {
  std::vector<uint32_t> v(3000);
  for (size_t i = 0; i < v.size(); ++i) v[i] = i % 3 ? static_cast<uint32_t>(draw(9, i)) : 0;
  std::vector<uint64_t> words(random_words(v.size()));
  for (const uint64_t target : {1, 30, 1499, 2999, 3000}) {
    choose_random(7, v.size(), target, words.data());
    for (const uint64_t range : {1, 63, 64, 1000, 3000})
      for (const uint64_t piece : {1, 50, 64, 3000}) {
        const uint64_t ranges = ceil_div(v.size(), range);
        cut_source<uint32_t> cut(DR_F32, v, range, piece);
        kept k(DR_F32, v.size(), target, target, ranges);
        const uint64_t count = keep_chosen(cut.source, nullptr, words.data(), k.room, {});
        cut.check_made();
        CHECK(k.of(v, range, ranges, count) == bits_of(words));
      }
    positions indices(v.size() / 2), expected;
    for (size_t i = 0; i < indices.size(); ++i) {
      indices[i] = 2 * i + i % 2;
      if (words[indices[i] / 64] >> (indices[i] % 64) & 1) expected.push_back(i);
    }
    const std::vector<uint32_t> present(v.begin(), v.begin() + 1500);
    cut_source<uint32_t> cut(DR_F32, present, 1500, 1500);
    kept k(DR_F32, 1500, target, target, 1);
    CHECK(k.of(present, 1500, 1, keep_chosen(cut.source, indices.data(), words.data(), k.room, {})) == expected);
  }
}

TEST_CASE("dgc: as defined, in every type, for any shape of values; never more than 1.3 of what is requested") {
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
    with_value_type(dtype, [&](auto type) {
      using T = decltype(type);
      using bits = typename T::bits;
      const auto laplace = [](uint64_t i) {
        const double u = unit_interval(draw(5, i)) - 0.5;
        return (u < 0 ? 1e-3 : -1e-3) * std::log(1 - 2 * std::abs(u));
      };
      std::vector<std::vector<bits>> inputs;
      const auto add = [&](uint64_t n, auto&& number) {
        std::vector<bits> v(n);
        for (uint64_t i = 0; i < n; ++i) v[i] = number(i);
        inputs.push_back(std::move(v));
      };
      add(20000, [&](uint64_t i) { return T::from_f64(laplace(i)); });
      add(900, [&](uint64_t i) { return T::from_f64(laplace(i)); });
      add(20000, [&](uint64_t) { return T::from_f64(0.25); });
      add(20000, [&](uint64_t i) { return i % 1000 ? bits{0} : T::from_f64(laplace(i)); });  // fewer than requested
      add(20000, [&](uint64_t i) { return i < 150 ? T::from_f64(1 + laplace(i)) : T::from_f64(0.01 * laplace(i)); });
      add(20000, [&](uint64_t i) { return static_cast<bits>(draw(6, i) >> 9); });  // NaN and infinities
      add(20000, [&](uint64_t i) { return static_cast<bits>(i % 7); });            // subnormals
      add(20000, [&](uint64_t i) { return i % 3 ? bits{0} : T::infinity; });
      add(0, [&](uint64_t) { return bits{0}; });
      for (const auto& v : inputs)
        for (const uint64_t target : {1, 20, 200, 2000, 19000})
          for (const double share : {0.0, 0.1, 1.0})
            for (const uint64_t piece : {uint64_t{20000}, uint64_t{777}}) {
              const uint64_t most = std::min<uint64_t>(v.size(), dgc_most(target));
              cut_source<bits> cut(dtype, v, 5000, piece);
              const uint64_t ranges = ceil_div(v.size(), 5000);
              kept k(dtype, v.size(), most, target, ranges);
              const uint64_t count =
                  keep_dgc(cut.source, 42, target, share, k.sample.data(), k.room, {&k.scratch}).count;
              cut.check_made();
              CAPTURE(v.size());
              CAPTURE(target);
              CAPTURE(share);
              CHECK(count <= most);
              CHECK(k.of(v, 5000, ranges, count) ==
                    cases::kept_by_dgc({dtype, {v.begin(), v.end()}, v.size(), {}, 0}, 42, target, share));
            }
      const auto& v = inputs[0];
      cut_source<bits> cut(dtype, v, v.size(), v.size());
      kept k(dtype, v.size(), dgc_most(200), 200, 1);
      for (uint64_t key = 0; key < 30; ++key) {
        const uint64_t count = keep_dgc(cut.source, key, 200, 0.1, k.sample.data(), k.room, {&k.scratch}).count;
        CHECK(count >= dgc_fewest(200));
        CHECK(count <= dgc_most(200));
      }
    });
}
