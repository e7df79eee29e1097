#include "codecs/family/classes/class_walk.hpp"

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
