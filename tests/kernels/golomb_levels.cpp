// Split Golomb: what every level writes and reads is what scalar does, on blocks that reach every branch of theirs.
#include <vector>

#include "codecs/family/golomb/golomb_payload.hpp"
#include "levels.hpp"
#include "primitive/rng.hpp"

namespace dr {
namespace {

struct block {
  const char* name;
  uint64_t base;
  std::vector<uint32_t> x;
};

// Gaps of roughly the given mean; of each `every`, one is `jump` longer.
block made(const char* name, size_t n, uint64_t base, double mean, uint64_t every = 0, uint64_t jump = 0) {
  block b{name, base, {}};
  uint64_t at = base;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t draw = mix64(i + 77 * n);
    // a sum of geometric-like halves: long tails without libm
    uint64_t gap = mean < 1 ? draw % 100 < 100 * mean : 0;
    if (mean >= 1) {
      double left = mean * 2;
      uint64_t bits = draw;
      while (bits & 1) left *= 1.7, bits >>= 1;
      gap = static_cast<uint64_t>(left * static_cast<double>(bits >> 40 & 0xffff) / 65536);
    }
    if (every && i % every == every / 2) gap += jump;
    at += gap;
    if (at >= 4294967295u) break;
    b.x.push_back(static_cast<uint32_t>(at));
    ++at;
  }
  return b;
}

std::vector<block> blocks() {
  std::vector<block> all;
  for (const size_t n : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 368, 512, 4095, 4096, 8191, 8192}) {
    for (const double mean : {0.0, 0.1, 0.5, 1.0, 1.5, 3.0, 10.0, 100.0, 900.0, 3000.0, 10000.0, 100000.0, 400000.0})
      all.push_back(made("mean", n, n % 3 ? 0 : 12345, mean));
    all.push_back(made("unary codes of 16 and more", n, 5, 20, 9, 2000));
    all.push_back(made("unary codes of 100 and more", n, 0, 3, 40, 2000));
    all.push_back(made("a gap above 2^15", n, 0, 3, 300, 40000));
    all.push_back(made("a gap above 2^16", n, 0, 3, 500, 3000000));
    all.push_back(made("a gap of nearly all", n, 0, 0, n, 4200000000u));
    all.push_back(made("a long unary string", n, 0, 0, 64, 500000));
    all.push_back(made("behind 2^31", n, 3000000000u, 7));
    block patches{"dense rows and empty ones", 0, {}};  // levels from 0 to 15
    uint64_t at = 0;
    for (size_t i = 0; i < n; ++i) {
      at += mix64(i) % (uint64_t{1} << (i / 32 % 16)) + (i % 32 == 31 ? 5000 : 0);
      if (at >= 4294967295u) break;
      patches.x.push_back(static_cast<uint32_t>(at++));
    }
    all.push_back(patches);
  }
  return all;
}

}  // namespace

TEST_CASE("split Golomb blocks are the same bytes at every level, and decode at every level") {
  for (const block& b : blocks())
    for (const divisor_rule& rule : {golomb_rule, rice_rule, adaptive_rule}) {
      CAPTURE(b.name);
      CAPTURE(b.x.size());
      CAPTURE(b.x.back());
      const size_t n = b.x.size();
      const uint64_t end = uint64_t{b.x.back()} + 1;
      std::vector<uint8_t> expected(golomb_bound(end, n, 13) + 16, 0xaa);
      bool clustered = false;
      const auto size = static_cast<size_t>(golomb_put_block(b.x.data(), n, b.base, rule, expected.data(), clustered) -
                                            expected.data());
      each_fast_level([&](cpu_level level) {
        std::vector<uint8_t> found(expected.size(), 0xaa);
        bool found_clustered = !clustered;
        const uint8_t* const behind = golomb_put.at(level)(b.x.data(), n, b.base, rule, found.data(), found_clustered);
        REQUIRE(static_cast<size_t>(behind - found.data()) == size);
        REQUIRE(found_clustered == clustered);
        REQUIRE(found == expected);  // and nothing behind is touched
        // Exactly as many bytes as there are, so that a sanitizer sees a read behind them.
        const std::vector<uint8_t> body(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(size));
        std::vector<uint32_t> x(n + 1, 0xdeadbeef);
        REQUIRE(golomb_get.at(level)(body.data(), size, n, b.base, end, rule, clustered, x.data()));
        REQUIRE(x[n] == 0xdeadbeef);
        x.pop_back();
        REQUIRE(x == b.x);
      });
    }
}

TEST_CASE("a damaged split Golomb block is refused at every level, or read alike") {
  for (const auto& [rule, mean] : {std::pair{golomb_rule, 0.5},
                                   {golomb_rule, 3.0},
                                   {golomb_rule, 100.0},
                                   {golomb_rule, 3000.0},
                                   {golomb_rule, 10000.0},
                                   {adaptive_rule, 3.0},
                                   {adaptive_rule, 900.0}})
    for (const size_t n : {1, 33, 100, 512}) {
      const block b = made("mean", n, 0, mean, 90, 20000);
      const uint64_t end = uint64_t{b.x.back()} + 1;
      std::vector<uint8_t> body(golomb_bound(end, n, 13) + 16);
      bool clustered = false;
      body.resize(static_cast<size_t>(golomb_put_block(b.x.data(), n, 0, rule, body.data(), clustered) - body.data()));
      for (uint64_t turn = 0; turn < 400; ++turn) {
        std::vector<uint8_t> bad = body;
        const uint64_t draw = mix64(turn + 1000 * n);
        if (turn % 4 == 0)
          bad.resize(draw % (bad.size() + 1));
        else if (turn % 4 == 1)
          bad.resize(bad.size() + 1 + draw % 70);
        else
          bad[draw % bad.size()] ^= static_cast<uint8_t>(1u << (draw >> 32) % 8);
        bad.shrink_to_fit();
        std::vector<uint32_t> x(n), y(n);
        const bool expected = golomb_get_block(bad.data(), bad.size(), n, 0, end, rule, clustered, x.data());
        each_fast_level([&](cpu_level level) {
          REQUIRE(golomb_get.at(level)(bad.data(), bad.size(), n, 0, end, rule, clustered, y.data()) == expected);
          if (expected) REQUIRE(x == y);
        });
      }
    }
}

}  // namespace dr
