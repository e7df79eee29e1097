// StreamVByte with deltas (Lemire, Kurz, Rupp 2018): Debian's library is built without SSSE3 and loops over bytes,
// which is not a fair peer. This writes the same bytes as streamvbyte_delta_encode with previous 0; the benchmark
// checks that where both are available.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>

namespace dr::bench::streamvbyte {

struct tables {
  alignas(16) std::array<std::array<uint8_t, 16>, 256> spread{};  // bytes of the stream -> four u32
  alignas(16) std::array<std::array<uint8_t, 16>, 256> pack{};    // and back
  std::array<uint8_t, 256> length{};

  constexpr tables() {
    for (unsigned control = 0; control < 256; ++control) {
      uint8_t at = 0;
      for (auto& p : pack[control]) p = 0x80;
      for (unsigned k = 0; k < 4; ++k) {
        const unsigned bytes = (control >> (2 * k) & 3) + 1;
        for (unsigned b = 0; b < 4; ++b) {
          spread[control][4 * k + b] = b < bytes ? at : 0x80;
          if (b < bytes) pack[control][at++] = static_cast<uint8_t>(4 * k + b);
        }
      }
      length[control] = at;
    }
  }
};
inline constexpr tables table;

inline bool usable() { return __builtin_cpu_supports("avx2"); }

// Reads and writes up to 16 bytes past the end. count is a multiple of 8 (decode: of 4); the caller codes the
// remainder.
__attribute__((target("avx2"))) inline uint8_t* encode_eights(const uint32_t* in, size_t count, uint8_t* control,
                                                              uint8_t* data) {
  const __m128i ones = _mm_set1_epi8(1), high = _mm_set1_epi16(0x7f00);
  const auto vector = [](const auto* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  __m128i before = _mm_setzero_si128();
  for (size_t i = 0; i < count; i += 8) {
    const __m128i x = vector(in + i), y = vector(in + i + 4);
    const __m128i a = _mm_sub_epi32(x, _mm_alignr_epi8(x, before, 12)), b = _mm_sub_epi32(y, _mm_alignr_epi8(y, x, 12));
    before = y;
    // Two bits a gap, the bytes it needs less one: a lane of 16 bits gets the top bits of its two bytes by saturation (upstream's way).
    const __m128i used = _mm_packus_epi16(_mm_min_epu8(a, ones), _mm_min_epu8(b, ones));
    const auto codes = static_cast<uint32_t>(_mm_movemask_epi8(_mm_adds_epu16(_mm_min_epi16(used, ones), high)));
    std::memcpy(control, &codes, 2);
    control += 2;
    for (const auto& [gaps, code] : {std::pair{a, codes & 255}, std::pair{b, codes >> 8}}) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(data), _mm_shuffle_epi8(gaps, vector(table.pack[code].data())));
      data += table.length[code];
    }
  }
  return data;
}

__attribute__((target("avx2"))) inline const uint8_t* decode_fours(const uint8_t* control, const uint8_t* data,
                                                                   uint32_t* out, size_t count) {
  __m128i sum = _mm_setzero_si128();
  for (size_t i = 0; i < count; i += 4) {
    const uint8_t code = *control++;
    const __m128i shuffle = _mm_load_si128(reinterpret_cast<const __m128i*>(table.spread[code].data()));
    __m128i x = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)), shuffle);
    data += table.length[code];
    x = _mm_add_epi32(x, _mm_slli_si128(x, 4));
    x = _mm_add_epi32(x, _mm_slli_si128(x, 8));
    sum = _mm_add_epi32(x, _mm_shuffle_epi32(sum, 0xff));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), sum);
  }
  return data;
}

inline size_t encode(const uint32_t* in, size_t count, uint8_t* dst) {
  const size_t eights = count / 8 * 8;
  uint8_t* control = dst;
  uint8_t* data = dst + (count + 3) / 4;
  data = encode_eights(in, eights, control, data);
  for (size_t i = eights; i < count; ++i) {
    if (i % 4 == 0) control[i / 4] = 0;
    const uint32_t gap = in[i] - (i ? in[i - 1] : 0), bytes = gap < 1u << 8    ? 1
                                                              : gap < 1u << 16 ? 2
                                                              : gap < 1u << 24 ? 3
                                                                               : 4;
    control[i / 4] |= static_cast<uint8_t>((bytes - 1) << (2 * (i % 4)));
    std::memcpy(data, &gap, bytes);
    data += bytes;
  }
  return static_cast<size_t>(data - dst);
}

inline void decode(const uint8_t* src, uint32_t* out, size_t count) {
  const size_t fours = count / 4 * 4;
  const uint8_t* data = decode_fours(src, src + (count + 3) / 4, out, fours);
  for (size_t i = fours; i < count; ++i) {
    const uint32_t bytes = (src[i / 4] >> (2 * (i % 4)) & 3) + 1;
    uint32_t gap = 0;
    std::memcpy(&gap, data, bytes);
    data += bytes;
    out[i] = gap + (i ? out[i - 1] : 0);
  }
}

}  // namespace dr::bench::streamvbyte
#endif
