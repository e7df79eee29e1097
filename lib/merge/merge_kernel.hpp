// The arithmetic of merging, for host and device.
#pragma once

#include <cstdint>

#include "primitive/value_type.hpp"

namespace dr {

// to + weight · from in f32, the product rounded.
DR_HD inline float weighted(float weight, float from) { return weight * from; }
DR_HD inline float weighted_sum(float to, float weight, float from) {
  const float term = weighted(weight, from);
  return computed(to + term);
}

// The same for values of two types; rounded once, to To.
template <class From, class To>
DR_HD typename To::bits added(typename To::bits to, float weight, typename From::bits from) {
  return converted<f32_type, To>(std::bit_cast<uint32_t>(weighted_sum(To::to_f32(to), weight, From::to_f32(from))));
}

// `converted` for types that are known only when a kernel runs.
DR_HD inline uint32_t bits_as(uint32_t from_type, const void* values, uint64_t i, uint32_t to_type) {
  return from_type == to_type ? load_bits(from_type, values, i) : bits_of(to_type, value_at(from_type, values, i));
}

}  // namespace dr
