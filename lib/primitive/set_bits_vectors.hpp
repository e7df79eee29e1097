// The positions of the set bits in words of 64, in a version for every instruction set: for masks that usually have
// few, where a branch on their number would be mispredicted.
#pragma once

#include <cstdint>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr {

// Writes first + i for every set bit i of a mask and returns their number; `to` has space for 64, whatever the mask.
// spare: entries that are written past the last one.
struct set_bits_scalar {
  static constexpr unsigned spare = 0;
  static unsigned put(uint64_t mask, uint32_t first, uint16_t* to) {
    unsigned n = 0;
    for (; mask; mask &= mask - 1) to[n++] = static_cast<uint16_t>(first + countr_zero(mask));
    return n;
  }
};

#if DR_X86
DR_AVX2_BEGIN
struct set_bits_avx2 {
  static constexpr unsigned spare = 2;
  static unsigned put(uint64_t mask, uint32_t first, uint16_t* to) {
    const auto n = static_cast<unsigned>(_mm_popcnt_u64(mask));
    for (unsigned k = 0; k < 2; ++k, mask &= mask - 1) to[k] = static_cast<uint16_t>(first + _tzcnt_u64(mask));
    for (unsigned k = 2; mask; ++k, mask &= mask - 1) to[k] = static_cast<uint16_t>(first + _tzcnt_u64(mask));
    return n;
  }
};
DR_ISA_END

DR_AVX512_BEGIN
// (Compressing stores are slow on some CPUs: whole vectors are stored, and the next store overwrites the excess.)
struct set_bits_avx512 {
  static __m512i from(uint32_t first) {
    const __m512i pairs =
        _mm512_setr_epi32(0x10000, 0x30002, 0x50004, 0x70006, 0x90008, 0xb000a, 0xd000c, 0xf000e, 0x110010, 0x130012,
                          0x150014, 0x170016, 0x190018, 0x1b001a, 0x1d001c, 0x1f001e);
    return _mm512_add_epi16(pairs, _mm512_set1_epi16(static_cast<short>(first)));
  }
  // put for a mask of at most 32 bits.
  static unsigned put_half(uint64_t mask, uint32_t first, uint16_t* to) {
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi16(static_cast<__mmask32>(mask), from(first)));
    return static_cast<unsigned>(_mm_popcnt_u64(mask));
  }
  static unsigned put(uint64_t mask, uint32_t first, uint16_t* to) {
    const unsigned low = put_half(mask & 0xffffffff, first, to);
    return low + put_half(mask >> 32, first + 32, to + low);
  }
};
DR_ISA_END
#endif

}  // namespace dr
