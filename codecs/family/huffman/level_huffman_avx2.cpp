// BMI2's shifts: several words are joined in a register before they are appended; decoding is scalar's.
#include "codecs/family/huffman/level_huffman.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {

namespace {

// Words at the top of 64 bits, their lengths in the lowest eight (as in Zstandard): a shift uses the lower six
// bits of its count, and lengths add up in a sum of whole entries. 56 bits of words above are not touched by what that
// leaves below.
struct top_words {
  uint64_t of[level_huffman_alphabet];

  explicit top_words(const level_huffman_code& code) {
    for (unsigned i = 0; i < level_huffman_alphabet; ++i) {
      const unsigned length = code.words[i] >> 12;
      of[i] = length ? uint64_t{code.words[i] & 0xfffu} << (64 - length) | length : 0;
    }
  }
  template <unsigned some>
  [[gnu::always_inline]] void put(const uint8_t* levels, bit_appender& bits) const {
    uint64_t words = 0, length = 0;
    for (unsigned j = 0; j < some; ++j) {
      const uint64_t word = of[levels[j]];
      words = words >> (word & 63) | word;
      length += word;
    }
    bits.put(words >> ((0 - length) & 63), length & 63);
  }
  template <unsigned some>
  [[gnu::always_inline]] void put_all(const uint8_t* levels, size_t n, bit_appender& bits) const {
    size_t i = 0;
    for (; i + some <= n; i += some) put<some>(levels + i, bits);
    for (; i < n; ++i) put<1>(levels + i, bits);
  }
};

}  // namespace

uint8_t* level_huffman_encode_avx2(const uint8_t* levels, size_t n, const level_huffman_code& code, uint8_t* out) {
  const top_words words(code);
  const bool is_short = code.longest() <= 7;
  const size_t strings = (n + level_huffman_string - 1) / level_huffman_string;
  uint8_t* size = out;
  out += 2 * (strings - 1);
  for (size_t begin = 0; begin < n; begin += level_huffman_string) {
    const size_t length = n - begin < level_huffman_string ? n - begin : level_huffman_string;
    bit_appender bits{out};
    if (is_short)
      words.put_all<8>(levels + begin, length, bits);
    else
      words.put_all<5>(levels + begin, length, bits);
    uint8_t* const behind = bits.finish();
    if (begin + length < n) {
      store(size, static_cast<uint16_t>(behind - out));
      size += 2;
    }
    out = behind;
  }
  return out;
}

size_t level_huffman_decode_avx2(const uint8_t* body, size_t size, size_t n, const level_huffman_table& table,
                                 uint8_t* levels) {
  return level_huffman_decode_with(body, size, n, table, levels);
}

}  // namespace dr
DR_ISA_END
#endif
