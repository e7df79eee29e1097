// Inputs that may hurt a codec, and the plain arithmetic to write and judge them: of the cases of our own codecs
// (tests/cases) and of `deepreduce test-plugin`. Needs codec.h and the standard library only.
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

// One stream of one tensor, as an encoder is handed it.
struct input {
  std::string name;
  uint64_t universe = 0, count = 0;  // of a bytes stage: both 0
  uint32_t dtype = 0, width = 1;     // of values
  std::vector<uint8_t> elements;     // u32 indices or positions, values, or bytes
  // Of a codec that reads a base (DR_NEEDS_BASE): `universe` words of `dtype`; of a value codec those at the support.
  std::vector<uint8_t> base = {};
  // Of one that reads a history (DR_NEEDS_HISTORY): a byte of each of these words; none: they have none.
  std::vector<uint8_t> history = {};
};

// Of all random inputs: what set_seed was given last; else DEEPREDUCE_TEST_SEED or a fixed one, printed when it is first
// asked for.
uint64_t seed();
void set_seed(uint64_t seed);

// Same seed, same numbers, on every machine (the distributions of <random> differ between libraries).
class random_source {
 public:
  explicit random_source(std::string_view purpose);  // each purpose has numbers of its own

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
uint32_t bits_of(uint32_t dtype, double finite);  // cut off towards zero; the largest number beyond it

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
// Supports of every shape below a universe of at most so many.
std::vector<input> supports(std::string_view purpose, uint64_t universe_max = largest_universe);

input values(std::string name, uint32_t dtype, uint32_t width, uint64_t count,
             const std::function<double(uint64_t)>& number);
// Values of all three types; NaN and infinities too unless only finite ones are taken.
std::vector<input> all_values(std::string_view purpose, bool finite, std::initializer_list<uint32_t> widths);

// Raw words of the types that only patches have.
std::vector<input> all_words(std::string_view purpose, std::initializer_list<uint32_t> widths);

std::vector<input> permutations();
std::vector<input> byte_strings();

}  // namespace dr::cases
