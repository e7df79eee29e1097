// Values of each type as vectors of f32.
#pragma once

#include <type_traits>

#include "primitive/cpu.hpp"
#include "primitive/value_type.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

template <class T>
inline __m256 load_8(const typename T::bits* v) {
  if constexpr (sizeof(*v) == 4)
    return _mm256_loadu_ps(reinterpret_cast<const float*>(v));
  else if constexpr (std::is_same_v<T, f16_type>)
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v)));
  else
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v))), 16));
}

}  // namespace dr
DR_ISA_END
#endif
