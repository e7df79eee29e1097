// Primitives against plain code, published vectors and proofs.
#include <doctest/doctest.h>

#include <cmath>
#include <iterator>
#include <vector>

#include "codecs/family/golomb/golomb.hpp"
#include "primitive/check.hpp"
#include "primitive/half.hpp"
#include "primitive/hash.hpp"
#include "primitive/rng.hpp"
#include "primitive/sum_tree.hpp"

TEST_CASE("murmur3 and splitmix64 give their published values") {
  // MurmurHash3_x86_32 of "test" (its bytes as a little-endian word).
  CHECK(dr::murmur3_32(0x74736574, 0x9747b28c) == 0x704b81dc);
  CHECK(dr::murmur3_32(0x74736574, 0) == 0xba6bd213);
  // splitmix64 from state 0.
  CHECK(dr::draw(0, 0) == 0xe220a8397b1dcdaf);
  CHECK(dr::draw(0, 1) == 0x6e789e6aa1b965f4);
}

TEST_CASE("log2_q16_above is above log2 by less than a tenth") {
  for (uint64_t a = 1; a < uint64_t{1} << 32; a = a * 5 / 3 + 1)
    for (uint64_t b = 1; b <= a; b = b * 7 / 4 + 1) {
      const double exact = std::log2(static_cast<double>(a) / static_cast<double>(b)),
                   bound = static_cast<double>(dr::log2_q16_above(a, b)) / 65536;
      CHECK(bound >= exact);
      CHECK(bound < exact + 0.1);
    }
}

TEST_CASE("the bound of split Golomb and Rice holds for every mean gap") {
  // Bits of an index at most, less log2 of the mean gap: k + extra + one + unary, for spans of blocks of 4096.
  double golomb = 0, rice = 0;
  for (uint64_t span = 4096; span < uint64_t{1} << 31; span += span / 997 + 1) {
    const auto cost = [&](uint64_t m) {
      const double a = static_cast<double>(span) / 4096;
      return dr::ceil_log2(m) + 1 + std::floor(static_cast<double>(span - 4096) / static_cast<double>(m)) / 4096 -
             std::log2(a);
    };
    golomb = std::max(golomb, cost(dr::golomb_divisor(span, 4096)));
    rice = std::max(rice, cost(dr::rice_divisor(span, 4096)));
  }
  CHECK(golomb < 2.92);
  CHECK(golomb > 2.9);  // and it is tight
  CHECK(rice < 2.92);
}

TEST_CASE("every side of golomb_bound's hull is above what a block of any mean gap takes") {
  constexpr uint64_t n = 4096;
  double closest[std::size(dr::golomb_hull)];
  std::fill(std::begin(closest), std::end(closest), 1.0);
  bool above = true;
  // The last span of each divisor is the dearest; of long gaps some will do, for the sides rise by a constant and bits as the logarithm.
  const auto check_span = [&](uint64_t span) {
    for (const uint64_t m : {dr::golomb_divisor(span, n), dr::rice_divisor(span, n)}) {
      const uint64_t bits = n * ((m > 1 ? dr::ceil_log2(m) : 0) + 1) + (span - n) / m;
      for (size_t i = 0; i < std::size(dr::golomb_hull); ++i) {
        const double side =
            (static_cast<double>(n * dr::golomb_hull[i].p) + static_cast<double>(span * dr::golomb_hull[i].q)) / 65536;
        above &= static_cast<double>(bits) <= side;
        closest[i] = std::min(closest[i], (side - static_cast<double>(bits)) / n);
      }
    }
  };
  for (uint64_t span = n; span < 256 * n; ++span) check_span(span);
  for (uint64_t span = 256 * n; span < uint64_t{1} << 32; span += span / 9973 + 1) check_span(span);
  CHECK(above);
  for (const double c : closest) CHECK(c < 0.01);  // and each is as low as it can be
}

TEST_CASE("a quotient by multiplication is the quotient") {
  for (uint64_t m = 1; m < uint64_t{1} << 32; m = m * 9 / 8 + 1) {
    const dr::golomb_code code = dr::golomb_code::of(m);
    for (uint64_t q = 0; q * m < uint64_t{1} << 32; q = q * 11 / 8 + 1)
      for (const uint64_t gap : {q * m, q * m + m - 1, q * m + m / 2, uint64_t{0xffffffff}})
        if (gap >> 32 == 0) CHECK(code.quotient(gap) == gap / m);
  }
}

TEST_CASE("rounding to f16 and bf16 is to nearest, ties to even, once") {
  // Every finite number of the small type, and the two midpoints beside it, through the definition.
  const auto check = [](auto to, auto from, int count) {
    for (int i = 0; i + 1 < count; ++i) {
      const double low = static_cast<double>(from(static_cast<uint16_t>(i))),
                   high = static_cast<double>(from(static_cast<uint16_t>(i + 1)));
      const double middle = low + (high - low) / 2, below = std::nextafter(middle, low),
                   above = std::nextafter(middle, high);
      CHECK(to(low) == i);
      CHECK(to(below) == i);
      CHECK(to(above) == i + 1);
      CHECK(to(middle) == (i % 2 == 0 ? i : i + 1));
      CHECK(to(-above) == (0x8000 | (i + 1)));
    }
  };
  check(dr::f64_to_f16, dr::f16_to_f32, 0x7c00);
  check(dr::f64_to_bf16, dr::bf16_to_f32, 0x7f80);
  CHECK(dr::f64_to_f16(65519.999) == 0x7bff);
  CHECK(dr::f64_to_f16(65520) == 0x7c00);
  CHECK(dr::f64_to_f16(INFINITY) == 0x7c00);
  CHECK((dr::f64_to_f16(NAN) & 0x7fff) > 0x7c00);
}

TEST_CASE("the sum tree adds in its stated order") {
  for (const size_t n : {0u, 1u, 2u, 3u, 511u, 512u, 513u, 1024u, 1025u, 5000u}) {
    std::vector<double> a(n);
    for (size_t i = 0; i < n; ++i) a[i] = dr::unit_interval(dr::draw(3, i)) * std::pow(10, static_cast<double>(i % 13));
    double total = 0;
    for (size_t begin = 0; begin < n; begin += 1024) {
      double tile[1024] = {};
      for (size_t i = begin; i < std::min(n, begin + 1024); ++i) tile[i - begin] = a[i];
      for (size_t h = 512; h; h /= 2)
        for (size_t i = 0; i < h; ++i) tile[i] += tile[i + h];
      total += tile[0];
    }
    CHECK(dr::tree_sum(n, [&](uint64_t i) { return a[i]; }) == total);
  }
}

TEST_CASE("the check sees every change of one word, and does not see where its hole is") {
  std::vector<uint8_t> bytes(4 * 1500);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(dr::draw(1, i));
  const uint64_t whole = dr::check(bytes.data(), bytes.size()),
                 holed = dr::check_with_hole(bytes.data(), bytes.size(), 4);
  for (size_t at = 0; at < bytes.size(); at += 4) {
    const auto word = dr::load<uint32_t>(&bytes[at]);
    for (const uint32_t change : {1u, 0x80000000u, 0xffffffffu, static_cast<uint32_t>(dr::draw(2, at) | 1)}) {
      dr::store(&bytes[at], word ^ change);
      CHECK(dr::check(bytes.data(), bytes.size()) != whole);
      CHECK((dr::check_with_hole(bytes.data(), bytes.size(), 4) == holed) == (at == 4 || at == 8));
    }
    dr::store(&bytes[at], word);
  }
  CHECK(dr::check(nullptr, 0) == 0);
}

TEST_CASE("a bit string comes back, and reads zeros past its end") {
  std::vector<uint8_t> bytes(4000);
  dr::bit_writer out(bytes.data());
  for (unsigned i = 0; i < 500; ++i) out.put(dr::draw(5, i) & dr::low_mask(i % 33), i % 33);
  const auto size = static_cast<uint64_t>(out.finish() - bytes.data());
  bytes.resize(size);
  dr::bit_reader in(bytes.data(), 8 * size);
  for (unsigned i = 0; i < 500; ++i) CHECK(in.get(i % 33) == (dr::draw(5, i) & dr::low_mask(i % 33)));
  in.get(8);
  CHECK(in.get(32) == 0);
}
