#include "feedback/velocity.hpp"

#include <algorithm>
#include <cstring>

#include "feedback/residual.hpp"
#include "primitive/value_type.hpp"
#include "primitive/value_vectors.hpp"

namespace dr {
namespace {

inline void correct_one(float g, float momentum, float clip, float& u, float& v) {
  u = accumulated(clip, g, momentum, u);
  v = computed(v + u);
}

template <class T>
void correct_scalar(const void* g, const velocity& to, uint64_t n, float momentum, float clip, bool) {
  const auto* in = static_cast<const typename T::bits*>(g);
  if (to.undo_v) std::memcpy(to.undo_v, to.v, n * sizeof(float));
  if (to.undo_u) std::memcpy(to.undo_u, to.u, n * sizeof(float));
  for (uint64_t i = 0; i < n; ++i) correct_one(T::to_f32(in[i]), momentum, clip, to.u[i], to.v[i]);
}

}  // namespace

#if DR_X86
}  // namespace dr
DR_AVX2_BEGIN
namespace dr {
namespace {

// As in residual.cpp: the CPU's prefetchers stop at page boundaries.
constexpr uint64_t prefetch_distance = 512;

inline void keep_old(float* undo, __m256 was, bool streams) {
  if (streams)
    _mm256_stream_ps(undo, was);
  else
    _mm256_store_ps(undo, was);
}

// (Memory limits the speed: wider vectors gain nothing.)
template <class T>
void correct_avx2(const void* g, const velocity& to, uint64_t n, float momentum, float clip, bool streams) {
  const auto* in = static_cast<const typename T::bits*>(g);
  // (Names of a structured binding cannot be captured: clang 14 refuses them.)
  float *const v = to.v, *const u = to.u, *const undo_v = to.undo_v, *const undo_u = to.undo_u;
  const __m256 by_momentum = _mm256_set1_ps(momentum), by_clip = _mm256_set1_ps(clip),
               one_nan = _mm256_castsi256_ps(_mm256_set1_epi32(computed_nan));
  const auto as_computed = [&](__m256 x) { return _mm256_blendv_ps(x, one_nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); };
  uint64_t i = 0;
  const auto one = [&] {
    if (undo_v) undo_v[i] = v[i], undo_u[i] = u[i];
    correct_one(T::to_f32(in[i]), momentum, clip, u[i], v[i]);
    ++i;
  };
  // (Both undo copies have the same alignment.)
  while (undo_v && i < n && reinterpret_cast<uintptr_t>(undo_v + i) % 32) one();
  for (; i + 8 <= n; i += 8) {
    __builtin_prefetch(in + i + prefetch_distance);
    __builtin_prefetch(u + i + prefetch_distance, 1);
    __builtin_prefetch(v + i + prefetch_distance, 1);
    const __m256 old_u = _mm256_loadu_ps(u + i), old_v = _mm256_loadu_ps(v + i);
    if (undo_v) keep_old(undo_v + i, old_v, streams), keep_old(undo_u + i, old_u, streams);
    const __m256 now_u =
        as_computed(_mm256_add_ps(_mm256_mul_ps(by_clip, load_8<T>(in + i)), _mm256_mul_ps(by_momentum, old_u)));
    _mm256_storeu_ps(u + i, now_u);
    _mm256_storeu_ps(v + i, as_computed(_mm256_add_ps(old_v, now_u)));
  }
  while (i < n) one();
}

}  // namespace
}  // namespace dr
DR_ISA_END
namespace dr {
#endif

correct_fn correct_at([[maybe_unused]] cpu_level level, uint32_t dtype) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
#if DR_X86
    if (level >= cpu_level::avx2) return correct_avx2<T>;
#endif
    return correct_scalar<T>;
  });
}

void correct(uint32_t dtype, const void* g, const uint64_t* indices, uint64_t rows, uint32_t width, float momentum,
             float clip, const velocity& to, uint64_t elements) {
  if (!indices) return correct_at(cpu(), dtype)(g, to, elements, momentum, clip, false);
  accumulate(dtype, g, indices, rows, width, momentum, clip, to.u, elements, to.u);
  for (uint64_t i = 0; i < elements; ++i) to.v[i] = computed(to.v[i] + to.u[i]);
}

void mask_sent(const uint32_t* support, uint64_t count, uint32_t width, float* u, uint32_t first) {
  if (!support) {
    std::fill_n(u, count * width, 0.0f);
    return;
  }
  constexpr uint64_t fetched = 24;
  for (uint64_t i = 0; i < count; ++i) {
    if (i + fetched < count) __builtin_prefetch(u + (support[i + fetched] - first) * uint64_t{width}, 1);
    std::fill_n(u + (support[i] - first) * uint64_t{width}, width, 0.0f);
  }
}

double squares_of(uint32_t dtype, const void* values, uint64_t n) {
  return with_value_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(values);
    const auto square = [&](uint64_t i) {
      const auto x = static_cast<double>(T::to_f32(v[i]));
      return x * x;
    };
    double sums[8] = {};
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
      for (uint64_t k = 0; k < 8; ++k) sums[k] += square(i + k);
    for (; i < n; ++i) sums[i % 8] += square(i);
    double all = 0;
    for (const double s : sums) all += s;
    return all;
  });
}

void drop_unfinite(float* m, uint64_t n) {
  constexpr uint64_t block = 1024;  // such values are rare: a block without any is not written
  for (uint64_t begin = 0; begin < n; begin += block) {
    const uint64_t end = std::min(n, begin + block);
    uint32_t bad = 0;
    for (uint64_t i = begin; i < end; ++i) bad |= !is_finite_residual(m[i]);
    for (uint64_t i = begin; bad && i < end; ++i)
      if (!is_finite_residual(m[i])) m[i] = 0;
  }
}

}  // namespace dr
