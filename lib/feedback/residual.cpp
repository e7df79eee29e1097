#include "feedback/residual.hpp"

#include <algorithm>
#include <cstring>

#include "primitive/value_rows.hpp"
#include "primitive/value_vectors.hpp"

namespace dr {

namespace {

template <class T>
void advance_scalar(const void* g, float* m, uint64_t n, float beta, float gamma, float* undo, bool) {
  const auto* v = static_cast<const typename T::bits*>(g);
  if (undo) std::memcpy(undo, m, n * sizeof(float));
  for (uint64_t i = 0; i < n; ++i) m[i] = accumulated(gamma, T::to_f32(v[i]), beta, m[i]);
}

}  // namespace

#if DR_X86
}  // namespace dr
DR_AVX2_BEGIN
namespace dr {
namespace {

// After a step of training neither array is in a cache, and the CPU's prefetchers stop at page boundaries: so both are
// prefetched this far ahead.
constexpr uint64_t ahead = 512;

// (Memory limits the speed: wider vectors gain nothing.)
template <class T>
void advance_avx2(const void* g, float* m, uint64_t n, float beta, float gamma, float* undo, bool streams) {
  const auto* v = static_cast<const typename T::bits*>(g);
  const __m256 by_beta = _mm256_set1_ps(beta), by_gamma = _mm256_set1_ps(gamma),
               one_nan = _mm256_castsi256_ps(_mm256_set1_epi32(computed_nan));
  uint64_t i = 0;
  const auto one = [&] {
    if (undo) undo[i] = m[i];
    m[i] = accumulated(gamma, T::to_f32(v[i]), beta, m[i]);
    ++i;
  };
  while (undo && i < n && reinterpret_cast<uintptr_t>(undo + i) % 32) one();
  for (; i + 8 <= n; i += 8) {
    __builtin_prefetch(v + i + ahead);
    __builtin_prefetch(m + i + ahead, 1);
    const __m256 was = _mm256_loadu_ps(m + i);
    if (undo && streams)
      _mm256_stream_ps(undo + i, was);
    else if (undo)
      _mm256_store_ps(undo + i, was);
    const __m256 now = _mm256_add_ps(_mm256_mul_ps(by_gamma, load_8<T>(v + i)), _mm256_mul_ps(by_beta, was));
    _mm256_storeu_ps(m + i, _mm256_blendv_ps(now, one_nan, _mm256_cmp_ps(now, now, _CMP_UNORD_Q)));  // computed
  }
  while (i < n) one();
}

}  // namespace
}  // namespace dr
DR_ISA_END
namespace dr {
#endif

advance_fn advance_at([[maybe_unused]] cpu_level level, uint32_t dtype) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
#if DR_X86
    if (level >= cpu_level::avx2) return advance_avx2<T>;
#endif
    return advance_scalar<T>;
  });
}

void accumulate(uint32_t dtype, const void* g, const uint64_t* indices, uint64_t rows, uint32_t width, float beta,
                float gamma, const float* m, uint64_t elements, float* acc) {
  with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(g);
    if (!indices) {
      const advance_fn advance = advance_at(cpu(), dtype);
      constexpr uint64_t block = 1024;
      for (uint64_t i = 0; i < elements; i += block) {
        const uint64_t n = std::min(elements - i, block);
        std::memcpy(acc + i, m + i, n * sizeof(float));
        advance(v + i, acc + i, n, beta, gamma, nullptr, false);
      }
      return;
    }
    for (uint64_t i = 0; i < elements; ++i) acc[i] = computed(beta * m[i]);
    for (uint64_t i = 0; i < rows; ++i)
      for (uint32_t w = 0; w < width; ++w) {
        float& a = acc[indices[i] * width + w];
        a = computed(a + gamma * T::to_f32(v[i * width + w]));
      }
  });
}

void round_values(uint32_t dtype, const float* acc, uint64_t elements, void* out) {
  with_value_type(dtype, [&](auto type) { round_values_at<decltype(type)>.best()(acc, elements, out); });
}

bool subtract_sent(uint32_t dtype, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
                   float* acc, uint32_t first) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(values);
    constexpr uint64_t ahead = 24;
    bool unfinite = false;
    for (uint64_t i = 0; i < count; ++i) {
      if (support && i + ahead < count) __builtin_prefetch(acc + (support[i + ahead] - first) * uint64_t{width}, 1);
      for (uint32_t w = 0; w < width; ++w) {
        float& a = acc[(support ? support[i] - first : i) * width + w];
        a = remaining(a, T::to_f32(v[i * width + w]), unfinite);
      }
    }
    return unfinite;
  });
}

bool clear_sent(const uint32_t* support, const void* values, uint64_t count, uint32_t cleared_from, float* acc,
                uint32_t first) {
  constexpr uint64_t block = 256;
  uint32_t left[block], largest = 0;
  for (uint64_t i = 0; i < count;) {
    uint32_t n = 0;
    // (Nearly all were sent; a branch would be unpredictable.)
    for (const uint64_t end = std::min(count, i + block); i < end; ++i) {
      uint32_t bits;
      std::memcpy(&bits, static_cast<const std::byte*>(values) + 4 * i, sizeof bits);
      left[n] = support[i] - first;
      largest = std::max(largest, magnitude<f32_type>(bits));
      n += magnitude<f32_type>(bits) < cleared_from;
    }
    for (uint32_t k = 0; k < n; ++k) acc[left[k]] = 0;
  }
  return largest >= f32_type::infinity;
}

}  // namespace dr
