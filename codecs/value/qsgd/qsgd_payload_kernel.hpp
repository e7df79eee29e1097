// qsgd's payloads. Draws depend on positions alone and quotients are rounded as a division rounds
// them, so the bytes of all levels are scalar's.
#pragma once

#include <algorithm>

#include "codecs/value/qsgd/qsgd_kernel.hpp"
#include "primitive/cpu.hpp"
#include "primitive/packing.hpp"

namespace dr {

template <class T>
void qsgd_encode_scalar(const typename T::bits* values, const qsgd_layout& l, uint64_t key, uint8_t* out) {
  bit_writer codes(out + l.norms_size);
  for (uint64_t b = 0; b < l.buckets; ++b) {
    const uint64_t begin = b * l.bucket, length = b + 1 < l.buckets ? l.bucket : l.n - begin;
    const float norm = qsgd_norm<T>(values + begin, length);
    store(out + 4 * b, norm);
    for (uint64_t i = begin; i < begin + length; ++i)
      codes.put(qsgd_code(T::to_f32(values[i]), norm, l.levels, draw(key, i)), l.code_bits);
  }
  codes.finish();
}

// The first fault of a payload, if it has one.
struct qsgd_verdict {
  const char* what = nullptr;
  uint64_t where = 0, found = 0;
};
template <class T>
qsgd_verdict qsgd_decode_scalar(const uint8_t* in, const qsgd_layout& l, typename T::bits* out) {
  bit_reader codes(in + l.norms_size, l.n * l.code_bits);
  for (uint64_t b = 0; b < l.buckets; ++b) {
    const uint64_t begin = b * l.bucket, length = b + 1 < l.buckets ? l.bucket : l.n - begin;
    const auto norm_bits = load<uint32_t>(in + 4 * b);
    if (norm_bits >= f32_type::infinity) return {"qsgd: a norm is negative or not finite", 4 * b, norm_bits};
    const float norm = std::bit_cast<float>(norm_bits);
    for (uint64_t i = begin; i < begin + length; ++i) {
      const auto code = static_cast<uint32_t>(codes.get(l.code_bits));
      if (code >> 1 > l.levels) return {"qsgd: a level is above the highest", i, code >> 1};
      out[i] = T::from_f64(qsgd_value(code, norm, l.levels));
    }
  }
  if (!padding_is_zero(in + l.norms_size, l.n * l.code_bits)) return {"qsgd: padding is not zero", l.size, 0};
  return {};
}

// ---- Twins -----------------------------------------------------------------------------------------------
// Codes are made and read a block at a time, which begins on a byte whatever their width is. A bucket may end anywhere
// in it.
inline constexpr size_t qsgd_block = 2048, qsgd_slack = 16;

//   squares(values, n)   Σ v² as tree_sum has it
//   make(values, n, norm, levels, key, first, codes)   of n values of a bucket, from position `first` of the stream on,
//                                                      with room for qsgd_slack more codes
template <class T, auto squares, auto make>
void qsgd_encode_blocks(const typename T::bits* values, const qsgd_layout& l, uint64_t key, uint8_t* out) {
  alignas(64) uint32_t codes[qsgd_block + qsgd_slack];
  uint8_t *norms = out, *body = out + l.norms_size;
  uint64_t bucket_end = 0;
  float norm = 0;
  for (uint64_t first = 0; first < l.n; first += qsgd_block) {
    const uint64_t end = std::min<uint64_t>(first + qsgd_block, l.n);
    for (uint64_t at = first, to; at < end; at = to) {
      if (at == bucket_end) {
        bucket_end = std::min(at + l.bucket, l.n);
        norm = qsgd_norm_of<T>(squares(values + at, bucket_end - at));
        store(norms, norm);
        norms += 4;
      }
      to = std::min(bucket_end, end);
      make(values + at, to - at, norm, l.levels, key, at, codes + (at - first));
    }
    body = pack_bits.best()(codes, end - first, l.code_bits, body);
  }
}

// Values in f32 arithmetic, where that rounds as f64's does: with norm / levels = high + low, and level · high + level ·
// low rounded once, the error before the rounding is below 2^-47 of the value. A midpoint of f32 that is not the value
// itself is 2^-40 or more away (a multiple of the norm's last place over levels · 2^25), and the value itself is one
// only if `levels`, an odd prime or a power of two, divides the norm's 24 bits: then low is 0. Norms that are not tiny,
// so that nothing is below f32's exponents.
constexpr bool qsgd_f32_rounds(uint32_t levels) {
  if ((levels & (levels - 1)) == 0) return true;
  for (uint32_t k = 2; k * k <= levels; ++k)
    if (levels % k == 0) return false;
  return true;
}
inline constexpr uint32_t qsgd_least_norm = 0x21800000;  // 2^-60
struct qsgd_step {
  float high, low;

  qsgd_step(float norm, uint32_t levels) {
    const double step = static_cast<double>(norm) / levels;
    high = static_cast<float>(step);
    low = static_cast<float>(step - static_cast<double>(high));
  }
};

// One-byte codes: restore(bytes, n, step, out) decodes a bucket and returns the largest code.
template <auto restore>
bool qsgd_decode_bytes(const uint8_t* in, const qsgd_layout& l, uint32_t* out) {
  uint32_t largest = 0;
  for (uint64_t b = 0, first = 0; b < l.buckets; ++b, first += l.bucket) {
    const auto norm = load<uint32_t>(in + 4 * b);
    if (norm >= f32_type::infinity || (norm && norm < qsgd_least_norm)) return false;
    const auto n = static_cast<size_t>(std::min(l.bucket, l.n - first));
    largest =
        std::max(largest, restore(in + l.norms_size + first, n, {std::bit_cast<float>(norm), l.levels}, out + first));
  }
  return largest >> 1 <= l.levels;
}

//   unpack(in, n, bits, codes)   returns the largest code
//   restore(codes, n, norm, levels, out)   of n codes of a bucket
//   restore_bytes: of qsgd_decode_bytes, for f32
template <class T, auto unpack, auto restore, auto restore_bytes>
qsgd_verdict qsgd_decode_blocks(const uint8_t* in, const qsgd_layout& l, typename T::bits* out) {
  if constexpr (std::is_same_v<T, f32_type>)
    if (l.code_bits == 8 && qsgd_f32_rounds(l.levels) && qsgd_decode_bytes<restore_bytes>(in, l, out)) return {};
  alignas(64) uint32_t codes[qsgd_block];
  const uint8_t *norms = in, *body = in + l.norms_size;
  bool good = padding_is_zero(body, l.n * l.code_bits);
  uint64_t bucket_end = 0;
  uint32_t norm = 0;
  for (uint64_t first = 0; good && first < l.n; first += qsgd_block) {
    const uint64_t end = std::min<uint64_t>(first + qsgd_block, l.n);
    good = unpack(body + first / 8 * l.code_bits, end - first, l.code_bits, codes) >> 1 <= l.levels;
    for (uint64_t at = first, to; good && at < end; at = to) {
      if (at == bucket_end) {
        bucket_end = std::min(at + l.bucket, l.n);
        norm = load<uint32_t>(norms);
        norms += 4;
        good = norm < f32_type::infinity;
      }
      to = std::min(bucket_end, end);
      if (good) restore(codes + (at - first), to - at, std::bit_cast<float>(norm), l.levels, out + at);
    }
  }
  return good ? qsgd_verdict{} : qsgd_decode_scalar<T>(in, l, out);  // which reports the first fault
}

template <class T>
double qsgd_few_squares(const typename T::bits* v, size_t n) {
  return tree_sum(n, [&](uint64_t i) { return qsgd_square<T>(v[i]); });
}

template <class T>
void qsgd_encode_avx2(const typename T::bits* values, const qsgd_layout& l, uint64_t key, uint8_t* out);
template <class T>
void qsgd_encode_avx512(const typename T::bits* values, const qsgd_layout& l, uint64_t key, uint8_t* out);
template <class T>
void qsgd_encode_neon(const typename T::bits* values, const qsgd_layout& l, uint64_t key, uint8_t* out);
template <class T>
qsgd_verdict qsgd_decode_avx2(const uint8_t* in, const qsgd_layout& l, typename T::bits* out);
template <class T>
qsgd_verdict qsgd_decode_avx512(const uint8_t* in, const qsgd_layout& l, typename T::bits* out);
template <class T>
qsgd_verdict qsgd_decode_neon(const uint8_t* in, const qsgd_layout& l, typename T::bits* out);
// Of n codes of a bucket.
template <class T>
void qsgd_values_avx2(const uint32_t* codes, size_t n, float norm, uint32_t levels, typename T::bits* out);
template <class T>
void qsgd_values_avx512(const uint32_t* codes, size_t n, float norm, uint32_t levels, typename T::bits* out);
template <class T>
void qsgd_values_neon(const uint32_t* codes, size_t n, float norm, uint32_t levels, typename T::bits* out);

template <class T>
inline constexpr cpu_table<decltype(&qsgd_encode_scalar<T>)> qsgd_encode_at{
    qsgd_encode_scalar<T>, on_x86(qsgd_encode_avx2<T>), on_x86(qsgd_encode_avx512<T>), on_arm(qsgd_encode_neon<T>)};
template <class T>
inline constexpr cpu_table<decltype(&qsgd_decode_scalar<T>)> qsgd_decode_at{
    qsgd_decode_scalar<T>, on_x86(qsgd_decode_avx2<T>), on_x86(qsgd_decode_avx512<T>), on_arm(qsgd_decode_neon<T>)};

}  // namespace dr
