// primitive/exp2.hpp against the C library's long double.
#include <doctest/doctest.h>

#include <cmath>

#include "primitive/exp2.hpp"
#include "primitive/rng.hpp"

namespace dr {

TEST_CASE("portable_exp2 is within 2^-51 of the power, and exact for integers") {
  double worst = 0;
  for (uint64_t i = 0; i < 1000000; ++i) {
    const double x = (unit_interval(draw(1, i)) - 0.5) * (i % 2 ? 2 * exp2_range : 2.0);
    const long double expected = std::exp2(static_cast<long double>(x));
    worst = std::fmax(worst, static_cast<double>(std::fabs(portable_exp2(x) / expected - 1)));
  }
  CHECK(worst < 0x1p-51);
  for (int whole = -1020; whole <= 1020; ++whole) CHECK(portable_exp2(whole) == std::ldexp(1.0, whole));
}

TEST_CASE("portable_exp2 does not fall where its pieces meet") {
  for (int half = -41; half <= 41; half += 2) {
    const double x = half / 2.0;
    CHECK(portable_exp2(std::nextafter(x, -HUGE_VAL)) <= portable_exp2(x) * (1 + 0x1p-51));
    CHECK(portable_exp2(x) <= portable_exp2(std::nextafter(x, HUGE_VAL)) * (1 + 0x1p-51));
  }
}

TEST_CASE("portable_log2 is within 2^-50 and 2^-52 of itself, and exact for powers") {
  double worst = 0;
  for (uint64_t i = 0; i < 1000000; ++i) {
    const double x = std::ldexp(1 + unit_interval(draw(2, i)),
                                static_cast<int>(draw(3, i) % (i % 2 ? 2000 : 3)) - (i % 2 ? 1000 : 1));
    const long double expected = std::log2(static_cast<long double>(x));
    const long double off = std::fabs(portable_log2(x) - expected) / (0x1p-50l + 0x1p-52l * std::fabs(expected));
    worst = std::fmax(worst, static_cast<double>(off));
  }
  CHECK(worst < 1);
  for (int whole = -1022; whole <= 1023; ++whole) CHECK(portable_log2(std::ldexp(1.0, whole)) == whole);
}

}  // namespace dr
