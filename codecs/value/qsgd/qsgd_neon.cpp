// Codes four and eight at a time.
#include "codecs/value/qsgd/qsgd_payload_kernel.hpp"
#include "primitive/neon_vectors.hpp"
#include "primitive/packing_vectors.hpp"

#if DR_NEON
namespace dr {
namespace {

// As in qsgd_avx2.cpp, which says why this is a / b as a division rounds it.
float64x2_t qsgd_quotient_neon(float64x2_t a, float64x2_t b, float64x2_t inverse) {
  const float64x2_t q = vmulq_f64(a, inverse);
  return vfmaq_f64(q, vfmsq_f64(a, q, b), inverse);
}

template <class T>
double qsgd_squares_neon(const typename T::bits* values, uint64_t n) {
  double total = 0;
  alignas(16) double tile[sum_tile / 2];
  for (uint64_t begin = 0; begin < n; begin += sum_tile) {
    const typename T::bits* const v = values + begin;
    const auto length = static_cast<size_t>(std::min<uint64_t>(sum_tile, n - begin));
    if (length < 16) {
      total += qsgd_few_squares<T>(v, length);
      continue;
    }
    size_t h = bit_ceil(length) / 2;
    for (size_t i = 0; i < h; i += 4) {
      const float32x4_t a = floats_of_4<T>(v + i);
      float32x4_t b = vdupq_n_f32(0);
      if (i + h + 4 <= length) {
        b = floats_of_4<T>(v + i + h);
      } else if (i + h < length) {
        typename T::bits last[4] = {};
        std::copy(v + i + h, v + length, last);
        b = floats_of_4<T>(last);
      }
      const auto put = [&](size_t at, float64x2_t x, float64x2_t y) {  // squares are exact
        vst1q_f64(tile + at, vfmaq_f64(vmulq_f64(x, x), y, y));
      };
      put(i, lower_2(a), lower_2(b));
      put(i + 2, upper_2(a), upper_2(b));
    }
    for (h /= 2; h >= 2; h /= 2)
      for (size_t i = 0; i < h; i += 2) vst1q_f64(tile + i, vaddq_f64(vld1q_f64(tile + i), vld1q_f64(tile + i + h)));
    total += tile[0] + tile[1];
  }
  return total;
}

// Random numbers are the integer unit's: NEON multiplies no words of 64 bits.
template <class T>
void qsgd_codes_neon(const typename T::bits* values, size_t n, float norm, uint32_t levels, uint64_t key,
                     uint64_t first, uint32_t* codes) {
  if (!(norm > 0)) {
    std::fill(codes, codes + n, 0);
    return;
  }
  const float64x2_t largest = vdupq_n_f64(levels), by = vdupq_n_f64(norm), inverse = vdupq_n_f64(1.0 / norm);
  for (size_t i = 0; i < n; i += 4) {
    typename T::bits last[4] = {};
    const typename T::bits* from = values + i;
    if (n - i < 4) from = std::copy(from, values + n, last) - (n - i);
    const float32x4_t v = floats_of_4<T>(from), magnitude = vabsq_f32(v);
    const auto level_of = [&](float64x2_t m, uint64_t at) {
      const uint64x2_t draws = vcombine_u64(vcreate_u64(draw(key, at) >> 40), vcreate_u64(draw(key, at + 1) >> 40));
      const float64x2_t level =
          vaddq_f64(qsgd_quotient_neon(vmulq_f64(m, largest), by, inverse), vcvtq_n_f64_u64(draws, 24));
      return vcvtq_u64_f64(vminq_f64(level, largest));
    };
    const uint32x4_t level = vuzp1q_u32(vreinterpretq_u32_u64(level_of(lower_2(magnitude), first + i)),
                                        vreinterpretq_u32_u64(level_of(upper_2(magnitude), first + i + 2)));
    const uint32x4_t sign = vandq_u32(vtstq_u32(level, level), vshrq_n_u32(vreinterpretq_u32_f32(v), 31));
    vst1q_u32(codes + i, vorrq_u32(vaddq_u32(level, level), sign));
  }
}

uint32_t qsgd_unpack_neon(const uint8_t* in, size_t n, unsigned bits, uint32_t* codes) {
  const unpack_4_and_4 unpack(bits);
  const size_t size = packed_size(n, bits);
  uint32x4_t largest = vdupq_n_u32(0);
  size_t i = 0;
  for (; i + 8 <= n && i / 8 * bits + unpack_4_and_4::reach(bits) <= size; i += 8) {
    const uint8_t* const from = in + i / 8 * bits;
    const uint32x4_t a = unpack.first(from), b = unpack.second(from);
    largest = vmaxq_u32(largest, vmaxq_u32(a, b));
    vst1q_u32(codes + i, a);
    vst1q_u32(codes + i + 4, b);
  }
  unpack_scalar(in + i / 8 * bits, in + size, n - i, bits, codes + i);
  const uint32_t last = i < n ? *std::max_element(codes + i, codes + n) : 0;
  return std::max(last, vmaxvq_u32(largest));
}

// Four magnitudes, rounded once. To 16 bits by way of f32, rounded to odd, as in qsgd_avx2.cpp: here an instruction.
float32x4_t qsgd_odd_neon(float64x2_t low, float64x2_t high) { return vcvtx_high_f32_f64(vcvtx_f32_f64(low), high); }
uint32x4_t qsgd_narrow_neon(f32_type, float64x2_t low, float64x2_t high) {
  return vreinterpretq_u32_f32(vcvt_high_f32_f64(vcvt_f32_f64(low), high));
}
uint32x4_t qsgd_narrow_neon(f16_type, float64x2_t low, float64x2_t high) {
  return vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(qsgd_odd_neon(low, high))));
}
uint32x4_t qsgd_narrow_neon(bf16_type, float64x2_t low, float64x2_t high) {
  const uint32x4_t v = vreinterpretq_u32_f32(qsgd_odd_neon(low, high)),
                   even = vandq_u32(vshrq_n_u32(v, 16), vdupq_n_u32(1));
  return vshrq_n_u32(vaddq_u32(v, vaddq_u32(even, vdupq_n_u32(0x7fff))), 16);
}

uint32_t qsgd_bytes_neon(const uint8_t* in, size_t n, qsgd_step step, uint32_t* out) {
  const float32x4_t high = vdupq_n_f32(step.high), low = vdupq_n_f32(step.low);
  uint8x8_t largest = vdup_n_u8(0);
  for (size_t i = 0; i < n; i += 8) {
    const size_t some = std::min<size_t>(n - i, 8);
    const uint8x8_t bytes =
        vcreate_u8(some == 8 ? load<uint64_t>(in + i) : load_bytes(in + i, static_cast<unsigned>(some)));
    largest = vmax_u8(largest, bytes);
    const uint16x8_t codes = vmovl_u8(bytes);
    const auto restored = [&](uint32x4_t code) {
      const float32x4_t level = vcvtq_f32_u32(vshrq_n_u32(code, 1));
      const float32x4_t v = vfmaq_f32(vmulq_f32(level, low), level, high);
      return vorrq_u32(vreinterpretq_u32_f32(v), vshlq_n_u32(code, 31));
    };
    const uint32x4_t a = restored(vmovl_u16(vget_low_u16(codes))), b = restored(vmovl_high_u16(codes));
    if (some == 8) {
      vst1q_u32(out + i, a);
      vst1q_u32(out + i + 4, b);
    } else {
      uint32_t last[8];
      vst1q_u32(last, a);
      vst1q_u32(last + 4, b);
      std::copy(last, last + some, out + i);
    }
  }
  return vmaxv_u8(largest);
}

}  // namespace

template <class T>
void qsgd_values_neon(const uint32_t* codes, size_t n, float norm, uint32_t levels, typename T::bits* out) {
  const float64x2_t by = vdupq_n_f64(levels), inverse = vdupq_n_f64(1.0 / levels), scale = vdupq_n_f64(norm);
  const auto value_of = [&](float64x2_t level) { return qsgd_quotient_neon(vmulq_f64(level, scale), by, inverse); };
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const uint32x4_t code = vld1q_u32(codes + i);
    const float32x4_t level = vcvtq_f32_u32(vshrq_n_u32(code, 1));  // (exact: levels have 15 bits)
    const uint32x4_t v = qsgd_narrow_neon(T{}, value_of(lower_2(level)), value_of(upper_2(level)));
    const uint32x4_t sign = vshlq_n_u32(code, 31);
    if constexpr (sizeof(typename T::bits) == 4)
      vst1q_u32(out + i, vorrq_u32(v, sign));
    else
      vst1_u16(out + i, vmovn_u32(vorrq_u32(v, vshrq_n_u32(sign, 16))));
  }
  for (; i < n; ++i) out[i] = T::from_f64(qsgd_value(codes[i], norm, levels));
}

template void qsgd_values_neon<f32_type>(const uint32_t*, size_t, float, uint32_t, f32_type::bits*);
template void qsgd_values_neon<f16_type>(const uint32_t*, size_t, float, uint32_t, f16_type::bits*);
template void qsgd_values_neon<bf16_type>(const uint32_t*, size_t, float, uint32_t, bf16_type::bits*);

template <class T>
void qsgd_encode_neon(const typename T::bits* values, const qsgd_layout& l, uint64_t key, uint8_t* out) {
  qsgd_encode_blocks<T, qsgd_squares_neon<T>, qsgd_codes_neon<T>>(values, l, key, out);
}
template <class T>
qsgd_verdict qsgd_decode_neon(const uint8_t* in, const qsgd_layout& l, typename T::bits* out) {
  return qsgd_decode_blocks<T, qsgd_unpack_neon, qsgd_values_neon<T>, qsgd_bytes_neon>(in, l, out);
}

template void qsgd_encode_neon<f32_type>(const f32_type::bits*, const qsgd_layout&, uint64_t, uint8_t*);
template qsgd_verdict qsgd_decode_neon<f32_type>(const uint8_t*, const qsgd_layout&, f32_type::bits*);
template void qsgd_encode_neon<f16_type>(const f16_type::bits*, const qsgd_layout&, uint64_t, uint8_t*);
template qsgd_verdict qsgd_decode_neon<f16_type>(const uint8_t*, const qsgd_layout&, f16_type::bits*);
template void qsgd_encode_neon<bf16_type>(const bf16_type::bits*, const qsgd_layout&, uint64_t, uint8_t*);
template qsgd_verdict qsgd_decode_neon<bf16_type>(const uint8_t*, const qsgd_layout&, bf16_type::bits*);

}  // namespace dr
#endif
