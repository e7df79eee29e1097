// Split Golomb of levels, 32 at a time, by AVX2 and BMI2: eight v's are a pext or pdep, eight unary codes a pext.
// Divisors above 256 and quotients that are long are scalar's.
#include "codecs/family/levels/split_levels.hpp"
#include "primitive/unary_vectors.hpp"

#if DR_X86

namespace dr {

DR_AVX2_BEGIN

namespace {

constexpr uint32_t bytes_divisor_max = 256;  // remainders are bytes
constexpr uint64_t each_byte = 0x0101010101010101;

// Positions of the ones of a byte, as bytes.
struct ones_table {
  uint64_t of[256]{};
  constexpr ones_table() {
    for (unsigned byte = 0; byte < 256; ++byte)
      for (unsigned bit = 0, found = 0; bit < 8; ++bit)
        if (byte >> bit & 1) of[byte] |= uint64_t{bit} << 8 * found++;
  }
};
constexpr ones_table ones;

// Low bytes of 32 numbers below 256.
inline __m256i bytes_of(__m256i a, __m256i b) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), _MM_SHUFFLE(3, 1, 2, 0));
}
inline __m256i not_below(__m256i a, __m256i b) { return _mm256_cmpeq_epi8(_mm256_max_epu8(a, b), a); }

}  // namespace

uint8_t* split_levels_encode_avx2(const uint16_t* levels, size_t n, level_code code, uint8_t* out) {
  if (code.divisor > bytes_divisor_max) return split_levels_encode_scalar(levels, n, code, out);
  uint8_t unary_bytes[level_string_max], extra_bytes[level_block / 8 + level_slack];
  alignas(32) uint8_t quotient[level_block];
  bit_appender unary{unary_bytes}, extras{extra_bytes};
  const unsigned k = code.low_bits;
  const bool divides = code.divisor > 1;
  const uint64_t low_mask = each_byte * ((1u << k) - 1);
  const __m256i m = _mm256_set1_epi16(static_cast<short>(code.divisor));
  const __m256i inverse = _mm256_set1_epi16(static_cast<short>(divides ? 65536 / code.divisor : 0));
  const __m256i s = _mm256_set1_epi8(static_cast<char>(code.short_low));
  alignas(32) uint16_t last[32] = {};
  alignas(32) uint64_t eights[4];
  for (size_t i = 0; i < n; i += 32) {
    const uint16_t* from = levels + i;
    const size_t length = n - i < 32 ? n - i : 32;
    if (length < 32) {
      std::memcpy(last, from, 2 * length);
      from = last;
    }
    __m256i q[2], r[2];
    for (int h = 0; h < 2; ++h) {
      const __m256i level = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 16 * h));
      q[h] = level;
      if (!divides) continue;
      // ⌊65536 / M⌋ / 65536 is less than 1 / M by less than 1 / 65536, so the product is the quotient or one less.
      q[h] = _mm256_mulhi_epu16(level, inverse);
      r[h] = _mm256_sub_epi16(level, _mm256_mullo_epi16(q[h], m));
      const __m256i less = _mm256_cmpeq_epi16(_mm256_max_epu16(r[h], m), r[h]);
      q[h] = _mm256_sub_epi16(q[h], less);
      r[h] = _mm256_sub_epi16(r[h], _mm256_and_si256(less, m));
    }
    if (divides) {
      const auto valid = static_cast<uint32_t>(~uint64_t{0} >> (64 - length));
      const __m256i r8 = bytes_of(r[0], r[1]), sum = _mm256_add_epi8(r8, s), longer = not_below(r8, s);
      const uint32_t some = static_cast<uint32_t>(_mm256_movemask_epi8(longer)) & valid;
      if (k) {
        const __m256i half = _mm256_and_si256(_mm256_srli_epi16(sum, 1), _mm256_set1_epi8(127));
        _mm256_store_si256(reinterpret_cast<__m256i*>(eights), _mm256_blendv_epi8(r8, half, longer));
        for (unsigned j = 0; j < 4; ++j) {
          const uint64_t packed = _pext_u64(eights[j], low_mask);
          std::memcpy(out + j * k, &packed, 8);
        }
        // Beyond the length levels are 0, and so is v: r = 0 < s, or (0 + 0) / 2.
        out += length == 32 ? 4 * k : (length * k + 7) / 8;
      }
      const auto odd = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(sum, 7)));
      extras.put(_pext_u32(odd, some), static_cast<unsigned>(_mm_popcnt_u32(some)));
    }
    // 255 for what is more.
    _mm256_store_si256(
        reinterpret_cast<__m256i*>(quotient + i),
        bytes_of(_mm256_min_epu16(q[0], _mm256_set1_epi16(255)), _mm256_min_epu16(q[1], _mm256_set1_epi16(255))));
  }
  put_quotients(unary, quotient, n, [&](size_t i) { return levels[i] / code.divisor; });
  return put_level_strings(out, unary_bytes, unary.finish(), extra_bytes, extras.finish());
}

bool split_levels_decode_avx2(const uint8_t* body, size_t size, size_t n, level_code code, uint16_t* levels) {
  const auto scalar = [&] { return split_levels_decode_scalar(body, size, n, code, levels); };
  if (code.divisor > bytes_divisor_max) return scalar();
  const unsigned k = code.low_bits;
  const size_t low_total = k * n, low_size = (low_total + 7) / 8;
  if (low_size > size || (low_total % 8 && body[low_total / 8] >> low_total % 8)) return false;
  const uint8_t* const unary = body + low_size;
  const size_t unary_max = size - low_size;

  // Low bytes of the ones' positions; quotients are below 256 unless three words in sequence have none.
  uint8_t stored[1 + level_block + 64 + 32];  // (of 64 ones that follow the last but one of n)
  uint8_t* const position = stored + 1;
  position[-1] = 0xff;
  size_t at = 0, found = 0;
  unsigned empty = 0;
  do {
    if (at >= unary_max) return false;
    uint64_t word;
    std::memcpy(&word, unary + at, 8);
    uint64_t base = (8 * at & 255) * each_byte;  // plus 8 per byte: no carry
    at += 8;
    empty = word ? 0 : empty + 1;
    if (empty == 3) return scalar();
    for (unsigned j = 0; j < 8; ++j, word >>= 8, base += 8 * each_byte) {
      store(position + found, ones.of[word & 255] + base);
      found += static_cast<size_t>(_mm_popcnt_u64(word & 255));
    }
  } while (found < n);
  const size_t unary_bits = 8 * (at - 8) + (position[n - 1] & 63u) + 1, unary_size = (unary_bits + 7) / 8;
  if (unary_size > unary_max || (unary_bits % 8 && unary[unary_bits / 8] >> unary_bits % 8)) return false;
  const uint8_t* const extra = unary + unary_size;
  const size_t extra_max = unary_max - unary_size;
  const bool divides = code.divisor > 1;

  const __m256i one = _mm256_set1_epi8(1), m = _mm256_set1_epi16(static_cast<short>(code.divisor));
  const __m256i s = _mm256_set1_epi8(static_cast<char>(code.short_low));
  // Byte j of the mask's expansion looks at bit j % 8 of byte j / 8.
  const __m256i byte_of =
      _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const uint64_t low_mask = each_byte * ((1u << k) - 1);
  const uint8_t* low = body;
  size_t extra_bits = 0;
  for (size_t i = 0; i < n; i += 32) {
    const size_t length = n - i < 32 ? n - i : 32;
    const auto load = [&](const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); };
    const __m256i q = _mm256_sub_epi8(_mm256_sub_epi8(load(position + i), load(position + i - 1)), one);
    __m256i r = _mm256_setzero_si256();
    if (divides) {
      const auto eight = [&](unsigned j) {
        return static_cast<long long>(_pdep_u64(dr::load<uint64_t>(low + j * k), low_mask));
      };
      const __m256i v = _mm256_set_epi64x(eight(3), eight(2), eight(1), eight(0)), longer = not_below(v, s);
      low += 4 * k;
      const uint32_t some =
          static_cast<uint32_t>(_mm256_movemask_epi8(longer)) & static_cast<uint32_t>(~uint64_t{0} >> (64 - length));
      // The body is followed by level_slack zeros, and reads do not go beyond them.
      if (extra_bits / 8 > extra_max) return false;
      uint64_t next;
      std::memcpy(&next, extra + extra_bits / 8, 8);
      const uint32_t odd = _pdep_u32(static_cast<uint32_t>(next >> extra_bits % 8), some);
      extra_bits += static_cast<size_t>(_mm_popcnt_u32(some));
      const __m256i bits = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(odd)), byte_of);
      const __m256i is_odd = _mm256_cmpeq_epi8(_mm256_and_si256(bits, bit_of), bit_of);
      const __m256i twice = _mm256_sub_epi8(_mm256_add_epi8(v, v), s);
      r = _mm256_sub_epi8(_mm256_blendv_epi8(v, twice, longer), is_odd);
    }
    const auto level = [&](__m128i q8, __m128i r8) {
      return _mm256_add_epi16(_mm256_mullo_epi16(_mm256_cvtepu8_epi16(q8), m), _mm256_cvtepu8_epi16(r8));
    };
    const auto put = [&](uint16_t* to, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); };
    put(levels + i, level(_mm256_castsi256_si128(q), _mm256_castsi256_si128(r)));
    put(levels + i + 16, level(_mm256_extracti128_si256(q, 1), _mm256_extracti128_si256(r, 1)));
  }
  return extra_max == (extra_bits + 7) / 8 && !(extra_bits % 8 && extra[extra_bits / 8] >> extra_bits % 8);
}

DR_ISA_END

}  // namespace dr

#endif
