// Positions and bits of the values that a condition names, in a version for every instruction set.
#pragma once

#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr::lang {

// Elements past the end of a list, and of what is listed, that may be touched.
inline constexpr uint64_t list_spare = 64;

// list_chosen: appends first + i for each i < length with a one at chosen[i], which are ones and zeros. Returns how many.
// pack_bytes: the same ones as bits; writes whole words of 8 bytes.
inline uint64_t list_chosen_scalar(const uint8_t* chosen, uint64_t length, uint32_t first, uint32_t* to) {
  uint64_t listed = 0;
  for (uint64_t i = 0; i < length; i += 8)
    for (auto eight = load<uint64_t>(chosen + i); eight; eight &= eight - 1)
      to[listed++] = first + static_cast<uint32_t>(i + countr_zero(eight) / 8);
  return listed;
}
inline void pack_bytes_scalar(const uint8_t* ones, uint64_t length, uint8_t* out) {
  for (uint64_t i = 0; i < length; i += 64)
    for (uint64_t k = 0; k < 64; k += 8)
      out[(i + k) / 8] = static_cast<uint8_t>((load<uint64_t>(ones + i + k) * 0x0102040810204080) >> 56);
}
#if DR_X86
}  // namespace dr::lang
DR_AVX2_BEGIN
namespace dr::lang {
inline uint64_t ones_avx2(const uint8_t* at) {
  const auto half = [](const uint8_t* from) {
    const __m256i some = _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(some, 7)));
  };
  return half(at) | uint64_t{half(at + 32)} << 32;
}
inline uint64_t list_chosen_avx2(const uint8_t* chosen, uint64_t length, uint32_t first, uint32_t* to) {
  uint64_t listed = 0;
  for (uint64_t i = 0; i < length; i += 64)
    for (uint64_t some = ones_avx2(chosen + i); some; some &= some - 1)
      to[listed++] = first + static_cast<uint32_t>(i + _tzcnt_u64(some));
  return listed;
}
inline void pack_bytes_avx2(const uint8_t* ones, uint64_t length, uint8_t* out) {
  for (uint64_t i = 0; i < length; i += 64) store(out + i / 8, ones_avx2(ones + i));
}
}  // namespace dr::lang
DR_ISA_END
DR_AVX512_BEGIN
namespace dr::lang {
inline uint64_t ones_avx512(const uint8_t* at) {
  const __m512i some = _mm512_load_si512(at);
  return _cvtmask64_u64(_mm512_test_epi8_mask(some, some));
}
// (Whole vectors are stored, and the next store overwrites the excess: usually few are chosen.)
inline uint64_t list_chosen_avx512(const uint8_t* chosen, uint64_t length, uint32_t first, uint32_t* to) {
  alignas(64) uint8_t places[64];
  for (unsigned k = 0; k < 64; ++k) places[k] = static_cast<uint8_t>(k);
  const __m512i all = _mm512_load_si512(places);
  uint64_t listed = 0;
  for (uint64_t i = 0; i < length; i += 64) {
    const uint64_t ones = ones_avx512(chosen + i);
    const auto count = static_cast<unsigned>(_mm_popcnt_u64(ones));
    const __m512i from = _mm512_set1_epi32(static_cast<int>(first + i)),
                  at = _mm512_maskz_compress_epi8(_cvtu64_mask64(ones), all);
    const auto put = [&](unsigned k, __m128i sixteen) {
      _mm512_storeu_si512(to + listed + 16 * k, _mm512_add_epi32(_mm512_cvtepu8_epi32(sixteen), from));
    };
    put(0, _mm512_castsi512_si128(at));
    if (count > 16) {
      put(1, _mm512_extracti32x4_epi32(at, 1));
      put(2, _mm512_extracti32x4_epi32(at, 2));
      put(3, _mm512_extracti32x4_epi32(at, 3));
    }
    listed += count;
  }
  return listed;
}
inline void pack_bytes_avx512(const uint8_t* ones, uint64_t length, uint8_t* out) {
  for (uint64_t i = 0; i < length; i += 64) store(out + i / 8, ones_avx512(ones + i));
}
}  // namespace dr::lang
DR_ISA_END
namespace dr::lang {
inline constexpr cpu_table<decltype(&list_chosen_scalar)> list_chosen{list_chosen_scalar, list_chosen_avx2,
                                                                      list_chosen_avx512};
inline constexpr cpu_table<decltype(&pack_bytes_scalar)> pack_bytes{pack_bytes_scalar, pack_bytes_avx2,
                                                                    pack_bytes_avx512};
#else
inline constexpr cpu_table<decltype(&list_chosen_scalar)> list_chosen{list_chosen_scalar};
inline constexpr cpu_table<decltype(&pack_bytes_scalar)> pack_bytes{pack_bytes_scalar};
#endif

}  // namespace dr::lang
