// The kernels of patches: codecs/family/classes and rans. Their layout is in the READMEs beside them.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "codecs/family/classes/changed_words.hpp"
#include "codecs/family/classes/word_changes.hpp"

namespace {

using dr::change_scratch;
using dr::changed_scratch;

template <class Bits>
struct weights {
  std::vector<Bits> old, now;       // all
  std::vector<uint32_t> at;         // of those that changed
  std::vector<Bits> before, after;  // these

  void list() {
    for (size_t i = 0; i < old.size(); ++i)
      if (old[i] != now[i]) {
        at.push_back(static_cast<uint32_t>(i));
        before.push_back(old[i]);
        after.push_back(now[i]);
      }
  }
};

uint16_t bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Normal weights, and what a step of Adam makes of them: about the rate, whatever the weight.
weights<uint16_t> trained(size_t n, float rate, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  weights<uint16_t> w;
  for (size_t i = 0; i < n; ++i) {
    const float x = 0.02f * normal(random), step = std::min(1.4f, std::abs(0.5f + 0.5f * normal(random)));
    w.old.push_back(bf16(x));
    w.now.push_back(bf16(x + (normal(random) > 0 ? rate : -rate) * step));
  }
  w.list();
  return w;
}

// Random words, of which a share changes, some to anything.
template <class Bits>
weights<Bits> random_words(size_t n, double share, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> chance;
  weights<Bits> w;
  for (size_t i = 0; i < n; ++i) {
    const auto old = static_cast<Bits>(random() >> random() % 60);
    w.old.push_back(old);
    w.now.push_back(chance(random) >= share ? old
                    : chance(random) < 0.1  ? static_cast<Bits>(random())
                                            : static_cast<Bits>(old + 1));
  }
  w.list();
  return w;
}

template <class Bits>
std::vector<uint8_t> encode_at(const weights<Bits>& w) {
  const dr::base_words base{sizeof(Bits), w.old.data(), w.old.size()};
  std::vector<std::byte> scratch(changed_scratch::size(base.n, w.at.size()));
  std::vector<uint8_t> out(dr::changed_bound(base.n, w.at.size()));
  out.resize(dr::changed_encode(base, w.at.data(), w.at.size(),
                                changed_scratch::at(scratch.data(), base.n, w.at.size()), out.data()));
  return out;
}

// The payload lies at the end of its memory, the output has no room behind it: sanitizers see the rest.
template <class Bits>
bool decode_at(const std::vector<Bits>& old, const std::vector<uint8_t>& payload, size_t count,
               std::vector<uint32_t>& at) {
  const dr::base_words base{sizeof(Bits), old.data(), old.size()};
  std::vector<std::byte> scratch(changed_scratch::size(base.n, count));
  const std::vector<uint8_t> in(payload);
  at.assign(count, 0);
  at.shrink_to_fit();
  return dr::changed_decode(base, in.data(), in.size(), count, changed_scratch::at(scratch.data(), base.n, count),
                            at.data());
}

template <class Change, class Bits>
std::vector<uint8_t> encode_changes(const weights<Bits>& w) {
  std::vector<std::byte> scratch(change_scratch::size(w.at.size()));
  std::vector<uint8_t> out(dr::changes_bound<Bits>(w.at.size()));
  out.resize(dr::changes_encode<Change>(w.before.data(), w.after.data(), w.at.size(),
                                        change_scratch::at(scratch.data(), w.at.size()), out.data()));
  return out;
}

template <class Change, class Bits>
bool decode_changes(const std::vector<Bits>& before, const std::vector<uint8_t>& payload, std::vector<Bits>& after) {
  std::vector<std::byte> scratch(change_scratch::size(before.size()));
  const std::vector<uint8_t> in(payload);
  after.assign(before.size(), 0);
  return dr::changes_decode<Change>(before.data(), in.data(), in.size(), before.size(),
                                    change_scratch::at(scratch.data(), before.size()), after.data());
}

template <class Change, class Bits>
void check_round_trip(const weights<Bits>& w) {
  if (w.at.empty()) return;
  const std::vector<uint8_t> index = encode_at(w), changes = encode_changes<Change>(w);
  REQUIRE(index.size() <= dr::changed_bound(w.old.size(), w.at.size()));
  REQUIRE(changes.size() <= dr::changes_bound<Bits>(w.at.size()));
  std::vector<uint32_t> at;
  REQUIRE(decode_at(w.old, index, w.at.size(), at));
  REQUIRE(at == w.at);
  std::vector<Bits> after;
  REQUIRE(decode_changes<Change>(w.before, changes, after));
  REQUIRE(after == w.after);
}

template <class Bits>
void check_type(uint32_t seed) {
  for (const size_t n : {1u, 2u, 63u, 64u, 65u, 4095u, 4096u, 4097u, 40000u})
    for (const double share : {0.001, 0.05, 0.3, 0.7, 1.0}) {
      const auto w = random_words<Bits>(n, share, seed + static_cast<uint32_t>(n));
      check_round_trip<dr::ulp_change<dr::word_type<Bits, true>>>(w);
      check_round_trip<dr::ulp_change<dr::word_type<Bits, false>>>(w);
      check_round_trip<dr::xor_change<dr::word_type<Bits, true>>>(w);
    }
}

double entropy(double n, double r) {
  return r == 0 || r == n ? 0 : n * std::log2(n) - r * std::log2(r) - (n - r) * std::log2(n - r);
}

using bf16_change = dr::ulp_change<dr::word_type<uint16_t, true>>;

TEST_CASE("patches of words of every size come back, whatever changed") {
  check_type<uint8_t>(1);
  check_type<uint16_t>(2);
  check_type<uint32_t>(3);
  check_type<uint64_t>(4);
  for (const float rate : {1e-6f, 1e-5f, 1e-4f, 1e-3f}) check_round_trip<bf16_change>(trained(100000, rate, 5));
}

TEST_CASE("a patch of one class is never longer than its bound, where a bitmap is about as long as gaps") {
  // (A bitmap of the length of the bound left no room for its head, and the payload was empty.)
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    weights<uint32_t> w;
    w.old.assign(32768 + random() % 60, 7);
    w.now = w.old;
    std::vector<uint32_t> order(w.old.size());
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random);
    const uint32_t changed = (seed % 2 ? 15000u : 16390u) + random() % 100;
    for (uint32_t i = 0; i < changed; ++i) w.now[order[i]] = 8;
    w.list();
    check_round_trip<dr::ulp_change<dr::word_type<uint32_t, true>>>(w);
  }
}

TEST_CASE("the next number up is one unit away, through zero and over exponents") {
  // In the order of numbers: -2, the next above it, the smallest below zero, -0, 0, the smallest, 1 less a place, 1.
  const uint16_t ascending[] = {0xc000, 0xbfff, 0x8001, 0x8000, 0x0000, 0x0001, 0x3f7f, 0x3f80};
  using word = dr::word_type<uint16_t, true>;
  for (size_t i = 1; i < std::size(ascending); ++i)
    CHECK(static_cast<int16_t>(word::ordered(ascending[i - 1])) < static_cast<int16_t>(word::ordered(ascending[i])));
  for (const auto& [old, now] : {std::pair<uint16_t, uint16_t>{0xc000, 0xbfff}, {0x8000, 0x0000}, {0x3f7f, 0x3f80}}) {
    CHECK(bf16_change::of(old, now) == 2);  // zigzag of +1
    CHECK(bf16_change::of(now, old) == 1);  // and of -1
  }
}

TEST_CASE("the worked example of changed words is what its README states") {
  const std::vector<uint16_t> old{0x3e00, 0x3e80, 0xbe00, 0x3e00, 0xbe80, 0x3f00,
                                  0x3e00, 0x3e80, 0x3f80, 0xbe00, 0x3e00, 0x3f00};
  std::vector<uint32_t> at;
  REQUIRE(decode_at(old, {0x02, 0x7d, 0x06, 0x03, 0x00, 0x02, 0x15}, 3, at));
  CHECK(at == std::vector<uint32_t>{0, 3, 9});
}

TEST_CASE("an index and a change cost the entropy of their classes by exponent, and little more") {
  const auto w = trained(4'000'000, 1e-6f, 7);
  const double n = static_cast<double>(w.old.size()), r = static_cast<double>(w.at.size());
  CHECK(r / n > 0.02);
  CHECK(r / n < 0.03);
  // Of each exponent how many words and changes there are: what a code by exponent can reach.
  std::vector<double> words(256), changed(256);
  for (const uint16_t x : w.old) ++words[x >> 7 & 255];
  for (const uint16_t x : w.before) ++changed[x >> 7 & 255];
  double bits = 0;
  for (size_t e = 0; e < 256; ++e) bits += entropy(words[e], changed[e]);
  const double index = 8.0 * static_cast<double>(encode_at(w).size());
  CHECK(index < 1.05 * bits);
  CHECK(index < 0.75 * entropy(n, r));  // of a uniform set
  // And of the changes of each exponent.
  double of_changes = 0;
  for (size_t e = 0; e < 256; ++e) {
    std::vector<double> counts(65536);
    double all = 0;
    for (size_t i = 0; i < w.at.size(); ++i)
      if ((w.before[i] >> 7 & 255u) == e) ++counts[bf16_change::of(w.before[i], w.after[i])], ++all;
    for (const double c : counts)
      if (c > 0) of_changes -= c * std::log2(c / all);
  }
  CHECK(8.0 * static_cast<double>(encode_changes<bf16_change>(w).size()) < 1.06 * of_changes);
}

// What stands in class_walk.hpp, word by word.
template <class Bits>
void check_walks(const weights<Bits>& w, const dr::class_list& classes) {
  std::vector<uint64_t> words(classes.count);
  std::vector<uint32_t> rank_of(w.at.size());
  for (size_t i = 0, k = 0; i < w.old.size(); ++i) {
    const uint32_t c = classes.of(dr::word_key(w.old[i]));
    if (k < w.at.size() && w.at[k] == i) rank_of[k++] = static_cast<uint32_t>(words[c]);
    ++words[c];
  }
  const auto of_key = classes.table();
  const auto each_block = [&](auto&& f) {
    for (uint64_t first = 0; first < w.old.size(); first += dr::class_block)
      f(first, static_cast<uint32_t>(std::min<uint64_t>(dr::class_block, w.old.size() - first)));
  };
  for (const dr::cpu_level level : dr::cpu_levels) {
    if (!dr::cpu_has(level)) continue;
    CAPTURE(static_cast<uint32_t>(level));
    dr::class_counts counts{}, again{};
    std::vector<uint8_t> of(w.at.size());
    std::vector<uint32_t> rank(w.at.size()), at(w.at.size());
    std::vector<std::vector<uint32_t>> lists(classes.count);
    size_t i = 0;
    each_block([&](uint64_t first, uint32_t n) {
      size_t end = i;
      while (end < w.at.size() && w.at[end] < first + n) ++end;
      dr::class_ranks.at(level)({sizeof(Bits), w.old.data(), first, n, &classes, of_key.data(), w.at.data() + i,
                                 static_cast<uint32_t>(end - i), &counts, of.data() + i, rank.data() + i});
      i = end;
    });
    CHECK(rank == rank_of);
    for (size_t k = 0; k < w.at.size(); ++k) lists[of[k]].push_back(rank[k]);
    const uint32_t* next[dr::classes_max];
    for (uint32_t c = 0; c < classes.count; ++c) {
      CHECK(counts[c] == words[c]);
      lists[c].push_back(UINT32_MAX);
      next[c] = lists[c].data();
    }
    uint64_t got = 0;
    each_block([&](uint64_t first, uint32_t n) {
      got += dr::class_select.at(level)(
          {sizeof(Bits), w.old.data(), first, n, &classes, &again, next, w.at.size() - got, at.data() + got});
    });
    CHECK(got == w.at.size());
    CHECK(at == w.at);
    CHECK(again == counts);
  }
}

TEST_CASE("every instruction set finds the ranks of words in their classes, and the words of ranks") {
  const dr::class_list one, two{2, {118}}, five{5, {110, 117, 119, 121}}, eight{8, {1, 40, 90, 110, 117, 119, 121}};
  for (const auto& classes : {one, two, five, eight})
    for (const size_t n : {size_t{1}, size_t{63}, size_t{4096}, size_t{4097}, size_t{50'001}}) {
      CAPTURE(classes.count);
      CAPTURE(n);
      check_walks(trained(n, 3e-6f, 9), classes);
      check_walks(trained(n, 1e-3f, 9), classes);
      check_walks(random_words<uint8_t>(n, 0.3, 21), classes);
      check_walks(random_words<uint32_t>(n, 0.05, 22), classes);
      check_walks(random_words<uint64_t>(n, 0.9, 23), classes);
    }
}

TEST_CASE("words that are selected past the room for them are counted, and not written") {
  const auto w = trained(4096, 1e-3f, 24);
  const dr::class_list classes{2, {118}};
  for (const dr::cpu_level level : dr::cpu_levels) {
    if (!dr::cpu_has(level)) continue;
    dr::class_counts counts{};
    const std::vector<uint32_t> low{0, 1, 2, UINT32_MAX}, high{5, 9, UINT32_MAX};
    const uint32_t* next[] = {low.data(), high.data()};
    std::vector<uint32_t> at(4, 7);
    CHECK(dr::class_select.at(level)({2, w.old.data(), 0, 4096, &classes, &counts, next, 4, at.data()}) == 5);
    CHECK(at == std::vector<uint32_t>(4, 7));
  }
}

TEST_CASE("a patch for another base is refused, or ends in the same number of words") {
  const auto w = trained(100'000, 1e-5f, 11);
  const auto other = trained(100'000, 1e-5f, 12);
  std::vector<uint32_t> at;
  CHECK_FALSE(decode_at(other.old, encode_at(w), w.at.size(), at));
}

TEST_CASE("hostile payloads of patches are refused or read, and nothing is written past the end") {
  const auto small = random_words<uint16_t>(5000, 0.2, 13);
  const auto dense = trained(70'000, 1e-3f, 14);
  std::mt19937 random(15);
  for (const auto* w : {&small, &dense}) {
    const std::vector<uint8_t> index = encode_at(*w), changes = encode_changes<bf16_change>(*w);
    std::vector<uint32_t> at;
    std::vector<uint16_t> after;
    const int rounds = w == &small ? 4000 : 400;
    for (int k = 0; k < rounds; ++k) {
      std::vector<uint8_t> x = k % 2 ? index : changes;
      // Most damage goes to the heads, which say how long the rest is.
      const size_t places = k % 3 ? std::min<size_t>(x.size(), 60) : x.size();
      for (unsigned flips = 1 + random() % 3; flips; --flips)
        x[random() % places] ^= static_cast<uint8_t>(1u << random() % 8);
      if (k % 5 == 0) x.resize(random() % x.size());
      if (k % 7 == 0) x.push_back(static_cast<uint8_t>(random()));
      if (k % 2) {
        if (!decode_at(w->old, x, w->at.size(), at)) continue;
        for (size_t i = 0; i < at.size(); ++i) REQUIRE((at[i] < w->old.size() && (i == 0 || at[i - 1] < at[i])));
      } else {
        (void)decode_changes<bf16_change>(w->before, x, after);
      }
    }
  }
}

TEST_CASE("frequencies of symbols sum up to 4096, and none that occurs is 0") {
  std::mt19937 random(17);
  for (int k = 0; k < 300; ++k) {
    std::vector<uint32_t> counts(1 + random() % 256);
    for (uint32_t& c : counts) c = random() % 4 ? 0 : random() >> random() % 32;
    counts.back() = 1;
    dr::rans_table table, read;
    table.fit(counts.data(), static_cast<uint32_t>(counts.size()));
    REQUIRE(table.symbols == counts.size());
    CHECK(std::accumulate(table.frequency.begin(), table.frequency.begin() + table.symbols, 0u) == dr::rans_total);
    for (size_t s = 0; s < counts.size(); ++s) CHECK((counts[s] == 0) == (table.frequency[s] == 0));
    uint8_t bytes[dr::rans_table::size_max(256)];
    const uint8_t* const end = table.put(bytes);
    REQUIRE(read.get(bytes, end, 256) == end);
    CHECK(std::equal(table.frequency.begin(), table.frequency.begin() + table.symbols, read.frequency.begin()));
  }
}

}  // namespace
