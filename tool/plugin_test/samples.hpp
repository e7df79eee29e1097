// Difficult inputs for codecs, and plain arithmetic to write and check them: for the cases of the built-in codecs
// (tests/cases) and for `deepreduce test-plugin`. Needs only codec.h and the standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepreduce/codec.h"

namespace dr::cases {

// One stream of one tensor, as passed to an encoder.
struct input {
  std::string name;
  uint64_t universe = 0, count = 0;  // of a bytes stage: both 0
  uint32_t dtype = 0, width = 1;     // of values
  std::vector<uint8_t> elements;     // u32 indices or positions, values, or bytes
  // The base (DR_NEEDS_BASE): `universe` words of `dtype`; for a value codec those at the support.
  std::vector<uint8_t> base = {};
  // The history (DR_NEEDS_HISTORY): one byte per word; empty: none.
  std::vector<uint8_t> history = {};
};

// The seed of all random inputs: the last set_seed, else DEEPREDUCE_TEST_SEED, else a fixed one; printed on first use.
uint64_t seed();
void set_seed(uint64_t seed);

// Same seed, same numbers, on every machine (the distributions of <random> differ between libraries).
class random_source {
 public:
  explicit random_source(std::string_view purpose);  // a purpose has its own numbers

  uint64_t below(uint64_t n) { return bits_() % n; }
  double unit() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }
  double laplace() {
    const double u = unit() - 0.5;
    return (u < 0 ? 1 : -1) * std::log(1 - 2 * std::fabs(u));
  }
  std::vector<uint32_t> subset(uint64_t universe, uint64_t count);  // ascending, uniform
  std::vector<uint32_t> permutation(uint32_t n);

 private:
  std::mt19937_64 bits_;
};

// ---- Numbers of the three types, by their definition -------------------------------------------------------

struct number_format {
  int mantissa_bits, exponent_min;
  unsigned bytes;
  uint32_t infinity() const { return static_cast<uint32_t>(2 * (1 - exponent_min) + 1) << mantissa_bits; }
  uint32_t largest() const { return infinity() - 1; }
  uint32_t sign() const { return uint32_t{1} << (8 * bytes - 1); }
};
number_format format_of(uint32_t dtype);
// Bytes of a value, or of a word of a patch.
unsigned word_size(uint32_t dtype);

double number_of(uint32_t dtype, uint32_t bits);
uint32_t bits_of(uint32_t dtype, double finite);  // rounded towards zero; saturates

// Element i of a list of u32 or values.
uint32_t element(std::span<const uint8_t> list, unsigned bytes, uint64_t i);
std::vector<double> numbers(uint32_t dtype, std::span<const uint8_t> list);
std::vector<uint32_t> words(std::span<const uint8_t> list);
std::vector<uint8_t> bytes_of(std::span<const uint32_t> list, unsigned bytes = 4);

// ‖a − b‖² / ‖a‖², 0/0 = 0.
double squared_error(std::span<const double> a, std::span<const double> b);

// ---- Inputs ----------------------------------------------------------------------------------------------

inline constexpr uint64_t largest_universe = 0xffffffff;
inline constexpr const char* figure_8 = "figure 8: 368 of 36864";  // the tensor that the paper measures

input support(std::string name, uint64_t universe, std::span<const uint32_t> indices);
// Supports of every shape in universes of limited size.
std::vector<input> supports(std::string_view purpose, uint64_t universe_max = largest_universe);

input values(std::string name, uint32_t dtype, uint32_t width, uint64_t count,
             const std::function<double(uint64_t)>& number);
// Values of all three types, with NaN and infinities unless only finite ones are accepted.
std::vector<input> all_values(std::string_view purpose, bool finite, std::initializer_list<uint32_t> widths);

// Raw words of the types for patches.
std::vector<input> all_words(std::string_view purpose, std::initializer_list<uint32_t> widths);

std::vector<input> permutations();
std::vector<input> byte_strings();

}  // namespace dr::cases
