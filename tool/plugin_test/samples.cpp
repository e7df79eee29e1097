#include "samples.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>

namespace dr::cases {
namespace {

std::optional<uint64_t> given_seed;

}  // namespace

void set_seed(uint64_t seed) { given_seed = seed; }

uint64_t seed() {
  if (given_seed) return *given_seed;
  static const uint64_t chosen = [] {
    const char* const given = std::getenv("DEEPREDUCE_TEST_SEED");
    const uint64_t s = given ? std::strtoull(given, nullptr, 0) : 20211;
    std::fprintf(stderr, "DEEPREDUCE_TEST_SEED=%llu\n", static_cast<unsigned long long>(s));
    return s;
  }();
  return chosen;
}

random_source::random_source(std::string_view purpose) : bits_(seed()) {
  for (const char c : purpose) bits_.seed(bits_() ^ static_cast<uint8_t>(c));
}

std::vector<uint32_t> random_source::subset(uint64_t universe, uint64_t count) {
  std::set<uint32_t> chosen;  // Floyd
  for (uint64_t top = universe - count; top < universe; ++top) {
    const auto pick = static_cast<uint32_t>(below(top + 1));
    if (!chosen.insert(pick).second) chosen.insert(static_cast<uint32_t>(top));
  }
  return {chosen.begin(), chosen.end()};
}

std::vector<uint32_t> random_source::permutation(uint32_t n) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (uint32_t i = n; i > 1; --i) std::swap(order[i - 1], order[below(i)]);
  return order;
}

// ---- Numbers ---------------------------------------------------------------------------------------------

number_format format_of(uint32_t dtype) {
  if (dtype == DR_F32) return {23, -126, 4};
  if (dtype == DR_F16) return {10, -14, 2};
  return {7, -126, 2};
}

unsigned word_size(uint32_t dtype) {
  if (dtype == DR_F32 || dtype == DR_U32) return 4;
  return dtype == DR_F64 ? 8 : dtype == DR_U8 ? 1 : 2;
}

double number_of(uint32_t dtype, uint32_t bits) {
  const number_format f = format_of(dtype);
  const uint32_t magnitude = bits & (f.sign() - 1), one = uint32_t{1} << f.mantissa_bits;
  const int exponent = static_cast<int>(magnitude >> f.mantissa_bits);
  const double mantissa = magnitude % one;
  const double v = magnitude > f.infinity()    ? NAN
                   : magnitude == f.infinity() ? HUGE_VAL
                   : exponent ? std::ldexp(one + mantissa, exponent - 1 + f.exponent_min - f.mantissa_bits)
                              : std::ldexp(mantissa, f.exponent_min - f.mantissa_bits);
  return bits & f.sign() ? -v : v;
}

uint32_t bits_of(uint32_t dtype, double finite) {
  const number_format f = format_of(dtype);
  const uint32_t sign = std::signbit(finite) ? f.sign() : 0;
  const double v = std::fabs(finite);
  if (v >= number_of(dtype, f.largest())) return sign | f.largest();
  const int exponent = v == 0 ? f.exponent_min : std::max(std::ilogb(v), f.exponent_min);
  const auto mantissa = static_cast<uint32_t>(std::ldexp(v, f.mantissa_bits - exponent));
  return sign + (static_cast<uint32_t>(exponent - f.exponent_min) << f.mantissa_bits) + mantissa;
}

uint32_t element(std::span<const uint8_t> list, unsigned bytes, uint64_t i) {
  uint32_t x = 0;
  std::memcpy(&x, list.data() + bytes * i, bytes);
  return x;
}

std::vector<double> numbers(uint32_t dtype, std::span<const uint8_t> list) {
  const unsigned bytes = format_of(dtype).bytes;
  std::vector<double> out(list.size() / bytes);
  for (size_t i = 0; i < out.size(); ++i) out[i] = number_of(dtype, element(list, bytes, i));
  return out;
}

std::vector<uint32_t> words(std::span<const uint8_t> list) {
  std::vector<uint32_t> out(list.size() / 4);
  for (size_t i = 0; i < out.size(); ++i) out[i] = element(list, 4, i);
  return out;
}

std::vector<uint8_t> bytes_of(std::span<const uint32_t> list, unsigned bytes) {
  std::vector<uint8_t> out(bytes * list.size());
  for (size_t i = 0; i < list.size(); ++i) std::memcpy(out.data() + bytes * i, &list[i], bytes);
  return out;
}

double squared_error(std::span<const double> a, std::span<const double> b) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += a[i] * a[i];
  }
  return error == 0 ? 0 : error / norm;
}

// ---- Supports --------------------------------------------------------------------------------------------

input support(std::string name, uint64_t universe, std::span<const uint32_t> indices) {
  return {std::move(name) + " (" + std::to_string(indices.size()) + " of " + std::to_string(universe) + ")",
          universe,
          indices.size(),
          DR_U32,
          1,
          bytes_of(indices)};
}

std::vector<input> supports(std::string_view purpose, uint64_t universe_max) {
  random_source random(purpose);
  std::vector<input> out;
  const auto add = [&](const char* name, uint64_t universe, const std::vector<uint32_t>& indices) {
    if (universe <= universe_max) out.push_back(support(name, universe, indices));
  };
  const auto run = [](uint32_t first, uint32_t n) {
    std::vector<uint32_t> indices(n);
    std::iota(indices.begin(), indices.end(), first);
    return indices;
  };

  for (const uint64_t universe : {1, 7, 64, 513, 4097}) add("all", universe, run(0, static_cast<uint32_t>(universe)));
  for (const uint32_t only : {0, 1, 62, 63}) add("one", 64, {only});
  add("first and last", 64, {0, 63});
  add("a run in the middle", 1000, run(480, 40));
  add("a run at the end", 40000, run(36000, 4000));
  std::vector<uint32_t> even(63);
  for (uint32_t i = 0; i < even.size(); ++i) even[i] = 3 + 17 * i;
  add("evenly spaced", 1100, even);

  // Where the number of bytes of the universe or of a gap changes.
  for (const unsigned power : {8, 12, 16, 24, 31})
    for (const int step : {-1, 0, 1}) {
      const uint64_t universe = (uint64_t{1} << power) + static_cast<uint64_t>(step);
      const auto top = static_cast<uint32_t>(universe - 1);
      add("last", universe, {top});
      add("both ends", universe, {0, top / 2, top - 1, top});
    }
  add("the largest index", largest_universe, {0xfffffffe});
  add("the largest gap", largest_universe, {0, 0xfffffffe});
  add("gaps of 2^31", largest_universe, {0, 0x7fffffff, 0xfffffffe});
  std::vector<uint32_t> far = run(0, 40);
  far.push_back(0xfffffffe);
  add("a run, then the largest gap", largest_universe, far);

  std::vector<uint32_t> clusters;
  for (uint32_t at = 5; clusters.size() < 3000; at += 1 + static_cast<uint32_t>(random.below(700)))
    for (uint64_t n = random.below(50); n-- > 0;) clusters.push_back(at++);
  add("clusters", clusters.back() + 1, clusters);

  for (const uint64_t count : {2, 33, 64}) add("uniform", 2048, random.subset(2048, count));
  for (const uint64_t count : {511, 512, 513, 1025, 4095, 4096, 4097, 8193}) {
    add("uniform", 40000, random.subset(40000, count));
    add("uniform, sparse", 4000000, random.subset(4000000, count));
    add("uniform, all but a few", count + 3, random.subset(count + 3, count));
  }
  add("uniform, as sparse as can be", largest_universe, random.subset(largest_universe, 1000));
  if (universe_max >= 36864) {
    out.push_back(support("", 36864, random.subset(36864, 368)));
    out.back().name = figure_8;
  }
  return out;
}

// ---- Values ----------------------------------------------------------------------------------------------

namespace {

input bit_values(std::string name, uint32_t dtype, uint32_t width, uint64_t count,
                 const std::function<uint32_t(uint64_t)>& bits) {
  std::vector<uint32_t> list(count * width);
  for (uint64_t i = 0; i < list.size(); ++i) list[i] = bits(i);
  static constexpr const char* types[] = {"", "f32", "f16", "bf16"};
  std::string full =
      std::move(name) + ", " + types[dtype] + " " + std::to_string(count) + " x " + std::to_string(width);
  return {std::move(full), 100 * count, count, dtype, width, bytes_of(list, format_of(dtype).bytes)};
}

}  // namespace

input values(std::string name, uint32_t dtype, uint32_t width, uint64_t count,
             const std::function<double(uint64_t)>& number) {
  return bit_values(std::move(name), dtype, width, count, [&](uint64_t i) { return bits_of(dtype, number(i)); });
}

std::vector<input> all_values(std::string_view purpose, bool finite, std::initializer_list<uint32_t> widths) {
  const double kept = std::log(100.0);  // |v| of the 99th percentile
  random_source random(purpose);
  std::vector<input> out;
  for (const uint32_t dtype : {DR_F32, DR_F16, DR_BF16})
    for (const uint32_t width : widths) {
      const number_format f = format_of(dtype);
      const auto add = [&](const char* name, uint64_t count, auto&& number) {
        out.push_back(values(name, dtype, width, count, number));
      };
      const auto bits = [&](const char* name, uint64_t count, auto&& of) {
        out.push_back(bit_values(name, dtype, width, count, of));
      };
      const auto laplace = [&](uint64_t) { return 0.01 * random.laplace(); };
      const auto signed_by = [&](uint64_t i) { return i % 3 ? f.sign() : 0; };

      add("one", 1, [](uint64_t) { return -1.5; });
      bits("zeros", 33, [](uint64_t) { return 0u; });
      bits("zeros of both signs", 33, signed_by);
      bits("subnormals", 40, [&](uint64_t i) { return signed_by(i) | static_cast<uint32_t>(i); });
      bits("the largest of both signs", 40, [&](uint64_t i) { return signed_by(i) | f.largest(); });
      bits("every magnitude there is", 64,
           [&](uint64_t i) { return signed_by(i) | static_cast<uint32_t>(i % 64 * (f.largest() / 63)); });
      add("a constant", 64, [](uint64_t) { return 0.375; });
      add("two values", 64, [](uint64_t i) { return i % 5 ? 0.25 : -4; });
      add("powers of two", 50, [](uint64_t i) { return std::ldexp(i % 2 ? 1 : -1, static_cast<int>(i) / 2 - 14); });
      add("positive", 64, [&](uint64_t) { return random.unit(); });
      add("negative", 64, [&](uint64_t) { return -random.unit(); });
      add("ascending", 64, [](uint64_t i) { return 0.125 * (static_cast<double>(i) - 20); });
      for (const uint64_t count : {2, 31, 64, 155, 310, 368, 511, 512, 513, 5000}) add("laplace", count, laplace);
      // A sparsifier's selection of Laplace values: beyond a threshold the tail has the same shape.
      const auto tail = [&](uint64_t) {
        return random.below(2) ? kept + std::fabs(random.laplace()) : -kept - std::fabs(random.laplace());
      };
      for (const uint64_t count : {368, 3000}) add("largest of laplace", count, tail);
      // Smooth in the rank; all of one sign, so that the pieces of one side are polynomials of equal degree.
      add("polynomial of degree 5", 400, [](uint64_t i) {
        const double x = 1 - static_cast<double>(i) / 400;
        return 3 + 4 * x + std::pow(x, 5);
      });
      if (finite) continue;
      bits("NaNs and infinities", 64,
           [&](uint64_t i) { return signed_by(i) | (f.infinity() + static_cast<uint32_t>(i / 4 * i)) % f.sign(); });
    }
  return out;
}

std::vector<input> all_words(std::string_view purpose, std::initializer_list<uint32_t> widths) {
  random_source random(purpose);
  std::vector<input> out;
  for (const auto& word_type : {std::pair{DR_F64, "f64"}, {DR_U8, "u8"}, {DR_U16, "u16"}, {DR_U32, "u32"}})
    for (const uint32_t width : widths) {
      // (clang 14 captures no structured bindings.)
      const dr_dtype dtype = word_type.first;
      const char* const type = word_type.second;
      const unsigned size = word_size(dtype);
      const auto add = [&](const char* name, uint64_t count, auto&& word) {
        std::vector<uint8_t> list(count * width * size);
        for (uint64_t i = 0; i < count * width; ++i) {
          const uint64_t w = word(i);
          std::memcpy(list.data() + i * size, &w, size);
        }
        out.push_back({name + std::string(", ") + type + " " + std::to_string(count) + " x " + std::to_string(width),
                       100 * count, count, dtype, width, std::move(list)});
      };
      const auto any = [&](uint64_t) { return random.below(UINT64_MAX); };
      const auto number = [&](uint64_t) {
        const double x = 0.01 * random.laplace();
        uint64_t bits;
        std::memcpy(&bits, &x, 8);
        return bits >> (64 - 8 * size);
      };
      add("one", 1, any);
      add("zeros", 33, [](uint64_t) { return uint64_t{0}; });
      add("ones", 33, [](uint64_t) { return ~uint64_t{0}; });
      add("counting", 300, [](uint64_t i) { return i; });
      for (const uint64_t count : {2, 64, 511, 2047, 2048, 5000}) add("any", count, any);
      for (const uint64_t count : {64, 513, 5000}) add("numbers", count, number);
    }
  return out;
}

// ---- Orders and bytes ------------------------------------------------------------------------------------

std::vector<input> permutations() {
  random_source random("permutations");
  std::vector<input> out;
  const auto add = [&](std::string name, const std::vector<uint32_t>& order) {
    out.push_back({std::move(name) + " of " + std::to_string(order.size()), order.size(), order.size(), DR_U32, 1,
                   bytes_of(order)});
  };
  for (const uint32_t n : {1, 2, 3, 4, 5, 8, 9, 63, 64, 65, 255, 256, 257, 5000}) {
    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    add("identity", order);
    std::reverse(order.begin(), order.end());
    add("reverse", order);
    add("random", random.permutation(n));
  }
  return out;
}

std::vector<input> byte_strings() {
  random_source random("bytes");
  std::vector<input> out;
  const auto add = [&](std::string name, size_t size, auto&& byte) {
    std::vector<uint8_t> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(byte(i));
    out.push_back({std::move(name) + ", " + std::to_string(size), 0, 0, 0, 1, std::move(bytes)});
  };
  for (const size_t size : {0, 1, 2, 40, 64, 33000, 100000}) {
    add("zero bytes", size, [](size_t) { return 0; });
    add("random bytes", size, [&](size_t) { return random.below(256); });
    add("bytes of four values", size, [&](size_t) { return random.below(4); });
    add("counting bytes", size, [](size_t i) { return i / 3; });
  }
  return out;
}

}  // namespace dr::cases
