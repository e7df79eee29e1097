#include <array>

#include "sparsify/select_kernel.hpp"

#if DR_X86
namespace dr {
namespace {

// For every mask of 8 lanes: the lanes with a set bit, first.
constexpr auto compressing = [] {
  std::array<std::array<uint8_t, 8>, 256> all{};
  for (unsigned m = 0; m < 256; ++m)
    for (unsigned lane = 0, at = 0; lane < 8; ++lane)
      if (m >> lane & 1) all[m][at++] = static_cast<uint8_t>(lane);
  return all;
}();

}  // namespace
}  // namespace dr

DR_AVX2_BEGIN
namespace dr {
namespace {

inline __m256i compress(__m256i x, uint32_t mask) {
  const __m256i lanes =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(compressing[mask].data())));
  return _mm256_permutevar8x32_epi32(x, lanes);
}
inline uint32_t bits_of(__m256i m) { return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(m))); }
inline __m256i ascending() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }

// 8 values as 32 bits, and back.
template <class Bits>
inline __m256i load_8(const Bits* v) {
  if constexpr (sizeof(Bits) == 4)
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v));
  else
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v)));
}
template <class Bits>
inline void store_8(Bits* to, __m256i x) {
  if constexpr (sizeof(Bits) == 4) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
  } else {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }
}
template <class Bits>
inline __m256i magnitude_8(__m256i x) {
  return _mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(select_magnitude<Bits>)));
}

template <class Bits>
inline uint32_t collect_chunk(const Bits* v, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions, Bits* out) {
  uint8_t masks[select_chunk / sizeof(Bits) / 8];
  uint16_t list[select_chunk / sizeof(Bits) / 8];
  // Magnitudes and low are below 2^31, so they compare as signed numbers.
  const __m256i below = _mm256_set1_epi32(static_cast<int>(low - 1));
  const uint32_t whole = n / 8;
  for (uint32_t i = 0; i < whole; ++i)
    masks[i] = static_cast<uint8_t>(bits_of(_mm256_cmpgt_epi32(magnitude_8<Bits>(load_8(v + 8 * i)), below)));
  const uint32_t some = list_masks(masks, whole, list);
  uint32_t found = 0;
  for (uint32_t j = 0; j < some; ++j) {
    const uint32_t i = list[j], m = masks[i];
    const __m256i at = _mm256_add_epi32(ascending(), _mm256_set1_epi32(static_cast<int>(first + 8 * i)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + found), compress(at, m));
    store_8(out + found, compress(load_8(v + 8 * i), m));
    found += static_cast<uint32_t>(__builtin_popcount(m));
  }
  return collect_each(v, 8 * whole, n, low, first, found, positions, out);
}

template <class Bits>
uint32_t collect(const void* values, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions, void* selected) {
  return collect_chunks<Bits, collect_chunk<Bits>>(values, n, low, first, positions, selected);
}

template <class Bits>
uint64_t magnitudes(const void* values, uint64_t n, uint32_t low, uint32_t high, uint32_t* keys) {
  const auto* v = static_cast<const Bits*>(values);
  if (high <= low) return 0;
  const __m256i from = _mm256_set1_epi32(static_cast<int>(low)),
                last = _mm256_set1_epi32(static_cast<int>(high - low - 1));
  uint64_t found = 0, i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i key = magnitude_8<Bits>(load_8(v + i)), over = _mm256_sub_epi32(key, from);
    const uint32_t m = bits_of(_mm256_cmpeq_epi32(_mm256_min_epu32(over, last), over));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(keys + found), compress(key, m));
    found += static_cast<uint64_t>(__builtin_popcount(m));
  }
  return magnitudes_each(v, i, n, low, high, found, keys);
}

template <class Bits>
uint64_t cut(uint64_t from, uint64_t n, uint32_t above, uint64_t& ties, uint32_t* positions, void* selected) {
  auto* out = static_cast<Bits*>(selected);
  const __m256i edge = _mm256_set1_epi32(static_cast<int>(above));
  uint64_t found = 0, left = ties, i = from;
  for (; i + 8 <= from + n; i += 8) {
    const __m256i x = load_8(out + i), key = magnitude_8<Bits>(x);
    const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(positions + i));
    const uint32_t equal = bits_of(_mm256_cmpeq_epi32(key, edge));
    uint32_t taken = equal;
    if (static_cast<uint64_t>(__builtin_popcount(equal)) > left) taken = _pdep_u32((1u << left) - 1, equal);
    left -= static_cast<uint64_t>(__builtin_popcount(taken));
    const uint32_t m = bits_of(_mm256_cmpgt_epi32(key, edge)) | taken;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions + found), compress(at, m));
    store_8(out + found, compress(x, m));
    found += static_cast<uint64_t>(__builtin_popcount(m));
  }
  found = cut_each(i, from + n, above, left, found, positions, out);
  ties = left;
  return found;
}

template <class Bits>
uint64_t count(const void* values, uint64_t n, uint32_t low) {
  const auto* v = static_cast<const Bits*>(values);
  const __m256i below = _mm256_set1_epi32(static_cast<int>(low - 1));
  uint64_t found = 0, i = 0;
  while (i + 8 <= n) {
    __m256i sum = _mm256_setzero_si256();
    const uint64_t end = n - i < (1u << 20) ? n : i + (1u << 20);
    for (; i + 8 <= end; i += 8)
      sum = _mm256_sub_epi32(sum, _mm256_cmpgt_epi32(magnitude_8<Bits>(load_8(v + i)), below));
    alignas(32) uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
    for (const uint32_t lane : lanes) found += lane;
  }
  return count_each(v, i, n, low, found);
}

template <class Bits>
uint64_t survey(const void* values, uint64_t n, uint32_t& largest) {
  return survey_with<Bits>(values, n, largest);
}

template <class Bits>
constexpr select_kernels kernels{collect<Bits>, magnitudes<Bits>, cut<Bits>, count<Bits>, survey<Bits>};

}  // namespace

const select_kernels select_avx2[2] = {kernels<uint32_t>, kernels<uint16_t>};

}  // namespace dr
DR_ISA_END
#endif
