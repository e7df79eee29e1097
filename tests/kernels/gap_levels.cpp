// Huffman codes of gaps: every level against scalar.
#include <algorithm>
#include <random>
#include <vector>

#include "codecs/index/gap_huffman/gap_huffman_kernel.hpp"
#include "levels.hpp"

namespace dr {
namespace {

using bytes = std::vector<uint8_t>;
using numbers = std::vector<uint32_t>;

// Supports whose gaps have every number of bits, together and mixed, of lengths about strings, blocks and vectors.
template <class F>
void each_support(F&& f) {
  std::mt19937_64 random(31);
  for (const size_t n : {1, 2, 15, 16, 17, 63, 64, 65, 500, 512, 513, 575, 4000, 4095, 4096, 4097, 9000, 70000})
    for (unsigned kind = 0; kind<40; kind += n> 5000 ? 3 : 1) {
      numbers x;
      uint64_t next = 0;
      while (x.size() < n) {
        uint64_t gap = 0;
        if (kind < 32)
          gap = random() % (uint64_t{1} << kind);
        else if (kind < 36)  // skewed: words of one bit
          gap = random() % (4 * (kind - 30)) ? 0 : random() % 5000;
        else if (kind < 38)  // codes that change
          gap = x.size() / 8192 % 2 ? random() % 9 : 100 + random() % 9;
        else  // few long ones
          gap = random() % 1000 ? random() % 3 : random() % (uint64_t{1} << 27);
        if (next + gap >= 0xfffffffe) break;
        x.push_back(static_cast<uint32_t>(next + gap));
        next += gap + 1;
      }
      if (!x.empty()) f(x, next + random() % 3);
    }
}

bytes written(const numbers& x, uint64_t universe, cpu_level level) {
  bytes out(gap_huffman_bound(universe, x.size()), 0xee);
  const gap_payload payload{x.size(), universe, level};
  out.resize(payload.encode(x.data(), out.data()));
  CHECK(payload.size(x.data()) == out.size());
  return out;
}

TEST_CASE("gap_huffman: every level writes and reads what scalar does, and refuses what it refuses") {
  std::mt19937_64 random(32);
  size_t taken = 0, refused = 0;
  each_support([&](const numbers& x, uint64_t universe) {
    CAPTURE(x.size());
    CAPTURE(universe);
    const bytes expected = written(x, universe, cpu_level::scalar);
    const auto read = [&](const bytes& in, cpu_level level, numbers& back, uint64_t& where) {
      const gap_payload payload{x.size(), universe, level};
      return payload.get(in.data(), in.size(), 0, payload.blocks(), back.data(), &where);
    };
    numbers back(x.size()), other(x.size());
    uint64_t where = 0, elsewhere = 0;
    CHECK(read(expected, cpu_level::scalar, back, where));
    const bool came_back = back == x;
    CHECK(came_back);
    each_fast_level([&](cpu_level level) {
      const bool same = written(x, universe, level) == expected;
      CHECK(same);
      std::fill(back.begin(), back.end(), 0);
      CHECK(read(expected, level, back, where));
      const bool back_too = back == x;
      CHECK(back_too);
    });
    for (int round = 0; round < (x.size() > 5000 ? 4 : 20); ++round) {
      bytes bad = expected;
      if (round % 4 == 3)
        bad.resize(random() % (bad.size() + 1));
      else
        bad[random() % bad.size()] ^= static_cast<uint8_t>(1u << random() % 8);
      const bool verdict = read(bad, cpu_level::scalar, back, where);
      ++(verdict ? taken : refused);
      each_fast_level([&](cpu_level level) {
        CHECK(read(bad, level, other, elsewhere) == verdict);
        CHECK(elsewhere == where);
        const bool alike = !verdict || other == back;
        CHECK(alike);
      });
    }
  });
  CHECK(refused > 1000);
  CHECK(taken > 10);
}

TEST_CASE("gap_huffman: gaps whose sum overflows 2^32 are refused at every level") {
  // One block whose gaps are all 2^k − 1: their sum is a multiple of 2^32, and `end` what 32 bits would make of it.
  for (unsigned k = 20; k <= 31; ++k) {
    const size_t n = 4096;
    const uint32_t gap = (1u << k) - 1;
    bytes symbols(level_huffman_strings_max * level_huffman_stride);
    numbers gaps(n + gap_slack, gap), x(n);
    const unsigned width = bit_width(gap) - 2;
    bytes flat(n, static_cast<uint8_t>(2 * width + (gap >> width))), extras(4 * n + gap_slack);
    std::fill(symbols.begin(), symbols.end(), flat[0]);
    const auto size =
        static_cast<size_t>(gap_extras_scalar(flat.data(), gaps.data(), n, extras.data()) - extras.data());
    const uint64_t sum = n * (uint64_t{gap} + 1);
    for (const cpu_level level : cpu_levels) {
      if (!cpu_has(level)) continue;
      CAPTURE(k);
      for (const uint64_t base : {0, 17}) {
        CHECK(gap_join.at(level)(symbols.data(), n, extras.data(), size, base, base + sum, x.data()));
        for (const uint64_t rounds : {1, 2, 64})
          CHECK(
              !gap_join.at(level)(symbols.data(), n, extras.data(), size, base, base + sum - (rounds << 32), x.data()));
      }
    }
  }
}

TEST_CASE("gap_huffman: lengths are complete, within their limit and Huffman's where those are; and come back") {
  std::mt19937_64 random(33);
  for (int round = 0; round < 2000; ++round) {
    uint32_t counts[gap_symbols] = {};
    const unsigned used = 1 + static_cast<unsigned>(random() % 64);
    for (unsigned i = 0; i < used; ++i)
      counts[random() % gap_symbols] += round % 2 ? 1 + static_cast<uint32_t>(random() % 9) : 1u << random() % 24;
    uint8_t lengths[gap_symbols], free[gap_symbols], back[gap_symbols];
    huffman_code_lengths<gap_symbols>(counts, gap_symbols, gap_length_max, lengths);
    huffman_code_lengths<gap_symbols>(counts, gap_symbols, ~0u, free);
    CHECK((std::ranges::max(free) > gap_length_max || std::ranges::equal(lengths, free)));
    uint32_t sum = 0;
    for (unsigned i = 0; i < gap_symbols; ++i) {
      CHECK(lengths[i] <= gap_length_max);
      CHECK((!counts[i] || lengths[i]));
      if (lengths[i]) sum += 1u << (level_huffman_bits_max - lengths[i]);
    }
    CHECK(sum == 1u << level_huffman_bits_max);
    uint8_t described[64];
    const uint8_t* const end = put_lengths(lengths, described);
    CHECK(static_cast<size_t>(end - described) == ceil_div(lengths_bits(lengths), 8));
    CHECK(get_lengths(described, end, back) == end);
    CHECK(std::ranges::equal(lengths, back));
    CHECK(!get_lengths(described, end - 1, back));
  }
}

}  // namespace
}  // namespace dr
