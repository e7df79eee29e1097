#include "codecs/family/classes/class_walk.hpp"

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
