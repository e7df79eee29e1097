// Bit strings, packed numbers and the index codecs over them; Huffman codes.
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "codecs/bytes/huffman/huffman_kernel.hpp"
#include "codecs/index/bitmap/bitmap_kernel.hpp"
#include "codecs/index/delta_bitpack/delta_bitpack_kernel.hpp"
#include "codecs/index/delta_pfor/delta_pfor_kernel.hpp"
#include "codecs/index/elias_fano/elias_fano_kernel.hpp"
#include "codecs/index/seeded/seeded_kernel.hpp"
#include "levels.hpp"

namespace dr {
namespace {

using bytes = std::vector<uint8_t>;
using numbers = std::vector<uint32_t>;

// A vector of exactly so many, so that a sanitizer sees a step outside.
bytes exactly(const bytes& from, uint64_t size) { return {from.begin(), from.begin() + static_cast<ptrdiff_t>(size)}; }

// Supports of every density and length about the vectors', runs, and gaps of every number of bits.
template <class F>
void each_support(F&& f) {
  std::mt19937_64 random(7);
  for (const uint64_t universe : {1, 8, 63, 64, 65, 500, 4096, 4097, 20000, 100001})
    for (const unsigned percent : {0, 1, 10, 33, 50, 75, 97, 100}) {
      numbers x;
      for (uint32_t i = 0; i < universe; ++i)
        if (random() % 100 < percent) x.push_back(i);
      if (x.empty()) x.push_back(static_cast<uint32_t>(random() % universe));
      f(x, universe);
    }
  for (unsigned k = 0; k < 32; ++k)
    for (const size_t n : {1, 7, 8, 9, 15, 16, 17, 127, 128, 129, 300}) {
      numbers x;
      uint64_t next = 0;
      while (x.size() < n && next < 0xffffffff) {
        const uint64_t gap = random() % (uint64_t{2} << k);
        if (next + gap >= 0xffffffff) break;
        x.push_back(static_cast<uint32_t>(next + gap));
        next += gap + 1;
      }
      if (!x.empty()) f(x, x.back() + uint64_t{1} + random() % 3);
    }
}

TEST_CASE("bitmap: every level writes and reads what scalar does") {
  each_support([](const numbers& x, uint64_t universe) {
    if (universe > 200000) return;
    bytes expected(ceil_div(universe, 8));
    bitmap_encode(x.data(), x.size(), universe, cpu_level::scalar, expected.data());
    each_fast_level([&](cpu_level level) {
      bytes out(expected.size(), 0xee);
      bitmap_encode(x.data(), x.size(), universe, level, out.data());
      const bool same = out == expected;
      CHECK(same);
      CHECK(count_ones.at(level)(out.data(), out.size()) == x.size());
      numbers back(x.size());
      CHECK(bitmap_decode(out.data(), x.size(), universe, level, back.data()));
      const bool came_back = back == x;
      CHECK(came_back);
      CHECK(!bitmap_decode(out.data(), x.size() + 1, universe, level, back.data()));
    });
  });
}

TEST_CASE("elias_fano: every level writes and reads what scalar does, and refuses what it refuses") {
  std::mt19937_64 random(8);
  each_support([&](const numbers& x, uint64_t universe) {
    bytes expected(elias_fano_bound(universe, x.size()));
    expected = exactly(expected, elias_fano_encode(x.data(), x.size(), universe, cpu_level::scalar, expected.data()));
    each_fast_level([&](cpu_level level) {
      bytes out(expected.size(), 0xee);
      CHECK(elias_fano_encode(x.data(), x.size(), universe, level, out.data()) == expected.size());
      const bool same = out == expected;
      CHECK(same);
      numbers back(x.size());
      uint64_t where = 0;
      CHECK(elias_fano_decode(out.data(), out.size(), x.size(), universe, level, back.data(), &where));
      const bool came_back = back == x;
      CHECK(came_back);
      for (int round = 0; round < 20; ++round) {
        bytes bad = out;
        bad[random() % bad.size()] ^= static_cast<uint8_t>(1u << random() % 8);
        numbers other(x.size());
        uint64_t elsewhere = 0;
        const bool taken =
            elias_fano_decode(bad.data(), bad.size(), x.size(), universe, cpu_level::scalar, back.data(), &where);
        CHECK(elias_fano_decode(bad.data(), bad.size(), x.size(), universe, level, other.data(), &elsewhere) == taken);
        const bool alike = !taken || other == back;
        CHECK(alike);
      }
    });
  });
}

TEST_CASE("packed numbers: every level packs as scalar does") {
  std::mt19937_64 random(9);
  for (unsigned bits = 0; bits <= 32; ++bits)
    for (size_t n = 0; n < 200; n += n < 70 ? 1 : 13) {
      numbers v(n);
      for (uint32_t& x : v) x = static_cast<uint32_t>(random() & low_mask(bits));
      bytes expected(packed_size(n, bits));
      CHECK(pack_scalar(v.data(), n, bits, expected.data()) == expected.data() + expected.size());
      each_fast_level([&](cpu_level level) {
        bytes out(expected.size(), 0xee);
        CHECK(pack_bits.at(level)(v.data(), n, bits, out.data()) == out.data() + out.size());
        CAPTURE(bits);
        const bool same = out == expected;
        CHECK(same);
      });
    }
}

TEST_CASE("packed numbers: every level unpacks as scalar does, and reads nothing behind them") {
  std::mt19937_64 random(13);
  for (unsigned bits = 0; bits <= 32; ++bits)
    for (size_t n = 0; n < 140; n += n < 70 ? 1 : 13) {
      bytes in(packed_size(n, bits));
      for (uint8_t& x : in) x = static_cast<uint8_t>(random());
      numbers expected(n);
      unpack_scalar(in.data(), in.data() + in.size(), n, bits, expected.data());
      each_fast_level([&](cpu_level level) {
        numbers v(n + 16);
        unpack_bits.at(level)(in.data(), in.data() + in.size(), n, bits, v.data());
        CAPTURE(bits);
        const bool same = std::equal(expected.begin(), expected.end(), v.begin());
        CHECK(same);
      });
    }
}

// Every level writes and reads what scalar does, and refuses what it refuses.
void check_gap_codec(uint64_t seed, decltype(delta_bitpack_bound)* bound, decltype(delta_bitpack_size)* size_of,
                     decltype(delta_bitpack_encode)* encode, decltype(delta_bitpack_decode)* decode) {
  std::mt19937_64 random(seed);
  each_support([&](const numbers& x, uint64_t universe) {
    bytes expected(bound(universe, x.size()));
    expected = exactly(expected, encode(x.data(), x.size(), cpu_level::scalar, expected.data()));
    each_fast_level([&](cpu_level level) {
      CHECK(size_of(x.data(), x.size(), level) == expected.size());
      bytes out(expected.size(), 0xee);
      CHECK(encode(x.data(), x.size(), level, out.data()) == expected.size());
      const bool same = out == expected;
      CHECK(same);
      numbers back(x.size());
      uint64_t where = 0;
      CHECK(decode(out.data(), out.size(), x.size(), universe, level, back.data(), &where));
      const bool came_back = back == x;
      CHECK(came_back);
      for (int round = 0; round < 20; ++round) {
        bytes bad = out;
        bad[random() % bad.size()] ^= static_cast<uint8_t>(1u << random() % 8);
        numbers other(x.size());
        uint64_t elsewhere = 0;
        const bool taken = decode(bad.data(), bad.size(), x.size(), universe, cpu_level::scalar, back.data(), &where);
        CHECK(decode(bad.data(), bad.size(), x.size(), universe, level, other.data(), &elsewhere) == taken);
        CHECK(elsewhere == where);
        const bool alike = !taken || other == back;
        CHECK(alike);
      }
    });
  });
}

TEST_CASE("delta_bitpack: every level writes and reads what scalar does, and refuses what it refuses") {
  check_gap_codec(10, delta_bitpack_bound, delta_bitpack_size, delta_bitpack_encode, delta_bitpack_decode);
}

TEST_CASE("delta_bitpack: gaps that overflow 32 bits are refused at every level") {
  // Blocks of gaps of 24 and 25 bits, all ones, more than fit below 2^32.
  for (const unsigned bits : {23, 24, 25, 32}) {
    const uint64_t n = 128 * 12;
    bytes in(12, static_cast<uint8_t>(bits));
    in.resize(12 + packed_size(n, bits), 0xff);
    for (const cpu_level level : cpu_levels) {
      if (level > cpu_detected()) continue;
      numbers x(n);
      uint64_t where = 0;
      CHECK(!delta_bitpack_decode(in.data(), in.size(), n, 0xffffffff, level, x.data(), &where));
    }
  }
}

TEST_CASE("delta_pfor: every level writes and reads what scalar does, and refuses what it refuses") {
  check_gap_codec(11, delta_pfor_bound, delta_pfor_size, delta_pfor_encode, delta_pfor_decode);
}

TEST_CASE("delta_pfor: every form of a block is read alike at every level") {
  // All numbers of exceptions, their widths, and gaps up to where lanes of 32 bits would overflow.
  std::mt19937_64 random(12);
  for (const size_t n : {5, 9, 127, 128, 256})
    for (unsigned exceptions = 1; exceptions <= 24; exceptions += exceptions < 18 ? 1 : 3)
      for (unsigned top = 1; top <= 25; ++top) {
        numbers x;
        uint64_t next = 0;
        for (size_t i = 0; i < n; ++i) {
          const bool wide = random() % 128 < exceptions;
          next += wide ? (uint64_t{1} << top) - 1 - random() % 2 : random() % 3;
          if (next >= 0xffffffff) break;
          x.push_back(static_cast<uint32_t>(next++));
        }
        if (x.empty()) continue;
        bytes expected(delta_pfor_bound(next, x.size()));
        expected = exactly(expected, delta_pfor_encode(x.data(), x.size(), cpu_level::scalar, expected.data()));
        each_fast_level([&](cpu_level level) {
          bytes out(expected.size(), 0xee);
          CHECK(delta_pfor_encode(x.data(), x.size(), level, out.data()) == expected.size());
          const bool same = out == expected;
          CHECK(same);
          numbers back(x.size());
          uint64_t where = 0;
          CHECK(delta_pfor_decode(out.data(), out.size(), x.size(), next, level, back.data(), &where));
          const bool came_back = back == x;
          CHECK(came_back);
        });
      }
}

TEST_CASE("delta_pfor: gaps that overflow 32 bits are refused at every level") {
  for (const unsigned bits : {0, 5, 20, 22, 23, 24, 31})
    for (const unsigned upper_bits : {1, 2, 3, 4, 8, 10, 12, 20, 31}) {
      if (bits + upper_bits > 32 || bits + upper_bits < 21) continue;
      // Bitmaps of ones, everything as large as it can be, over and over.
      const uint64_t blocks = uint64_t{1} << (26 - std::min(bits + upper_bits, 25u)), n = 128 * blocks;
      bytes in;
      for (uint64_t i = 0; i < blocks; ++i) {
        const uint16_t head = pfor_pack_head({bits, upper_bits, pfor_bitmap});
        in.insert(in.end(), {static_cast<uint8_t>(head), static_cast<uint8_t>(head >> 8)});
      }
      in.resize(in.size() + blocks * (16 + 16 * bits + 16 * upper_bits), 0xff);
      for (const cpu_level level : cpu_levels) {
        if (level > cpu_detected()) continue;
        numbers x(n);
        uint64_t where = 0;
        CHECK(!delta_pfor_decode(in.data(), in.size(), n, 0xffffffff, level, x.data(), &where));
      }
    }
}

TEST_CASE("seeded: every level draws the same, and draws that run out are noticed") {
  for (const uint64_t universe : {1, 2, 64, 65, 1000, 40000})
    for (const uint64_t count : {uint64_t{1}, universe / 3 + 1, universe / 2 + 1, universe}) {
      if (count > universe) continue;
      std::vector<uint64_t> scratch(seeded_scratch(universe) / 8);
      auto* const room = reinterpret_cast<std::byte*>(scratch.data());
      numbers expected(count);
      REQUIRE(seeded_support(5, universe, count, cpu_level::scalar, room, expected.data()));
      CHECK(std::set<uint32_t>(expected.begin(), expected.end()).size() == count);
      each_fast_level([&](cpu_level level) {
        numbers x(count);
        CHECK(seeded_support(5, universe, count, level, room, x.data()));
        const bool same = x == expected;
        CHECK(same);
      });
    }
}

TEST_CASE("seeded: every element is as likely as any other") {
  constexpr uint64_t universe = 50, count = 20, keys = 20000;
  std::vector<uint64_t> scratch(seeded_scratch(universe) / 8);
  std::vector<double> times(universe), pairs(universe - 1);
  numbers x(count);
  for (uint64_t key = 0; key < keys; ++key) {
    REQUIRE(seeded_support(mix64(key), universe, count, cpu_level::scalar, reinterpret_cast<std::byte*>(scratch.data()),
                           x.data()));
    for (uint64_t i = 0; i < count; ++i) {
      ++times[x[i]];
      if (i && x[i] == x[i - 1] + 1) ++pairs[x[i - 1]];
    }
  }
  // 5 standard deviations of a binomial count.
  const auto near = [&](double found, double p) {
    return std::abs(found - keys * p) < 5 * std::sqrt(keys * p * (1 - p));
  };
  for (const double t : times) CHECK(near(t, 0.4));
  for (const double p : pairs) CHECK(near(p, 0.4 * 19 / 49));
}

TEST_CASE("huffman: what was written is read, and damage stays inside") {
  std::mt19937_64 random(11);
  for (const size_t n : {0, 1, 2, 9, 100, 4095, 4096, 4097, 32768, 32769, 33000, 70000})
    for (int kind = 0; kind < 5; ++kind) {
      bytes in(n);
      for (uint8_t& b : in)
        b = static_cast<uint8_t>(kind == 0   ? 5
                                 : kind == 1 ? random()
                                 : kind == 2 ? __builtin_ctzll(random() | 1 << 20)
                                 : kind == 3 ? random() % 3
                                             : random() % 16 * (random() % 16));
      bytes payload(huffman_bound(n));
      payload = exactly(payload, huffman_encode(in.data(), n, payload.data()));
      bytes out(n);
      uint64_t size = 0, where = 0;
      CHECK(huffman_decode(payload.data(), payload.size(), out.data(), n, &size, &where));
      const bool same = size == n && out == in;
      CHECK(same);
      for (int round = 0; round < 30; ++round) {
        bytes bad = payload;
        bad[random() % bad.size()] ^= static_cast<uint8_t>(1u << random() % 8);
        (void)huffman_decode(bad.data(), bad.size(), out.data(), n, &size, &where);  // stays inside
      }
    }
}

TEST_CASE("huffman: lengths are complete, at most 11, and as cheap as Huffman's where those are no longer") {
  std::mt19937_64 random(12);
  for (int round = 0; round < 300; ++round) {
    uint64_t counts[256] = {};
    const size_t used = 2 + random() % 255;
    for (size_t i = 0; i < used; ++i) counts[random() % 256] += 1 + (random() >> (20 + random() % 40));
    if (round % 3 == 0)
      for (uint64_t& c : counts) c = c ? 1 + (uint64_t{1} << random() % 40) : 0;
    std::vector<unsigned> there;
    for (unsigned b = 0; b < 256; ++b)
      if (counts[b]) there.push_back(b);
    if (there.size() < 2) continue;
    uint8_t lengths[256];
    huffman_code_lengths<256>(counts, 256, huffman_bits_max, lengths);
    unsigned kraft = 0;
    for (const unsigned b : there) {
      REQUIRE(lengths[b] >= 1);
      REQUIRE(lengths[b] <= huffman_bits_max);
      kraft += 1u << (huffman_bits_max - lengths[b]);
    }
    CHECK(kraft == 1u << huffman_bits_max);
    for (const unsigned a : there)
      for (const unsigned b : there)
        if (counts[a] > counts[b]) CHECK(lengths[a] <= lengths[b]);
    // Huffman's own: the sum of all pairs that are merged, the rarest two first. Optimal, and equal where no length is above 11.
    std::multiset<uint64_t> heap;
    uint64_t ours = 0, optimal = 0;
    for (const unsigned b : there) {
      heap.insert(counts[b]);
      ours += counts[b] * lengths[b];
    }
    while (heap.size() > 1) {
      const uint64_t pair = *heap.begin() + *std::next(heap.begin());
      heap.erase(heap.begin(), std::next(heap.begin(), 2));
      heap.insert(pair);
      optimal += pair;
    }
    CHECK(ours >= optimal);
    if (std::ranges::none_of(there, [&](unsigned b) { return lengths[b] == huffman_bits_max; })) CHECK(ours == optimal);
  }
}

}  // namespace
}  // namespace dr
