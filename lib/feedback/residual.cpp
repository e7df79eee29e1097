#include "feedback/residual.hpp"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "primitive/value_type.hpp"
#include "primitive/value_vectors.hpp"

namespace dr {

dr_status check_residual(const void* state, uint64_t state_size, uint64_t elements, bool on_device, dr_error& error) {
  if (!state)
    return fail(error, DR_E_ARGUMENT,
                "state: the plan keeps feedback, so the tensor needs a state of %" PRIu64 " bytes (dr_state_size)",
                residual_size(elements));
  if (reinterpret_cast<uintptr_t>(state) % 8) return fail(error, DR_E_ARGUMENT, "state: not aligned to 8 bytes");
  if (state_size < residual_size(elements))
    return fail(error, DR_E_ARGUMENT, "state: %" PRIu64 " bytes, but %" PRIu64 " are needed", state_size,
                residual_size(elements));
  if (on_device) return DR_OK;  // its header is judged there
  residual_state head;
  std::memcpy(&head, state, sizeof head);
  const bool is_fresh = head.magic == 0 && head.version == 0 && head.elements == 0;
  if (is_fresh) return DR_OK;
  if (head.magic != residual_state::magic_value || head.version != residual_state::version_value)
    return fail(error, DR_E_ARGUMENT, "state: not a residual of this version (a fresh state is all zeros)");
  if (head.elements != elements)
    return fail(error, DR_E_ARGUMENT, "state: of a tensor of %" PRIu64 " elements, not %" PRIu64, head.elements,
                elements);
  return DR_OK;
}

namespace {

template <class T>
void advance_scalar(const void* g, float* m, uint64_t n, float beta, float gamma, float* undo, bool) {
  const auto* v = static_cast<const typename T::bits*>(g);
  if (undo) std::memcpy(undo, m, n * sizeof(float));
  for (uint64_t i = 0; i < n; ++i) m[i] = computed(gamma * T::to_f32(v[i]) + beta * m[i]);
}

}  // namespace

#if DR_X86
}  // namespace dr
DR_AVX2_BEGIN
namespace dr {
namespace {

// (Memory is what it waits for: wider vectors gain nothing.)
template <class T>
void advance_avx2(const void* g, float* m, uint64_t n, float beta, float gamma, float* undo, bool streams) {
  const auto* v = static_cast<const typename T::bits*>(g);
  const __m256 by_beta = _mm256_set1_ps(beta), by_gamma = _mm256_set1_ps(gamma),
               one_nan = _mm256_castsi256_ps(_mm256_set1_epi32(computed_nan));
  uint64_t i = 0;
  const auto one = [&] {
    if (undo) undo[i] = m[i];
    m[i] = computed(gamma * T::to_f32(v[i]) + beta * m[i]);
    ++i;
  };
  while (undo && i < n && reinterpret_cast<uintptr_t>(undo + i) % 32) one();
  for (; i + 8 <= n; i += 8) {
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

advance_fn advance_at(cpu_level level, uint32_t dtype) {
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
  with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    auto* to = static_cast<typename T::bits*>(out);
    for (uint64_t i = 0; i < elements; ++i) {
      const double v = double{acc[i]};
      to[i] = T::from_f64(std::isinf(v) ? v : saturate<T>(v));
    }
  });
}

void subtract_sent(uint32_t dtype, const uint32_t* support, const void* values, uint64_t count, uint32_t width,
                   float* acc, uint32_t first) {
  with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(values);
    constexpr uint64_t ahead = 24;
    for (uint64_t i = 0; i < count; ++i) {
      if (support && i + ahead < count) __builtin_prefetch(acc + (support[i + ahead] - first) * uint64_t{width}, 1);
      for (uint32_t w = 0; w < width; ++w) {
        float& a = acc[(support ? support[i] - first : i) * width + w];
        const float rest = a - T::to_f32(v[i * width + w]);
        a = std::isfinite(rest) ? rest : 0;
      }
    }
  });
}

void clear_sent(const uint32_t* support, const void* values, uint64_t count, uint32_t taken_from, float* acc,
                uint32_t first) {
  constexpr uint64_t block = 256;
  uint32_t left[block];
  for (uint64_t i = 0; i < count;) {
    uint32_t n = 0;
    for (const uint64_t end = std::min(count, i + block); i < end; ++i) {  // most have left; which, nobody could guess
      uint32_t bits;
      std::memcpy(&bits, static_cast<const std::byte*>(values) + 4 * i, sizeof bits);
      left[n] = support[i] - first;
      n += magnitude<f32_type>(bits) < taken_from;
    }
    for (uint32_t k = 0; k < n; ++k) acc[left[k]] = 0;
  }
}

}  // namespace dr
