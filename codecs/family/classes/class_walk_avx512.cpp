#include "codecs/family/classes/class_walk.hpp"
#include "primitive/set_bits_vectors.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {
namespace {

struct masks {
  static uint64_t at_least(const uint8_t* keys, uint8_t threshold) {
    return _mm512_cmpge_epu8_mask(_mm512_load_si512(keys), _mm512_set1_epi8(static_cast<char>(threshold)));
  }
  static uint64_t nth(uint64_t mask, unsigned n) { return _pdep_u64(uint64_t{1} << n, mask); }
  static unsigned ones(uint64_t mask) { return static_cast<unsigned>(_mm_popcnt_u64(mask)); }
  static uint32_t take(uint64_t* mask, const uint64_t* more, uint16_t* before) {
    const __m512i zero = _mm512_setzero_si512(), last = _mm512_set1_epi64(7);
    __m512i sum = zero;  // of all groups so far, in all lanes
    for (uint32_t g = 0; g < 64; g += 8) {
      __m512i m = _mm512_load_si512(mask + g);
      if (more) {
        m = _mm512_andnot_si512(_mm512_load_si512(more + g), m);
        _mm512_store_si512(mask + g, m);
      }
      const __m512i ones = _mm512_popcnt_epi64(m);
      __m512i up_to = _mm512_add_epi64(ones, _mm512_alignr_epi64(ones, zero, 7));
      up_to = _mm512_add_epi64(up_to, _mm512_alignr_epi64(up_to, zero, 6));
      up_to = _mm512_add_epi64(up_to, _mm512_alignr_epi64(up_to, zero, 4));
      const __m512i to = _mm512_add_epi64(sum, _mm512_sub_epi64(up_to, ones));
      _mm_store_si128(reinterpret_cast<__m128i*>(before + g), _mm512_cvtepi64_epi16(to));
      sum = _mm512_add_epi64(sum, _mm512_permutexvar_epi64(last, up_to));
    }
    return static_cast<uint32_t>(_mm_cvtsi128_si64(_mm512_castsi512_si128(sum)));
  }
  static unsigned last_group(const uint16_t* before, uint32_t rank) {
    const __m512i r = _mm512_set1_epi16(static_cast<short>(rank));
    return ones(_mm512_cmple_epu16_mask(_mm512_load_si512(before), r)) +
           ones(_mm512_cmple_epu16_mask(_mm512_load_si512(before + 32), r)) - 1;
  }
  using bits = set_bits_avx512;
};

}  // namespace
}  // namespace dr

#include "codecs/family/classes/class_walk_loops.hpp"

namespace dr {

void rank_avx512(const rank_call& c) { rank_with(c); }
uint64_t select_avx512(const select_call& c) { return select_with(c); }

}  // namespace dr
DR_ISA_END
#endif
