// Eight values at a time.
#include "primitive/neon_vectors.hpp"
#include "primitive/value_rows.hpp"

#if DR_NEON
namespace dr {

template <class T>
void widen_values_neon(const typename T::bits* values, uint64_t n, uint32_t* wide) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const float32x4_t a = floats_of_4<T>(values + i), b = floats_of_4<T>(values + i + 4);
    if (!is_everywhere(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b)))) [[unlikely]] {  // NaN keep their payload
      widen_values_scalar<T>(values + i, 8, wide + i);
    } else {
      vst1q_u32(wide + i, vreinterpretq_u32_f32(a));
      vst1q_u32(wide + i + 4, vreinterpretq_u32_f32(b));
    }
  }
  widen_values_scalar<T>(values + i, n - i, wide + i);
}

template <class T>
void round_values_neon(const float* wide, uint64_t n, void* to) {
  auto* const out = static_cast<typename T::bits*>(to);
  const float32x4_t most = vdupq_n_f32(static_cast<float>(T::largest));
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const float32x4_t a = vld1q_f32(wide + i), b = vld1q_f32(wide + i + 4);
    if (!is_everywhere(vandq_u32(vcaleq_f32(a, most), vcaleq_f32(b, most)))) [[unlikely]] {  // too large, infinite, NaN
      round_values_scalar<T>(wide + i, 8, out + i);
    } else {
      store_floats_4<T>(a, out + i);
      store_floats_4<T>(b, out + i + 4);
    }
  }
  round_values_scalar<T>(wide + i, n - i, out + i);
}

#define DR_INSTANTIATE(T)                                                  \
  template void widen_values_neon<T>(const T::bits*, uint64_t, uint32_t*); \
  template void round_values_neon<T>(const float*, uint64_t, void*);
DR_INSTANTIATE(f32_type)
DR_INSTANTIATE(f16_type)
DR_INSTANTIATE(bf16_type)
#undef DR_INSTANTIATE

}  // namespace dr
#endif
