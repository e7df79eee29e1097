// Eight values at a time.
#include "merge/merge_values.hpp"
#include "primitive/neon_vectors.hpp"

#if DR_NEON
namespace dr {
namespace {

// One value, by the CPU's conversion where it has one.
template <class T>
float number_neon(typename T::bits b) {
  if constexpr (std::is_same_v<T, f16_type>)
    return static_cast<float>(std::bit_cast<float16_t>(b));
  else
    return T::to_f32(b);
}
template <class T>
typename T::bits bits_neon(float x) {
  if constexpr (std::is_same_v<T, f16_type>)
    return std::bit_cast<uint16_t>(static_cast<float16_t>(x));
  else
    return T::from_f32(x);
}

}  // namespace

template <class From, class To>
void convert_values_neon(const typename From::bits* values, uint64_t n, typename To::bits* out) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const float32x4_t a = floats_of_4<From>(values + i), b = floats_of_4<From>(values + i + 4);
    if (!is_everywhere(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b)))) [[unlikely]] {  // a NaN's payload must not change
      convert_values_scalar<From, To>(values + i, 8, out + i);
    } else {
      store_floats_4<To>(a, out + i);
      store_floats_4<To>(b, out + i + 4);
    }
  }
  convert_values_scalar<From, To>(values + i, n - i, out + i);
}

template <class From, class To>
void add_values_neon(const typename From::bits* values, uint64_t n, float weight, typename To::bits* out) {
  const float32x4_t by = vdupq_n_f32(weight);
  uint64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t more = vmulq_f32(by, floats_of_4<From>(values + i));
    store_floats_4<To>(computed_4(vaddq_f32(floats_of_4<To>(out + i), more)), out + i);
  }
  add_values_scalar<From, To>(values + i, n - i, weight, out + i);
}

template <class From, class To>
uint64_t add_pairs_neon(const uint32_t* support, const typename From::bits* values, uint64_t n, float weight,
                        uint64_t first, uint64_t end, typename To::bits* out) {
  uint64_t i = 0;
  for (; i < n && support[i] < end; ++i) {
    typename To::bits& to = out[support[i] - first];
    to = bits_neon<To>(weighted_sum(number_neon<To>(to), weight, number_neon<From>(values[i])));
  }
  return i;
}

DR_MERGE_VALUES(neon)

}  // namespace dr
#endif
