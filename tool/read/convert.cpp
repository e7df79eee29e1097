#include "convert.hpp"

#include <fmt/core.h>
#include <cmath>
#include <limits>
#include <type_traits>

#include "number.hpp"

namespace dr::compare {

namespace {

struct facts {
  unsigned width;
  const char* name;
  std::optional<dtype> type;
};

const facts& facts_of(stored kind) {
  static constexpr facts all[] = {
      {2, "float16", dtype::f16},
      {2, "bfloat16", dtype::bf16},
      {4, "float32", dtype::f32},
      {8, "float64", dtype::f32},
      {1, "bool", {}},
      {1, "int8", {}},
      {1, "uint8", {}},
      {2, "int16", {}},
      {2, "uint16", {}},
      {4, "int32", {}},
      {4, "uint32", {}},
      {8, "int64", {}},
      {8, "uint64", {}},
  };
  return all[static_cast<size_t>(kind)];
}

// v rounded to nearest even in a format of 16 bits with `precision` significant bits, the hidden one counted, whose
// least normal number is 2^least. Too large becomes infinity, too small a subnormal or 0.
template <int precision, int min_exponent>
uint16_t round_to_16_bits(double v) {
  constexpr uint32_t infinity = 0x7fff >> (precision - 1) << (precision - 1);
  const uint32_t sign = std::signbit(v) ? 0x8000 : 0;
  if (std::isnan(v)) return static_cast<uint16_t>(sign | infinity | 1u << (precision - 2));
  const double magnitude = std::fabs(v);
  if (magnitude == 0 || std::isinf(magnitude)) return static_cast<uint16_t>(sign | (magnitude == 0 ? 0 : infinity));
  const int exponent = std::max(std::ilogb(magnitude), min_exponent);
  if (exponent > 127) return static_cast<uint16_t>(sign | infinity);
  // A carry out of the significand is the next exponent.
  const auto significand = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, precision - 1 - exponent)));
  const uint32_t bits = significand + (static_cast<uint32_t>(exponent - min_exponent) << (precision - 1));
  return static_cast<uint16_t>(sign | std::min(bits, infinity));
}

template <dtype to>
struct target;
template <>
struct target<dtype::f32> {
  using bits = float;
  template <class S>
  static float round(S v) {
    // Without IEC 559 a double beyond the range of float would be undefined here instead of infinite.
    static_assert(std::numeric_limits<float>::is_iec559 && std::numeric_limits<double>::is_iec559);
    return static_cast<float>(v);
  }
};
template <>
struct target<dtype::f16> {
  using bits = uint16_t;
  static uint16_t round(double v) { return round_to_16_bits<11, -14>(v); }
};
template <>
struct target<dtype::bf16> {
  using bits = uint16_t;
  static uint16_t round(double v) { return round_to_16_bits<8, -126>(v); }
};

// A whole number as one of the two doubles beside it, that with an odd last bit: rounded again, to less, it is rounded
// once.
template <class I>
double odd_double(I v) {
  __extension__ using wide = __int128;
  const auto d = static_cast<double>(v);
  const auto bits = std::bit_cast<uint64_t>(d);
  const wide back = static_cast<wide>(d);
  if (back == wide{v} || (bits & 1) != 0) return d;
  const bool beyond = v < 0 ? back < wide{v} : back > wide{v};
  return std::bit_cast<double>(beyond ? bits - 1 : bits + 1);
}

template <stored kind>
auto load(std::span<const std::byte> bytes, uint64_t i) {
  const auto as = [&]<class T>(T) { return load_le<T>(bytes, i * sizeof(T)); };
  if constexpr (kind == stored::f16) return f16_value(as(uint16_t{}));
  if constexpr (kind == stored::bf16) return static_cast<double>(std::bit_cast<float>(uint32_t{as(uint16_t{})} << 16));
  if constexpr (kind == stored::f32) return static_cast<double>(as(float{}));
  if constexpr (kind == stored::f64) return as(double{});
  if constexpr (kind == stored::boolean) return as(uint8_t{}) != 0 ? 1.0 : 0.0;
  if constexpr (kind == stored::i8) return static_cast<double>(as(int8_t{}));
  if constexpr (kind == stored::u8) return static_cast<double>(as(uint8_t{}));
  if constexpr (kind == stored::i16) return static_cast<double>(as(int16_t{}));
  if constexpr (kind == stored::u16) return static_cast<double>(as(uint16_t{}));
  if constexpr (kind == stored::i32) return static_cast<double>(as(int32_t{}));
  if constexpr (kind == stored::u32) return static_cast<double>(as(uint32_t{}));
  if constexpr (kind == stored::i64) return as(int64_t{});
  if constexpr (kind == stored::u64) return as(uint64_t{});
}

template <stored kind, dtype to>
tensor_bytes convert_as(std::span<const std::byte> bytes, conversion& c) {
  using bits = typename target<to>::bits;
  const uint64_t n = bytes.size() / width_of(kind);
  tensor_bytes result(n * sizeof(bits));
  const std::span<std::byte> out = result.writable();
  for (uint64_t i = 0; i < n; ++i) {
    const auto x = load<kind>(bytes, i);
    bits rounded;
    if constexpr (to != dtype::f32 && std::is_integral_v<decltype(x)>)
      rounded = target<to>::round(odd_double(x));
    else
      rounded = target<to>::round(x);
    store_le(out, i * sizeof(bits), rounded);
    // 64 bits of significand hold every integer that a file stores, where the machine has them.
    using wide = std::conditional_t<std::is_integral_v<decltype(x)>, long double, double>;
    const auto before = static_cast<wide>(x);
    wide after = 0;
    if constexpr (to == dtype::f32)
      after = rounded;
    else
      after = value_of(to, rounded);
    if (before == after || std::isnan(before) || std::isinf(before)) continue;
    if (std::isinf(after))
      ++c.infinite;
    else if (after == 0)
      ++c.vanished;
    else
      c.largest_change = std::max(c.largest_change, static_cast<double>(std::abs((before - after) / before)));
  }
  return result;
}

template <stored kind>
tensor_bytes convert_from(std::span<const std::byte> bytes, dtype to, conversion& c) {
  switch (to) {
    case dtype::f32: return convert_as<kind, dtype::f32>(bytes, c);
    case dtype::f16: return convert_as<kind, dtype::f16>(bytes, c);
    case dtype::bf16: return convert_as<kind, dtype::bf16>(bytes, c);
  }
  return {};
}

// f.operator()<kind>(), of the kind that is known at run time only.
template <class F>
auto with_kind(stored kind, F&& f) {
  switch (kind) {
    case stored::f16: return f.template operator()<stored::f16>();
    case stored::bf16: return f.template operator()<stored::bf16>();
    case stored::f32: return f.template operator()<stored::f32>();
    case stored::boolean: return f.template operator()<stored::boolean>();
    case stored::i8: return f.template operator()<stored::i8>();
    case stored::u8: return f.template operator()<stored::u8>();
    case stored::i16: return f.template operator()<stored::i16>();
    case stored::u16: return f.template operator()<stored::u16>();
    case stored::i32: return f.template operator()<stored::i32>();
    case stored::u32: return f.template operator()<stored::u32>();
    case stored::i64: return f.template operator()<stored::i64>();
    case stored::u64: return f.template operator()<stored::u64>();
    case stored::f64: break;
  }
  return f.template operator()<stored::f64>();
}

}  // namespace

unsigned width_of(stored kind) { return facts_of(kind).width; }
const char* long_name(stored kind) { return facts_of(kind).name; }
const char* long_name(dtype type) {
  return type == dtype::f32 ? "float32" : type == dtype::f16 ? "float16" : "bfloat16";
}
std::optional<dtype> type_of(stored kind) { return facts_of(kind).type; }

std::optional<dtype> type_called(std::string_view name) {
  for (const dtype type : {dtype::f32, dtype::f16, dtype::bf16})
    if (name == name_of(type)) return type;
  return {};
}

std::string describe(const conversion& c, dtype to) {
  std::string text = fmt::format("{}, converted to {}: ", long_name(c.from), long_name(to));
  const auto values = [](uint64_t n) { return fmt::format("{} value{}", n, n == 1 ? "" : "s"); };
  if (c.infinite > 0) text += values(c.infinite) + " too large: became infinite; ";
  if (c.vanished > 0) text += values(c.vanished) + " too small: became 0; ";
  const char* const others = c.infinite > 0 || c.vanished > 0 ? " of the others" : "";
  text += c.largest_change == 0 ? fmt::format("no relative change{}", others)
                                : fmt::format("largest relative change{} {:.1g}", others, c.largest_change);
  return text;
}

tensor_bytes convert(std::span<const std::byte> bytes, dtype to, conversion& c) {
  return with_kind(c.from, [&]<stored kind>() { return convert_from<kind>(bytes, to, c); });
}

double value_at(stored kind, std::span<const std::byte> bytes, uint64_t i) {
  return with_kind(kind, [&]<stored k>() { return static_cast<double>(load<k>(bytes, i)); });
}

}  // namespace dr::compare
