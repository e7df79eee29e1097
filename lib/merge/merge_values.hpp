// Converts values, or adds them to those of a gradient, for every instruction set.
#pragma once

#include "merge/merge_kernel.hpp"
#include "primitive/cpu.hpp"

namespace dr {

template <class From, class To>
using convert_values_fn = void (*)(const typename From::bits* values, uint64_t n, typename To::bits* out);
template <class From, class To>
using add_values_fn = void (*)(const typename From::bits* values, uint64_t n, float weight, typename To::bits* out);

// Adds the pairs of an ascending support, up to `end`, to out[support[i] - first]. Returns their number.
template <class From, class To>
using add_pairs_fn = uint64_t (*)(const uint32_t* support, const typename From::bits* values, uint64_t n, float weight,
                                  uint64_t first, uint64_t end, typename To::bits* out);

template <class From, class To>
void convert_values_scalar(const typename From::bits* values, uint64_t n, typename To::bits* out) {
  for (uint64_t i = 0; i < n; ++i) out[i] = converted<From, To>(values[i]);
}
template <class From, class To>
void add_values_scalar(const typename From::bits* values, uint64_t n, float weight, typename To::bits* out) {
  for (uint64_t i = 0; i < n; ++i) out[i] = added<From, To>(out[i], weight, values[i]);
}

template <class From, class To>
uint64_t add_pairs_scalar(const uint32_t* support, const typename From::bits* values, uint64_t n, float weight,
                          uint64_t first, uint64_t end, typename To::bits* out) {
  uint64_t i = 0;
  for (; i < n && support[i] < end; ++i) {
    typename To::bits& to = out[support[i] - first];
    to = added<From, To>(to, weight, values[i]);
  }
  return i;
}

template <class From, class To>
void convert_values_avx2(const typename From::bits* values, uint64_t n, typename To::bits* out);
template <class From, class To>
void add_values_avx2(const typename From::bits* values, uint64_t n, float weight, typename To::bits* out);
template <class From, class To>
uint64_t add_pairs_avx2(const uint32_t* support, const typename From::bits* values, uint64_t n, float weight,
                        uint64_t first, uint64_t end, typename To::bits* out);
template <class From, class To>
void convert_values_neon(const typename From::bits* values, uint64_t n, typename To::bits* out);
template <class From, class To>
void add_values_neon(const typename From::bits* values, uint64_t n, float weight, typename To::bits* out);
template <class From, class To>
uint64_t add_pairs_neon(const uint32_t* support, const typename From::bits* values, uint64_t n, float weight,
                        uint64_t first, uint64_t end, typename To::bits* out);

// A level's loops for every pair of types: in the file that defines them.
#define DR_MERGE_VALUES(level)            \
  DR_MERGE_TO(level, f32_type, f32_type)  \
  DR_MERGE_TO(level, f32_type, f16_type)  \
  DR_MERGE_TO(level, f32_type, bf16_type) \
  DR_MERGE_TO(level, f16_type, f32_type)  \
  DR_MERGE_TO(level, f16_type, f16_type)  \
  DR_MERGE_TO(level, f16_type, bf16_type) \
  DR_MERGE_TO(level, bf16_type, f32_type) \
  DR_MERGE_TO(level, bf16_type, f16_type) \
  DR_MERGE_TO(level, bf16_type, bf16_type)
#define DR_MERGE_TO(level, From, To)                                                                           \
  template void convert_values_##level<From, To>(const From::bits*, uint64_t, To::bits*);                      \
  template void add_values_##level<From, To>(const From::bits*, uint64_t, float, To::bits*);                   \
  template uint64_t add_pairs_##level<From, To>(const uint32_t*, const From::bits*, uint64_t, float, uint64_t, \
                                                uint64_t, To::bits*);

template <class From, class To>
inline constexpr cpu_table<convert_values_fn<From, To>> convert_values_at{
    convert_values_scalar<From, To>, on_x86(convert_values_avx2<From, To>), nullptr,
    on_arm(convert_values_neon<From, To>)};
template <class From, class To>
inline constexpr cpu_table<add_values_fn<From, To>> add_values_at{
    add_values_scalar<From, To>, on_x86(add_values_avx2<From, To>), nullptr, on_arm(add_values_neon<From, To>)};
template <class From, class To>
inline constexpr cpu_table<add_pairs_fn<From, To>> add_pairs_at{
    add_pairs_scalar<From, To>, on_x86(add_pairs_avx2<From, To>), nullptr, on_arm(add_pairs_neon<From, To>)};

}  // namespace dr
