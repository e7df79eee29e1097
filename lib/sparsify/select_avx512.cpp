#include "sparsify/select_kernel.hpp"

#if DR_X86
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of the intrinsics' own undefined registers (gcc PR 105593)
#endif
DR_AVX512_BEGIN
namespace dr {
namespace {

inline __mmask16 first_lanes(uint64_t n) { return static_cast<__mmask16>(n < 16 ? (1u << n) - 1 : 0xffff); }
inline __m512i ascending() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

// The positions of the masks that are not zero: at r/d = 1 % these are the majority, and a branch would be
// mispredicted.
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

template <class Bits>
struct lanes;
template <>
struct lanes<uint32_t> {
  using mask = __mmask16;
  static __m512i load(const uint32_t* v) { return _mm512_loadu_si512(v); }
  static __m512i load(const uint32_t* v, mask there) { return _mm512_maskz_loadu_epi32(there, v); }
  static mask at_least(__m512i x, uint32_t low) {
    return _mm512_cmpge_epi32_mask(_mm512_and_si512(x, _mm512_set1_epi32(0x7fffffff)),
                                   _mm512_set1_epi32(static_cast<int>(low)));
  }
  static void store(mask m, __m512i x, uint32_t first, uint32_t* positions, uint32_t* out) {
    const __m512i at = _mm512_add_epi32(ascending(), _mm512_set1_epi32(static_cast<int>(first)));
    _mm512_storeu_si512(positions, _mm512_maskz_compress_epi32(m, at));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(m, x));
  }
};
template <>
struct lanes<uint16_t> {
  using mask = __mmask32;
  static __m512i load(const uint16_t* v) { return _mm512_loadu_si512(v); }
  static __m512i load(const uint16_t* v, mask there) { return _mm512_maskz_loadu_epi16(there, v); }
  static mask at_least(__m512i x, uint32_t low) {
    return _mm512_cmpge_epi16_mask(_mm512_and_si512(x, _mm512_set1_epi16(0x7fff)),
                                   _mm512_set1_epi16(static_cast<short>(low)));
  }
  static void store(mask m, __m512i x, uint32_t first, uint32_t* positions, uint16_t* out) {
    const __m512i at = _mm512_add_epi32(ascending(), _mm512_set1_epi32(static_cast<int>(first)));
    const auto m0 = static_cast<__mmask16>(m), m1 = static_cast<__mmask16>(m >> 16);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi16(m, x));
    _mm512_storeu_si512(positions, _mm512_maskz_compress_epi32(m0, at));
    _mm512_storeu_si512(positions + __builtin_popcount(m0),
                        _mm512_maskz_compress_epi32(m1, _mm512_add_epi32(at, _mm512_set1_epi32(16))));
  }
};

template <class Bits>
inline void compare_chunk(const Bits* v, uint32_t low, typename lanes<Bits>::mask* masks) {
  for (uint32_t i = 0; i < select_chunk / 64; ++i)
    masks[i] = lanes<Bits>::at_least(lanes<Bits>::load(v + 64 / sizeof(Bits) * i), low);
}

template <class Bits>
inline uint32_t collect_chunk(const Bits* v, const typename lanes<Bits>::mask* masks, uint32_t first,
                              uint32_t* positions, Bits* out) {
  constexpr uint32_t vectors = select_chunk / 64, each = 64 / sizeof(Bits);
  uint16_t list[vectors + 32];
  const uint32_t some = list_nonzero(masks, vectors, list);
  uint32_t found = 0;
  for (uint32_t j = 0; j < some; ++j) {
    const uint32_t i = list[j];
    lanes<Bits>::store(masks[i], lanes<Bits>::load(v + each * i), first + each * i, positions + found, out + found);
    found += static_cast<uint32_t>(__builtin_popcount(masks[i]));
  }
  return found;
}

template <class Bits>
uint32_t collect(const void* values, uint32_t n, uint32_t low, uint32_t first, uint32_t* positions, void* selected) {
  using l = lanes<Bits>;
  if (low > (sizeof(Bits) == 4 ? 0x7fffffff : 0x7fff)) return 0;
  constexpr uint32_t chunk = select_chunk / sizeof(Bits), each = 64 / sizeof(Bits);
  const auto* v = static_cast<const Bits*>(values);
  auto* out = static_cast<Bits*>(selected);
  uint32_t found = 0, i = 0;
  // A chunk is collected after the next one is compared: its masks have reached the cache by then, and mispredicted
  // branches do not stall the memory.
  alignas(64) typename l::mask masks[2][select_chunk / 64];
  if (n >= chunk) compare_chunk(v, low, masks[0]);
  for (unsigned turn = 0; i + chunk <= n; i += chunk, turn ^= 1) {
    if (i + 2 * chunk <= n) compare_chunk(v + i + chunk, low, masks[turn ^ 1]);
    found += collect_chunk(v + i, masks[turn], first + i, positions + found, out + found);
  }
  for (; i < n; i += each) {
    const auto there = static_cast<typename l::mask>(n - i < each ? (1u << (n - i)) - 1 : ~0u);
    const __m512i x = l::load(v + i, there);
    const typename l::mask m = l::at_least(x, low);
    l::store(m, x, first + i, positions + found, out + found);
    found += static_cast<uint32_t>(__builtin_popcount(m));
  }
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
uint64_t cut(uint64_t from, uint64_t n, uint32_t above, uint64_t& ties, uint32_t* positions, void* selected) {
  auto* out = static_cast<Bits*>(selected);
  const __m512i edge = _mm512_set1_epi32(static_cast<int>(above));
  uint64_t found = 0, left = ties;
  for (uint64_t i = from; i < from + n; i += 16) {
    const __mmask16 there = first_lanes(from + n - i);
    const __m512i key = load_keys(out + i, there), at = _mm512_maskz_loadu_epi32(there, positions + i);
    const uint32_t equal = _mm512_mask_cmpeq_epi32_mask(there, key, edge);
    const uint32_t taken = _pdep_u32(left < 16 ? (1u << left) - 1 : 0xffff, equal);
    left -= static_cast<uint64_t>(__builtin_popcount(taken));
    const auto m = static_cast<__mmask16>(_mm512_mask_cmpgt_epi32_mask(there, key, edge) | taken);
    // Not past the pairs just read: the following ones have not been processed.
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

// gcc 12 at -O1 under UBSan stores 32 bits of a mask to memory and reloads 64, unless it is in a general register
// between.
inline uint64_t wide_mask(__mmask32 m) {
  uint32_t number = m;
  __asm__("" : "+r"(number));
  return number;
}

constexpr uint64_t aligned_from =
    4096;  // values; of fewer, those before the first line cost more than lines across others

uint64_t count_32(const void* values, uint64_t n, uint32_t low) {
  if (low > 0x7fffffff) return 0;
  const auto* v = static_cast<const uint32_t*>(values);
  const __m512i least = _mm512_set1_epi32(static_cast<int>(low)), magnitude = _mm512_set1_epi32(0x7fffffff);
  uint64_t found = 0, i = 0;
  for (; n >= aligned_from && reinterpret_cast<uintptr_t>(v + i) % 64; ++i) found += (v[i] & 0x7fffffff) >= low;
  for (; i + 64 <= n; i += 64) {
    uint64_t m = 0;
    for (unsigned k = 0; k < 4; ++k)
      m |= wide_mask(_mm512_cmpge_epi32_mask(_mm512_and_si512(_mm512_loadu_si512(v + i + 16 * k), magnitude), least))
           << 16 * k;
    found += static_cast<uint64_t>(__builtin_popcountll(m));
  }
  for (; i < n; i += 16) {
    const __mmask16 there = first_lanes(n - i);
    found += static_cast<uint64_t>(__builtin_popcount(_mm512_mask_cmpge_epi32_mask(
        there, _mm512_and_si512(_mm512_maskz_loadu_epi32(there, v + i), magnitude), least)));
  }
  return found;
}

uint64_t count_16(const void* values, uint64_t n, uint32_t low) {
  if (low > 0x7fff) return 0;
  const auto* v = static_cast<const uint16_t*>(values);
  const __m512i least = _mm512_set1_epi16(static_cast<short>(low)), magnitude = _mm512_set1_epi16(0x7fff);
  uint64_t found = 0, i = 0;
  for (; n >= aligned_from && reinterpret_cast<uintptr_t>(v + i) % 64; ++i) found += (v[i] & 0x7fffu) >= low;
  for (; i + 64 <= n; i += 64) {
    uint64_t m = 0;
    for (unsigned k = 0; k < 2; ++k)
      m |= wide_mask(_mm512_cmpge_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(v + i + 32 * k), magnitude), least))
           << 32 * k;
    found += static_cast<uint64_t>(__builtin_popcountll(m));
  }
  for (; i < n; i += 32) {
    const auto there = static_cast<__mmask32>(n - i < 32 ? (1u << (n - i)) - 1 : ~0u);
    found += static_cast<uint64_t>(__builtin_popcount(_mm512_mask_cmpge_epi16_mask(
        there, _mm512_and_si512(_mm512_maskz_loadu_epi16(there, v + i), magnitude), least)));
  }
  return found;
}

// Four vectors at a time. A counter has as many bits as a value and counts up to 2^15.
template <class Bits>
uint64_t survey(const void* values, uint64_t n, uint32_t& largest) {
  constexpr bool wide = sizeof(Bits) == 4;
  constexpr uint64_t each = 64 / sizeof(Bits), counted_max = each << 15;
  const auto* v = static_cast<const Bits*>(values);
  const __m512i magnitude = wide ? _mm512_set1_epi32(0x7fffffff) : _mm512_set1_epi16(0x7fff);
  const __m512i one = wide ? _mm512_set1_epi32(1) : _mm512_set1_epi16(1);
  __m512i top[4] = {};
  uint64_t nonzeros = 0;
  alignas(64) Bits lanes[each];
  for (; n >= 4 * each;) {
    const uint64_t part = (n < counted_max ? n : counted_max) / (4 * each) * (4 * each);
    __m512i counts[2] = {};
    for (uint64_t i = 0; i < part; i += 4 * each)
#pragma GCC unroll 4
      for (unsigned k = 0; k < 4; ++k) {
        _mm_prefetch(reinterpret_cast<const char*>(v + i + k * each) + 4096, _MM_HINT_T0);  // (across ends of pages)
        const __m512i m = _mm512_and_si512(_mm512_loadu_si512(v + i + k * each), magnitude);
        top[k] = wide ? _mm512_max_epu32(top[k], m) : _mm512_max_epu16(top[k], m);
        const __m512i is = wide ? _mm512_min_epu32(m, one) : _mm512_min_epu16(m, one);
        counts[k % 2] = wide ? _mm512_add_epi32(counts[k % 2], is) : _mm512_add_epi16(counts[k % 2], is);
      }
    for (const __m512i& some : counts) {
      _mm512_store_si512(lanes, some);
      for (const Bits lane : lanes) nonzeros += lane;
    }
    v += part;
    n -= part;
  }
  for (const __m512i& some : top) {
    _mm512_store_si512(lanes, some);
    for (const Bits lane : lanes) largest = lane > largest ? lane : largest;
  }
  return nonzeros + survey_with<Bits>(v, n, largest);
}

}  // namespace

const select_kernels select_avx512[2] = {
    {collect<uint32_t>, magnitudes<uint32_t>, cut<uint32_t>, count_32, survey<uint32_t>},
    {collect<uint16_t>, magnitudes<uint16_t>, cut<uint16_t>, count_16, survey<uint16_t>}};

}  // namespace dr
DR_ISA_END
#endif
