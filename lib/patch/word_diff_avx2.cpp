#include "patch/word_diff.hpp"
#include "primitive/word.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

template <class Bits>
uint64_t diff(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions, std::byte* old,
              std::byte* values) {
  const auto *const a = reinterpret_cast<const Bits*>(d.base) + first, *const b =
                                                                           reinterpret_cast<const Bits*>(d.now) + first;
  auto *const x = reinterpret_cast<Bits*>(old), *const y = reinterpret_cast<Bits*>(values);
  constexpr uint64_t step = 32 / sizeof(Bits);
  uint64_t found = 0;
  for (uint64_t i = 0; i < n; i += step) {
    const __m256i p = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i));
    const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i));
    const __m256i same = sizeof(Bits) == 8   ? _mm256_cmpeq_epi64(p, q)
                         : sizeof(Bits) == 4 ? _mm256_cmpeq_epi32(p, q)
                         : sizeof(Bits) == 2 ? _mm256_cmpeq_epi16(p, q)
                                             : _mm256_cmpeq_epi8(p, q);
    uint32_t differ = ~static_cast<uint32_t>(_mm256_movemask_epi8(same));
    if (!differ) continue;
    // One bit a word.
    if (sizeof(Bits) == 8) differ &= 0x01010101;
    if (sizeof(Bits) == 4) differ &= 0x11111111;
    if (sizeof(Bits) == 2) differ &= 0x55555555;
    if (!positions) {
      found += static_cast<unsigned>(_mm_popcnt_u32(differ));
      continue;
    }
    for (; differ; differ &= differ - 1, ++found) {
      const uint64_t k = i + static_cast<unsigned>(_tzcnt_u32(differ)) / sizeof(Bits);
      positions[found] = at + static_cast<uint32_t>(k);
      x[found] = a[k];
      y[found] = b[k];
    }
  }
  return found;
}

}  // namespace

uint64_t diff_words_avx2(const word_diff& d, uint64_t first, uint64_t n, uint32_t at, uint32_t* positions,
                         std::byte* old, std::byte* values) {
  return with_word(d.size, [&](auto bits) { return diff<decltype(bits)>(d, first, n, at, positions, old, values); });
}

}  // namespace dr
DR_ISA_END
#endif
