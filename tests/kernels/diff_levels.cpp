// Which words differ from a base: every level as scalar and as plain code, in memory that is just enough; and sums that follow.
#include <cstring>
#include <random>
#include <vector>

#include "levels.hpp"
#include "patch/base_check.hpp"
#include "patch/word_diff.hpp"
#include "split/split.hpp"

namespace dr {
namespace {

using bytes = std::vector<std::byte>;

struct found {
  std::vector<uint32_t> positions;
  bytes old, values;
  bool operator==(const found&) const = default;
};

struct words {
  bytes base, now;
  uint32_t size;
  uint64_t n() const { return base.size() / size; }
};
words some_words(uint32_t size, uint64_t n, double share, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> chance;
  words w{bytes(n * size), {}, size};
  for (std::byte& b : w.base) b = static_cast<std::byte>(random());
  w.now = w.base;
  for (uint64_t i = 0; i < n; ++i)  // (one bit of any byte of a word)
    if (chance(random) < share) w.now[i * size + random() % size] ^= static_cast<std::byte>(1u << random() % 8);
  return w;
}

found plain(const words& w, uint64_t first, uint64_t n, uint32_t at) {
  found out;
  for (uint64_t i = 0; i < n; ++i) {
    const auto from = static_cast<ptrdiff_t>((first + i) * w.size), to = from + w.size;
    if (std::equal(w.base.begin() + from, w.base.begin() + to, w.now.begin() + from)) continue;
    out.positions.push_back(at + static_cast<uint32_t>(i));
    out.old.insert(out.old.end(), w.base.begin() + from, w.base.begin() + to);
    out.values.insert(out.values.end(), w.now.begin() + from, w.now.begin() + to);
  }
  return out;
}

// Room for all words that are looked at, and no more; what is behind those found may be anything.
template <class F>
found by(F&& diff, const words& w, uint64_t first, uint64_t n, uint32_t at) {
  const word_diff d{w.base.data(), w.now.data(), w.size, 1};
  found out{std::vector<uint32_t>(n), bytes(n * w.size), bytes(n * w.size)};
  const uint64_t count = diff(d, first, n, at, out.positions.data(), out.old.data(), out.values.data());
  CHECK(diff(d, first, n, at, nullptr, nullptr, nullptr) == count);
  REQUIRE(count <= n);
  out.positions.resize(count);
  out.old.resize(count * w.size);
  out.values.resize(count * w.size);
  return out;
}

TEST_CASE("diff: every level finds the words that differ, of every size, length and share") {
  for (const uint32_t size : {1, 2, 4, 8})
    for (const double share : {0.0, 0.01, 0.4, 1.0})
      for (const uint64_t n : {0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 200, 5000}) {
        const words w = some_words(size, n + 3, share, static_cast<uint32_t>(n) + size);
        for (const uint64_t first : {0, 3}) {
          const found expected = plain(w, first, n, 100);
          CAPTURE(size);
          CAPTURE(n);
          const auto at_level = [](cpu_level level) {
            return [=](auto&&... arguments) { return diff_words(arguments..., level); };
          };
          CHECK(by(at_level(cpu_level::scalar), w, first, n, 100) == expected);
          each_fast_level([&](cpu_level level) { CHECK(by(at_level(level), w, first, n, 100) == expected); });
        }
      }
}

TEST_CASE("diff: rows differ if one of their words does, and only these are listed") {
  for (const uint32_t size : {1, 2, 4, 8})
    for (const uint32_t width : {2, 3, 7}) {
      const words w = some_words(size, 40 * width, 0.05, width);
      const word_diff d{w.base.data(), w.now.data(), size, width};
      std::vector<uint32_t> positions(30), expected;
      bytes old(30 * width * size), values = old;
      const uint64_t count = diff_rows(d, 10, 30, positions.data(), old.data(), values.data());
      CHECK(diff_rows(d, 10, 30, nullptr, nullptr, nullptr) == count);
      for (uint32_t i = 0; i < 30; ++i) {
        const size_t at = (10 + i) * size_t{width} * size;
        if (std::memcmp(&w.base[at], &w.now[at], width * size) == 0) continue;
        CHECK(std::memcmp(&old[expected.size() * width * size], &w.base[at], width * size) == 0);
        CHECK(std::memcmp(&values[expected.size() * width * size], &w.now[at], width * size) == 0);
        expected.push_back(i);
      }
      positions.resize(count);
      CHECK(positions == expected);
    }
}

TEST_CASE("sums of a base follow its words to those of what it becomes, wherever they lie") {
  for (const uint32_t size : {1, 2, 4, 8})
    for (const uint32_t width : {1, 3})
      for (const uint64_t rows : {1, 5, 1365, 4096, 9001}) {
        const words w = some_words(size, rows * width, 0.1, static_cast<uint32_t>(rows));
        const word_diff d{w.base.data(), w.now.data(), size, width};
        const uint64_t chunks = base_chunks(w.base.size());
        std::vector<uint64_t> sums(chunks), expected(chunks), all(chunks);
        base_sums(w.base.data(), w.base.size(), sums.data());
        base_sums(w.now.data(), w.now.size(), expected.data());
        all = sums;
        std::vector<uint32_t> positions(rows);
        bytes old(w.base.size()), values = old;
        const uint64_t count = diff_rows(d, 0, rows, positions.data(), old.data(), values.data());
        move_sums(sums.data(), size, width, positions.data(), count, old.data(), values.data());
        CHECK(sums == expected);
        move_sums(all.data(), size, width, nullptr, rows, w.base.data(), w.now.data());
        CHECK(all == expected);
        // And they are the check of FORMAT.md: of whole words that of the bytes.
        if (w.base.size() % 4 == 0)
          CHECK(fold_sums(expected.data(), chunks) ==
                check(reinterpret_cast<const uint8_t*>(w.now.data()), w.now.size()));
      }
}

TEST_CASE("words are taken from a base, and assigned, where they belong") {
  for (const uint64_t row : {1, 2, 3, 4, 8, 12}) {
    bytes from(50 * row), to(50 * row), out(3 * row);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i);
    const uint32_t positions[] = {0, 17, 49};
    gather(row, from.data(), positions, 3, out.data());
    scatter(row, out.data(), positions, 3, to.data());
    for (uint64_t i = 0; i < 50; ++i)
      for (uint64_t b = 0; b < row; ++b)
        CHECK(to[i * row + b] == (i == 0 || i == 17 || i == 49 ? from[i * row + b] : std::byte{0}));
  }
}

}  // namespace
}  // namespace dr
