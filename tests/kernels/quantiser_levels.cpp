// Levels of quantised values: split Golomb, and what makes levels of values and back.
#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "codecs/family/huffman/code_lengths.hpp"
#include "codecs/family/levels/level_blocks.hpp"
#include "codecs/family/levels/table_levels.hpp"
#include "codecs/value/lloyd/lloyd_kernel.hpp"
#include "codecs/value/uniform_quant/uniform_quant_kernel.hpp"
#include "levels.hpp"

namespace dr {
namespace {

struct source {
  std::mt19937_64 bits{20211};
  uint64_t below(uint64_t n) { return bits() % n; }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
};

constexpr size_t lengths[] = {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 200, 1000, 4095, 4096};

// n levels, geometric of a mean, a few of them far out.
std::vector<uint16_t> geometric(source& s, size_t n, double mean, unsigned far) {
  std::vector<uint16_t> levels(n + level_slack);
  for (size_t i = 0; i < n; ++i) {
    double x = -mean * std::log(1 - s.unit());
    if (far && s.below(far) == 0) x *= 50;
    levels[i] = static_cast<uint16_t>(x < 20000 ? x : 20000);
  }
  return levels;
}

template <class F>
void each_block_of_levels(F&& f) {
  source s;
  for (const size_t n : lengths)
    for (const double mean : {0.0, 0.05, 0.4, 1.0, 2.0, 3.0, 10.0, 30.0, 100.0, 250.0, 400.0, 3000.0})
      for (const unsigned far : {0u, 40u, 1000u}) {
        const auto levels = geometric(s, n, mean, far);
        uint64_t sum = 0;
        for (size_t i = 0; i < n; ++i) sum += levels[i];
        CAPTURE(n);
        CAPTURE(mean);
        CAPTURE(far);
        f(s, levels, n, level_code::of(level_divisor(sum, n)));
        f(s, levels, n,
          level_code::of(1 + static_cast<uint32_t>(mean < 20 ? s.below(64) : mean / 4 + double(s.below(100)))));
      }
}

struct body {
  std::vector<uint8_t> bytes = std::vector<uint8_t>(level_body_max + level_slack);
  size_t size = 0;
};
body encoded_at(cpu_level level, const std::vector<uint16_t>& levels, size_t n, level_code code) {
  body b;
  b.size = static_cast<size_t>(split_levels_encode.at(level)(levels.data(), n, code, b.bytes.data()) - b.bytes.data());
  std::fill(b.bytes.begin() + static_cast<ptrdiff_t>(b.size), b.bytes.end(), uint8_t{0});
  return b;
}
bool fits(const std::vector<uint16_t>& levels, size_t n, level_code code) {
  uint64_t bits = n * (code.low_bits + 2) + 64;
  for (size_t i = 0; i < n; ++i) bits += levels[i] / code.divisor;
  return bits < 8 * level_body_max;
}

TEST_CASE("split Golomb of levels: every level writes what scalar writes and reads it back") {
  each_block_of_levels([](source&, const std::vector<uint16_t>& levels, size_t n, level_code code) {
    if (!fits(levels, n, code)) return;
    const body expected = encoded_at(cpu_level::scalar, levels, n, code);
    const auto read = [&](cpu_level level) {
      std::vector<uint16_t> back(n + level_slack);
      CHECK(split_levels_decode.at(level)(expected.bytes.data(), expected.size, n, code, back.data()));
      return std::equal(back.begin(), back.begin() + static_cast<ptrdiff_t>(n), levels.begin());
    };
    CHECK(read(cpu_level::scalar));
    each_fast_level([&](cpu_level level) {
      const body found = encoded_at(level, levels, n, code);
      const bool same = found.size == expected.size && found.bytes == expected.bytes;
      CHECK(same);
      CHECK(read(level));
    });
  });
}

TEST_CASE("split Golomb of levels: every level refuses what scalar refuses, and reads the rest alike") {
  size_t refused = 0, taken = 0;
  each_block_of_levels([&](source& s, const std::vector<uint16_t>& levels, size_t n, level_code code) {
    if (!fits(levels, n, code)) return;
    const body good = encoded_at(cpu_level::scalar, levels, n, code);
    for (int round = 0; round < 12; ++round) {
      body b = good;
      switch (round % 4) {
        case 0: b.bytes[s.below(b.size)] ^= static_cast<uint8_t>(1u << s.below(8)); break;
        case 1: b.size = s.below(b.size + 1); break;
        case 2: b.size = std::min(b.size + s.below(3), level_body_max); break;
        default:
          for (size_t i = s.below(b.size); i < b.size; ++i)
            b.bytes[i] =
                static_cast<uint8_t>(round % 8 == 3 ? s.below(256) & s.below(256) & s.below(256) : s.below(256));
      }
      std::fill(b.bytes.begin() + static_cast<ptrdiff_t>(b.size), b.bytes.end(), uint8_t{0});
      std::vector<uint16_t> expected(n + level_slack), found(n + level_slack);
      const bool verdict = split_levels_decode.scalar(b.bytes.data(), b.size, n, code, expected.data());
      ++(verdict ? taken : refused);
      each_fast_level([&](cpu_level level) {
        CHECK(split_levels_decode.at(level)(b.bytes.data(), b.size, n, code, found.data()) == verdict);
        const bool same =
            !verdict || std::equal(found.begin(), found.begin() + static_cast<ptrdiff_t>(n), expected.begin());
        CHECK(same);
      });
    }
  });
  CHECK(refused > 100);
  CHECK(taken > 100);
}

std::vector<uint32_t> values_of(source& s, size_t n, double spread) {
  std::vector<uint32_t> bits(n);
  for (auto& b : bits) {
    const double m = 4.6 - spread * std::log(1 - s.unit());
    b = std::bit_cast<uint32_t>(static_cast<float>(s.below(2) ? m : -m));
  }
  return bits;
}

TEST_CASE("uniform quantiser: every level yields scalar's range, sums, levels, signs and values") {
  source s;
  for (const size_t n : lengths)
    for (const double spread : {0.0, 1.0, 300.0})
      for (const float step : {0.0f, 0.1f, 1.0f, 1e-3f}) {
        CAPTURE(n);
        CAPTURE(spread);
        CAPTURE(step);
        const auto values = values_of(s, n, spread);
        const magnitude_range range = range_of.scalar(values.data(), n);
        const uniform_step u{std::bit_cast<float>(range.least), step, step > 0 ? 1 / step : 0};
        struct made {
          std::vector<uint16_t> levels;
          std::vector<uint8_t> signs;
          std::vector<uint32_t> back;
          uniform_sums sums;
        };
        const auto at = [&](cpu_level l) {
          made m{std::vector<uint16_t>(level_block + level_slack, 7),
                 std::vector<uint8_t>(n / 8 + 2, 9),
                 std::vector<uint32_t>(n + 1, 5),
                 {}};
          m.sums = uniform_quantise.at(l)(values.data(), n, u, m.levels.data(), m.signs.data());
          uniform_restore.at(l)(m.levels.data(), n, m.signs.data(), 4.6f, step * 1e37f, m.back.data());
          return m;
        };
        const made expected = at(cpu_level::scalar);
        each_fast_level([&](cpu_level l) {
          const magnitude_range r = range_of.at(l)(values.data(), n);
          CHECK(r.least == range.least);
          CHECK(r.largest == range.largest);
          CHECK(uniform_squares.at(l)(values.data(), n, 0.25f) == uniform_squares.scalar(values.data(), n, 0.25f));
          const made found = at(l);
          const bool same =
              found.levels == expected.levels && found.signs == expected.signs && found.back == expected.back;
          CHECK(same);
          CHECK(found.sums.beyond == expected.sums.beyond);
          if (expected.sums.beyond) return;
          CHECK(found.sums.levels == expected.sums.levels);
          CHECK(found.sums.first == expected.sums.first);
          CHECK(found.sums.second == expected.sums.second);
        });
      }
}

// ---- Tables and Huffman ----------------------------------------------------------------------------------

TEST_CASE("tables of levels: every level finds scalar's levels, signs and values") {
  source s;
  for (const size_t n : lengths)
    for (const unsigned count : {2u, 4u, 8u, 16u, 32u, 64u})
      for (const unsigned missing : {0u, 1u}) {
        CAPTURE(n);
        CAPTURE(count);
        level_bounds bounds;
        level_table table;
        bounds.count = table.count = count;
        for (unsigned i = 0; i < table_levels_max; ++i) {
          bounds.of[i] = i < count - 1 - missing
                             ? std::bit_cast<uint32_t>(4.6f + 12.0f * static_cast<float>(i) / static_cast<float>(count))
                             : ~0u;
          table.of[i] = i * 77777;
        }
        auto values = values_of(s, n, 5);
        values[0] = bounds.of[0];  // at a bound
        struct made {
          std::vector<uint8_t> levels, signs;
          std::vector<uint32_t> back;
        };
        const auto at = [&](cpu_level l) {
          made m{std::vector<uint8_t>(n + 1, 7), std::vector<uint8_t>(n / 8 + 2, 9), std::vector<uint32_t>(n + 1, 5)};
          table_quantise.at(l)(values.data(), n, bounds, m.levels.data(), m.signs.data());
          table_restore.at(l)(m.levels.data(), n, m.signs.data(), table, m.back.data());
          return m;
        };
        const made expected = at(cpu_level::scalar);
        for (size_t i = 0; i < n; ++i) {  // by definition
          unsigned level = 0;
          while (level < count - 1 && (values[i] & 0x7fffffff) >= bounds.of[level]) ++level;
          REQUIRE(expected.levels[i] == level);
        }
        each_fast_level([&](cpu_level l) {
          const made found = at(l);
          const bool same =
              found.levels == expected.levels && found.signs == expected.signs && found.back == expected.back;
          CHECK(same);
        });
      }
}

TEST_CASE("lloyd: every level sums errors as scalar does, near what they are") {
  source s;
  for (const size_t n : lengths)
    for (const double scale : {1e-30, 1.0, 1e30}) {
      auto values = values_of(s, n, 5), got = values;
      double error = 0, most = 0;
      for (size_t i = 0; i < n; ++i) {
        const double v = std::bit_cast<float>(values[i]) * scale, to = v * (0.9 + 0.2 * s.unit());
        values[i] = std::bit_cast<uint32_t>(static_cast<float>(v));
        got[i] = std::bit_cast<uint32_t>(static_cast<float>(to));
        error += std::pow(double{std::bit_cast<float>(values[i])} - double{std::bit_cast<float>(got[i])}, 2);
        most = std::max(most, std::fabs(v));
      }
      const auto at = [&](cpu_level l) {
        lloyd_sums sums(std::bit_cast<uint32_t>(static_cast<float>(most)), 4.6 * scale);
        lloyd_check.at(l)(values.data(), got.data(), n, sums);
        return sums;
      };
      const lloyd_sums expected = at(cpu_level::scalar);
      CHECK(std::fabs(expected.error / expected.scale / expected.scale - error) <= 1e-4 * error);
      each_fast_level([&](cpu_level l) {
        const lloyd_sums found = at(l);
        CHECK(found.error == expected.error);
        CHECK(found.sum == expected.sum);
        CHECK(found.squares == expected.squares);
      });
    }
}

TEST_CASE("huffman: lengths are a complete code, as short as by the textbook, or at most 11") {
  source s;
  for (int round = 0; round < 2000; ++round) {
    const unsigned n = 2 + static_cast<unsigned>(s.below(63));
    uint32_t counts[level_huffman_alphabet] = {};
    double skew = s.unit() * 0.9;
    double weight = 1e9;
    for (unsigned i = 0; i < n; ++i, weight *= skew)
      counts[i] = s.below(5) ? static_cast<uint32_t>(weight) : static_cast<uint32_t>(s.below(1000));
    uint8_t lengths_of[level_huffman_alphabet] = {};
    huffman_code_lengths<level_huffman_alphabet>(counts, n, level_huffman_bits_max, lengths_of);
    level_huffman_code code;
    REQUIRE(code.set(lengths_of, n));
    uint64_t cost = 0, used = 0;
    std::vector<uint64_t> heap;
    for (unsigned i = 0; i < n; ++i) {
      cost += uint64_t{counts[i]} * lengths_of[i];
      used += counts[i] > 0;
      if (counts[i]) CHECK(lengths_of[i] > 0);
      CHECK(lengths_of[i] <= level_huffman_bits_max);
      if (counts[i]) heap.push_back(counts[i]);
    }
    if (used < 2) continue;
    const uint64_t rarest = *std::min_element(heap.begin(), heap.end()),
                   total = std::accumulate(heap.begin(), heap.end(), uint64_t{0});
    uint64_t least = 0;
    while (heap.size() > 1) {
      std::sort(heap.begin(), heap.end(), std::greater());
      const uint64_t sum = heap.back() + heap[heap.size() - 2];
      heap.pop_back();
      heap.back() = sum;
      least += sum;
    }
    CHECK(cost >= least);
    CHECK(cost <= least + least / 8);
    // A code of 12 bits wants a total of the 14th Fibonacci number times the least count.
    if (total < 377 * rarest) CHECK(cost == least);
  }
}

TEST_CASE("huffman: every level writes what scalar writes and reads it back; damaged bytes get scalar's verdict") {
  source s;
  size_t refused = 0, taken = 0;
  for (const size_t n : {1, 31, 32, 33, 511, 512, 513, 1000, 2047, 2048, 2049, 4095, 4096})
    for (const unsigned count : {2u, 3u, 5u, 16u, 64u})
      for (const double skew : {0.05, 0.3, 0.6, 0.95}) {
        CAPTURE(n);
        CAPTURE(count);
        CAPTURE(skew);
        std::vector<uint8_t> levels(n);
        uint32_t counts[level_huffman_alphabet] = {};
        for (unsigned i = 0; i < count; ++i) counts[i] = 1;
        for (auto& l : levels) {
          unsigned level = 0;
          while (level + 1 < count && s.unit() < skew) ++level;
          ++counts[l = static_cast<uint8_t>(level)];
        }
        uint8_t lengths_of[level_huffman_alphabet];
        huffman_code_lengths<level_huffman_alphabet>(counts, count, level_huffman_bits_max, lengths_of);
        level_huffman_code code;
        REQUIRE(code.set(lengths_of, count));
        level_huffman_table tables[2];
        tables[0].set(code, 1);
        tables[1].set(code, 1000000);
        CHECK(tables[1].bits == level_huffman_bits_max);
        const auto written = [&](cpu_level l) {
          std::vector<uint8_t> body(level_huffman_body_bound(n) + level_slack);
          body.resize(
              static_cast<size_t>(level_huffman_encode.at(l)(levels.data(), n, code, body.data()) - body.data()));
          return body;
        };
        const auto read = [&](cpu_level l, std::vector<uint8_t> body, bool wide, std::vector<uint8_t>& back) {
          const size_t size = body.size();
          body.resize(level_body_max + level_slack);
          std::vector<uint8_t> apart(level_huffman_strings_max * level_huffman_stride);
          if (!size || level_huffman_decode.at(l)(body.data(), size, n, tables[wide], apart.data()) != size)
            return false;
          back.clear();
          for (size_t i = 0; i < n; ++i)
            back.push_back(apart[i / level_huffman_string * level_huffman_stride + i % level_huffman_string]);
          return true;
        };
        const auto expected = written(cpu_level::scalar);
        std::vector<uint8_t> back;
        for (const bool wide : {false, true}) {
          CHECK(read(cpu_level::scalar, expected, wide, back));
          CHECK(back == levels);
        }
        each_fast_level([&](cpu_level l) {
          const bool same = written(l) == expected;
          CHECK(same);
          CHECK(read(l, expected, true, back));
          CHECK(back == levels);
        });
        for (int round = 0; round < 6; ++round) {
          auto bad = expected;
          if (round < 3) bad[s.below(bad.size())] ^= static_cast<uint8_t>(1u << s.below(8));
          if (round == 3) bad.pop_back();
          if (round == 4) bad.push_back(0);
          if (round == 5)
            for (auto& b : bad) b = static_cast<uint8_t>(s.below(256));
          std::vector<uint8_t> one, other;
          const bool verdict = read(cpu_level::scalar, bad, false, one);
          ++(verdict ? taken : refused);
          for (const cpu_level l : cpu_levels)
            if (l <= cpu_detected()) {
              CHECK(read(l, bad, true, other) == verdict);
              if (verdict) CHECK(one == other);
            }
        }
      }
  CHECK(refused > 100);
  CHECK(taken > 10);
}

TEST_CASE("magnitudes have the same range at every level") {
  source s;
  for (const size_t n : lengths) {
    auto values = values_of(s, n, 1);
    values[s.below(n)] = 0x80000000;
    values[s.below(n)] = 0xff7fffff;
    each_fast_level([&](cpu_level l) {
      CHECK(range_of.at(l)(values.data(), n).least == range_of.scalar(values.data(), n).least);
      CHECK(range_of.at(l)(values.data(), n).largest == range_of.scalar(values.data(), n).largest);
    });
  }
}

}  // namespace
}  // namespace dr
