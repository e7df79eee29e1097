// Elements as files store them, and their conversion to the types that are compared.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tensor_bytes.hpp"

namespace dr::compare {

enum class dtype { f32, f16, bf16 };

enum class stored { f16, bf16, f32, f64, boolean, i8, u8, i16, u16, i32, u32, i64, u64 };

unsigned width_of(stored kind);             // bytes
const char* long_name(stored kind);         // "float64"
const char* long_name(dtype type);          // "float32"
std::optional<dtype> type_of(stored kind);  // what an element becomes unless the caller asks for another type:
                                            // float64 becomes f32; none: integers and booleans
std::optional<dtype> type_called(std::string_view name);  // f32, f16 or bf16

// What a conversion did to the elements, none of which are NaN.
struct conversion {
  stored from;
  double largest_change = 0;  // max |x - y| / |x|, without values that are 0 or infinite on only one side
  uint64_t infinite = 0;      // finite, and too large for the type: became infinite
  uint64_t vanished = 0;      // not 0, and too small for the type: became 0
};

// "float64, converted to float32: largest relative change 6e-08"
std::string describe(const conversion& c, dtype to);

// Little-endian elements, rounded to nearest even: all of `bytes`, whose size is a multiple of the width.
tensor_bytes convert(std::span<const std::byte> bytes, dtype to, conversion& c);

double value_at(stored kind, std::span<const std::byte> bytes, uint64_t i);  // integers beyond 2^53: rounded

}  // namespace dr::compare
