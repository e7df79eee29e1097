#include "codecs/family/classes/class_walk.hpp"
#include "primitive/set_bits_vectors.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

struct masks {
  static uint32_t half(const uint8_t* keys, __m256i threshold) {
    const __m256i k = _mm256_load_si256(reinterpret_cast<const __m256i*>(keys));
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(k, threshold), k)));
  }
  static uint64_t at_least(const uint8_t* keys, uint8_t threshold) {
    const __m256i t = _mm256_set1_epi8(static_cast<char>(threshold));
    return half(keys, t) | uint64_t{half(keys + 32, t)} << 32;
  }
  static uint64_t nth(uint64_t mask, unsigned n) { return _pdep_u64(uint64_t{1} << n, mask); }
  static unsigned ones(uint64_t mask) { return static_cast<unsigned>(_mm_popcnt_u64(mask)); }
  static uint32_t take(uint64_t* mask, const uint64_t* more, uint16_t* before) {
    return take_by_group<masks>(mask, more, before);
  }
  static unsigned last_group(const uint16_t* before, uint32_t rank) {
    const __m256i r = _mm256_set1_epi16(static_cast<short>(rank));
    const auto more = [&](unsigned k) {
      return _mm256_cmpgt_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(before + k)), r);
    };
    const auto low = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(more(0), more(16))));
    const auto high = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(more(32), more(48))));
    return 63 - ones(low | uint64_t{high} << 32);
  }
  using bits = set_bits_avx2;
};

}  // namespace
}  // namespace dr

#include "codecs/family/classes/class_walk_loops.hpp"

namespace dr {

void rank_avx2(const rank_call& c) { rank_with(c); }
uint64_t select_avx2(const select_call& c) { return select_with(c); }

}  // namespace dr
DR_ISA_END
#endif
