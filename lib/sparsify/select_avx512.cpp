#include "sparsify/select_kernel.hpp"

#if DR_X86
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of the intrinsics' own undefined registers (gcc PR 105593)
#endif
DR_AVX512_BEGIN
namespace dr {
namespace {

inline __mmask16 first_lanes(uint64_t n) { return static_cast<__mmask16>(n < 16 ? (1u << n) - 1 : 0xffff); }
inline __mmask32 first_lanes_32(uint64_t n) { return n < 32 ? (1u << n) - 1 : ~0u; }
inline __m512i ascending() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

// Positions of the masks that are not zero. Most are at r/d = 1 %, and a branch on each would be mispredicted.
template <class Mask>
inline uint32_t list_nonzero(const Mask* masks, uint32_t n, uint16_t* list) {
  uint32_t found = 0;
  constexpr uint32_t lanes = 32;
  __m512i id = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10,
                                9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (uint32_t i = 0; i < n; i += lanes) {
    __mmask32 some;
    if constexpr (sizeof(Mask) == 2) {
      const __m512i m = _mm512_loadu_si512(masks + i);
      some = _mm512_test_epi16_mask(m, m);
    } else {
      const __m512i a = _mm512_loadu_si512(masks + i), b = _mm512_loadu_si512(masks + i + 16);
      some = uint32_t{_mm512_test_epi32_mask(a, a)} | uint32_t{_mm512_test_epi32_mask(b, b)} << 16;
    }
    // (To a register and then to memory: compressing stores are slow on Zen 4.)
    _mm512_storeu_si512(list + found, _mm512_maskz_compress_epi16(some, id));
    found += static_cast<uint32_t>(__builtin_popcount(some));
    id = _mm512_add_epi16(id, _mm512_set1_epi16(lanes));
  }
  return found;
}

inline uint32_t collect_chunk(const uint32_t* v, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions,
                              uint32_t* out) {
  constexpr uint32_t most = select_chunk / 64;
  alignas(64) __mmask16 masks[most + 32];
  uint16_t list[most + 32];
  const __m512i least = _mm512_set1_epi32(static_cast<int>(low)), magnitude = _mm512_set1_epi32(0x7fffffff);
  const uint32_t whole = n / 16;
  for (uint32_t i = 0; i < whole; ++i)
    masks[i] = _mm512_cmpge_epi32_mask(_mm512_and_si512(_mm512_loadu_si512(v + 16 * i), magnitude), least);
  uint32_t vectors = whole;
  if (n % 16) {
    const __mmask16 there = first_lanes(n % 16);
    masks[vectors++] = _mm512_mask_cmpge_epi32_mask(
        there, _mm512_and_si512(_mm512_maskz_loadu_epi32(there, v + 16 * whole), magnitude), least);
  }
  _mm512_storeu_si512(masks + vectors, _mm512_setzero_si512());
  const uint32_t some = list_nonzero(masks, vectors, list);
  uint32_t found = 0;
  for (uint32_t j = 0; j < some; ++j) {
    const uint32_t i = list[j];
    const __mmask16 m = masks[i];
    const __m512i x = i < whole ? _mm512_loadu_si512(v + 16 * i) : _mm512_maskz_loadu_epi32(m, v + 16 * i);
    const __m512i at = _mm512_add_epi32(ascending(), _mm512_set1_epi32(static_cast<int>(first + 16 * i)));
    _mm512_storeu_si512(positions + found, _mm512_maskz_compress_epi32(m, at));
    _mm512_storeu_si512(out + found, _mm512_maskz_compress_epi32(m, x));
    found += static_cast<uint32_t>(__builtin_popcount(m));
  }
  return found;
}

inline uint32_t collect_chunk(const uint16_t* v, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions,
                              uint16_t* out) {
  constexpr uint32_t most = select_chunk / 64;
  alignas(64) __mmask32 masks[most + 32];
  uint16_t list[most + 32];
  const __m512i least = _mm512_set1_epi16(static_cast<short>(low)), magnitude = _mm512_set1_epi16(0x7fff);
  const uint32_t whole = n / 32;
  for (uint32_t i = 0; i < whole; ++i)
    masks[i] = _mm512_cmpge_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(v + 32 * i), magnitude), least);
  uint32_t vectors = whole;
  if (n % 32) {
    const __mmask32 there = first_lanes_32(n % 32);
    masks[vectors++] = _mm512_mask_cmpge_epi16_mask(
        there, _mm512_and_si512(_mm512_maskz_loadu_epi16(there, v + 32 * whole), magnitude), least);
  }
  _mm512_storeu_si512(masks + vectors, _mm512_setzero_si512());
  _mm512_storeu_si512(masks + vectors + 16, _mm512_setzero_si512());
  const uint32_t some = list_nonzero(masks, vectors, list);
  uint32_t found = 0;
  for (uint32_t j = 0; j < some; ++j) {
    const uint32_t i = list[j], m = masks[i];
    const __m512i x = i < whole ? _mm512_loadu_si512(v + 32 * i) : _mm512_maskz_loadu_epi16(m, v + 32 * i);
    const __m512i at = _mm512_add_epi32(ascending(), _mm512_set1_epi32(static_cast<int>(first + 32 * i)));
    const auto m0 = static_cast<__mmask16>(m), m1 = static_cast<__mmask16>(m >> 16);
    _mm512_storeu_si512(out + found, _mm512_maskz_compress_epi16(m, x));
    _mm512_storeu_si512(positions + found, _mm512_maskz_compress_epi32(m0, at));
    _mm512_storeu_si512(positions + found + __builtin_popcount(m0),
                        _mm512_maskz_compress_epi32(m1, _mm512_add_epi32(at, _mm512_set1_epi32(16))));
    found += static_cast<uint32_t>(__builtin_popcount(m));
  }
  return found;
}

template <class Bits>
uint32_t collect(const void* values, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions, void* kept) {
  if (sizeof(Bits) == 2 && low > 0x7fff) return 0;
  constexpr uint32_t chunk = select_chunk / sizeof(Bits);
  uint32_t found = 0;
  for (uint32_t i = 0; i < n; i += chunk)
    found += collect_chunk(static_cast<const Bits*>(values) + i, n - i < chunk ? n - i : chunk, low, first + i,
                           positions + found, static_cast<Bits*>(kept) + found);
  return found;
}

// 16 magnitudes as 32 bits.
template <class Bits>
inline __m512i load_keys(const Bits* v, __mmask16 there) {
  if constexpr (sizeof(Bits) == 4)
    return _mm512_and_si512(_mm512_maskz_loadu_epi32(there, v), _mm512_set1_epi32(0x7fffffff));
  else
    return _mm512_cvtepu16_epi32(_mm256_and_si256(_mm256_maskz_loadu_epi16(there, v), _mm256_set1_epi16(0x7fff)));
}

template <class Bits>
uint64_t magnitudes(const void* values, uint64_t n, uint32_t low, uint32_t high, uint32_t* keys) {
  const auto* v = static_cast<const Bits*>(values);
  const __m512i from = _mm512_set1_epi32(static_cast<int>(low)), span = _mm512_set1_epi32(static_cast<int>(high - low));
  uint64_t found = 0;
  for (uint64_t i = 0; i < n; i += 16) {
    const __mmask16 there = first_lanes(n - i);
    const __m512i key = load_keys(v + i, there);
    const __mmask16 m = _mm512_mask_cmplt_epu32_mask(there, _mm512_sub_epi32(key, from), span);
    _mm512_storeu_si512(keys + found, _mm512_maskz_compress_epi32(m, key));
    found += static_cast<uint64_t>(__builtin_popcount(m));
  }
  return found;
}

template <class Bits>
uint64_t cut(uint64_t from, uint64_t n, uint32_t above, uint64_t& ties, uint32_t* positions, void* kept) {
  auto* out = static_cast<Bits*>(kept);
  const __m512i edge = _mm512_set1_epi32(static_cast<int>(above));
  uint64_t found = 0, left = ties;
  for (uint64_t i = from; i < from + n; i += 16) {
    const __mmask16 there = first_lanes(from + n - i);
    const __m512i key = load_keys(out + i, there), at = _mm512_maskz_loadu_epi32(there, positions + i);
    const uint32_t equal = _mm512_mask_cmpeq_epi32_mask(there, key, edge);
    const uint32_t taken = _pdep_u32(left < 16 ? (1u << left) - 1 : 0xffff, equal);
    left -= static_cast<uint64_t>(__builtin_popcount(taken));
    const auto m = static_cast<__mmask16>(_mm512_mask_cmpgt_epi32_mask(there, key, edge) | taken);
    // No further than what was just read: whoever's pairs follow, they are still to be cut.
    const __mmask16 written = there == 0xffff ? there : first_lanes(static_cast<uint64_t>(__builtin_popcount(m)));
    if constexpr (sizeof(Bits) == 4)
      _mm512_mask_storeu_epi32(out + found, written,
                               _mm512_maskz_compress_epi32(m, _mm512_maskz_loadu_epi32(there, out + i)));
    else
      _mm256_mask_storeu_epi16(out + found, written,
                               _mm256_maskz_compress_epi16(m, _mm256_maskz_loadu_epi16(there, out + i)));
    _mm512_mask_storeu_epi32(positions + found, written, _mm512_maskz_compress_epi32(m, at));
    found += static_cast<uint64_t>(__builtin_popcount(m));
  }
  ties = left;
  return found;
}

uint64_t count_32(const void* values, uint64_t n, uint32_t low) {
  const auto* v = static_cast<const uint32_t*>(values);
  const __m512i least = _mm512_set1_epi32(static_cast<int>(low)), magnitude = _mm512_set1_epi32(0x7fffffff);
  uint64_t found = 0, i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t m = 0;
    for (unsigned k = 0; k < 4; ++k)
      m |= uint64_t{_mm512_cmpge_epi32_mask(_mm512_and_si512(_mm512_loadu_si512(v + i + 16 * k), magnitude), least)}
           << 16 * k;
    found += static_cast<uint64_t>(__builtin_popcountll(m));
  }
  for (; i < n; ++i) found += (v[i] & 0x7fffffff) >= low;
  return found;
}

uint64_t count_16(const void* values, uint64_t n, uint32_t low) {
  if (low > 0x7fff) return 0;
  const auto* v = static_cast<const uint16_t*>(values);
  const __m512i least = _mm512_set1_epi16(static_cast<short>(low)), magnitude = _mm512_set1_epi16(0x7fff);
  uint64_t found = 0, i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t m = 0;
    for (unsigned k = 0; k < 2; ++k)
      m |= uint64_t{_mm512_cmpge_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(v + i + 32 * k), magnitude), least)}
           << 32 * k;
    found += static_cast<uint64_t>(__builtin_popcountll(m));
  }
  for (; i < n; ++i) found += (v[i] & 0x7fffu) >= low;
  return found;
}

}  // namespace

const select_kernels select_avx512[2] = {{collect<uint32_t>, magnitudes<uint32_t>, cut<uint32_t>, count_32},
                                         {collect<uint16_t>, magnitudes<uint16_t>, cut<uint16_t>, count_16}};

}  // namespace dr
DR_ISA_END
#endif
