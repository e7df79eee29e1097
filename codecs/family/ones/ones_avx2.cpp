// Ones, 32 bits at a time; listed by a table per byte.
#include <array>

#include "codecs/family/ones/ones.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

namespace {

// The positions of a byte's ones, as bytes.
constexpr auto byte_ones = [] {
  std::array<uint64_t, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte)
    for (unsigned b = 0, k = 0; b < 8; ++b)
      if (byte >> b & 1) table[byte] |= uint64_t{b} << 8 * k++;
  return table;
}();

inline uint32_t gather(uint8_t* marks) {
  auto* const from = reinterpret_cast<__m256i*>(marks);
  const auto word = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_load_si256(from)));
  _mm256_store_si256(from, _mm256_setzero_si256());
  return word;
}

}  // namespace

template <bool ranked>
void set_ones_avx2(const uint32_t* x, uint64_t n, unsigned shift, uint8_t* out, uint64_t size) {
  set_ones_with<ranked, uint32_t, gather>(x, n, shift, out, size);
}

uint64_t count_ones_avx2(const uint8_t* in, uint64_t size) {
  uint64_t ones[4] = {}, at = 0;
  for (; at + 32 <= size; at += 32)
    for (unsigned k = 0; k < 4; ++k) {
      uint64_t word;
      std::memcpy(&word, in + at + 8 * k, 8);
      ones[k] += static_cast<uint64_t>(_mm_popcnt_u64(word));
    }
  for (; at < size; ++at) ones[0] += static_cast<uint64_t>(_mm_popcnt_u32(in[at]));
  return ones[0] + ones[1] + ones[2] + ones[3];
}

template <bool ranked>
uint64_t list_ones_avx2(const uint8_t* in, uint64_t begin, uint64_t end, uint64_t i, uint64_t n, uint32_t* out) {
  const __m256i lanes = ranked ? _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7) : _mm256_setzero_si256();
  uint64_t at = begin;
  // A word writes at most 64 positions, and 8 past its last.
  for (; at + 8 <= end && i + 72 <= n; at += 8) {
    uint64_t word;
    std::memcpy(&word, in + at, 8);
    for (uint64_t base = 8 * at; word; word >>= 8, base += 8) {
      const auto byte = static_cast<uint8_t>(word);
      const __m256i found = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(byte_ones[byte])));
      const __m256i first = _mm256_set1_epi32(static_cast<int>(base - (ranked ? i : 0)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_sub_epi32(_mm256_add_epi32(found, first), lanes));
      i += static_cast<uint64_t>(_mm_popcnt_u32(byte));
    }
  }
  return list_ones_scalar<ranked>(in, at, end, i, n, out);
}

template void set_ones_avx2<false>(const uint32_t*, uint64_t, unsigned, uint8_t*, uint64_t);
template void set_ones_avx2<true>(const uint32_t*, uint64_t, unsigned, uint8_t*, uint64_t);
template uint64_t list_ones_avx2<false>(const uint8_t*, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t*);
template uint64_t list_ones_avx2<true>(const uint8_t*, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t*);

}  // namespace dr
DR_ISA_END
#endif
