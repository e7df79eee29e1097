// Split Golomb encoded at 16 gaps a step, in 16-bit lanes. See golomb_encode_avx512.cpp, whose ways these are.
#include "codecs/family/golomb/golomb_lanes.hpp"
#include "codecs/family/golomb/golomb_payload.hpp"
#include "primitive/packing.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

constexpr size_t block_max = size_t{1} << golomb_block_log2_max;

__m256i load256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
void store256(void* to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
__m256i all16(uint64_t x) { return _mm256_set1_epi16(static_cast<short>(x)); }
__m256i all32(uint64_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }

// Gaps of n indices, zero up to a multiple of 32. False if one is 2^15 or more.
bool narrow_gaps(const uint32_t* x, size_t n, uint64_t base, uint16_t* gaps) {
  const __m256i one = all32(1);
  __m256i any = _mm256_setzero_si256();
  uint32_t previous = static_cast<uint32_t>(base), rest = 0;
  size_t i = 0;
  const auto single = [&] {
    const uint32_t gap = x[i] - previous;
    rest |= gap;
    gaps[i++] = static_cast<uint16_t>(gap);
    previous = x[i - 1] + 1;
  };
  single();  // so that there is one before each of the others
  const auto eight = [&](size_t at) {
    return _mm256_sub_epi32(_mm256_sub_epi32(load256(x + at), load256(x + at - 1)), one);
  };
  for (; i + 16 <= n; i += 16) {
    const __m256i a = eight(i), b = eight(i + 8);
    any = _mm256_or_si256(any, _mm256_or_si256(a, b));
    store256(gaps + i, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
  }
  if (i > 1) previous = x[i - 1] + 1;
  while (i < n) single();
  for (; i % 32; ++i) gaps[i] = 0;
  return _mm256_testz_si256(any, all32(~0x7fffu)) && rest < 0x8000;
}

struct quotients {
  __m256i q, r;
};
struct divider {
  __m256i divisor, inverse;
  bool unit;
  explicit divider(uint64_t m) : divisor(all16(m)), inverse(all16(m > 1 ? 65536 / m : 0)), unit(m == 1) {}
  [[gnu::always_inline]] quotients operator()(const uint16_t* gaps) const {
    const __m256i g = load256(gaps);
    if (unit) return {g, _mm256_setzero_si256()};
    // One too small at most. Unsigned r >= M where min(r, M) is M.
    const __m256i q = _mm256_mulhi_epu16(g, inverse), r = _mm256_sub_epi16(g, _mm256_mullo_epi16(q, divisor));
    const __m256i more = _mm256_cmpeq_epi16(_mm256_min_epu16(r, divisor), divisor);
    return {_mm256_sub_epi16(q, more), _mm256_sub_epi16(r, _mm256_and_si256(more, divisor))};
  }
};
__m256i at_least(__m256i r, __m256i bound) { return _mm256_cmpeq_epi16(_mm256_min_epu16(r, bound), bound); }
uint32_t mask32(__m256i low, __m256i high) {  // of 2 · 16 lanes that are all ones or zero
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8)));
}
uint32_t valid_lanes(size_t i, size_t n) {
  return i + 32 <= n ? ~0u : static_cast<uint32_t>(low_mask(static_cast<unsigned>(n - i)));
}

uint64_t body_size(const uint16_t* gaps, size_t n, const golomb_code& code) {
  const divider divide(code.divisor);
  const __m256i short_low = all16(code.short_low), one = all16(1);
  __m256i sum = _mm256_setzero_si256();
  uint64_t extra = 0;
  for (size_t i = 0; i < n; i += 32) {
    const quotients a = divide(gaps + i), b = divide(gaps + i + 16);
    sum = _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(a.q, one), _mm256_madd_epi16(b.q, one)));
    extra += static_cast<unsigned>(
        _mm_popcnt_u32(mask32(at_least(a.r, short_low), at_least(b.r, short_low)) & valid_lanes(i, n)));
  }
  alignas(32) uint32_t each[8];
  store256(each, sum);
  uint64_t unary = n;
  for (const uint32_t part : each) unary += part;
  if (code.divisor == 1) extra = 0;
  return ceil_div(n * code.low_bits, 8) + ceil_div(unary, 8) + ceil_div(extra, 8);
}

[[gnu::noinline]] bit_appender put_long_unaries(bit_appender out, const uint16_t* q, size_t n) {
  for (size_t i = 0; i < n; ++i) out.put_unary(q[i]);
  return out;
}

// Eight unary codes at once where they are short.
[[gnu::always_inline]] inline void put_unaries(bit_appender& out, __m128i q16) {
  const __m256i q = _mm256_cvtepu16_epi32(q16), low = _mm256_set1_epi64x(0xffffffff);
  const __m256i codes = _mm256_sllv_epi32(all32(1), q), lengths = _mm256_add_epi32(q, all32(1));
  const __m256i c2 = _mm256_or_si256(_mm256_and_si256(codes, low),
                                     _mm256_sllv_epi64(_mm256_srli_epi64(codes, 32), _mm256_and_si256(lengths, low)));
  const __m256i l2 = _mm256_add_epi64(_mm256_and_si256(lengths, low), _mm256_srli_epi64(lengths, 32));
  const __m256i c4 = _mm256_or_si256(c2, _mm256_sllv_epi64(_mm256_bsrli_epi128(c2, 8), l2));
  const __m256i l4 = _mm256_add_epi64(l2, _mm256_bsrli_epi128(l2, 8));
  const __m128i l4a = _mm256_castsi256_si128(l4), l8 = _mm_add_epi64(l4a, _mm256_extracti128_si256(l4, 1));
  const __m128i c8 = _mm_or_si128(_mm256_castsi256_si128(c4), _mm_sllv_epi64(_mm256_extracti128_si256(c4, 1), l4a));
  const auto length = static_cast<uint64_t>(_mm_cvtsi128_si64(l8));
  if (length > 39) {  // at or below it no quotient passes 31, since the other seven have a bit each
    alignas(16) uint16_t each[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(each), q16);
    out = put_long_unaries(out, each, 8);
    return;
  }
  out.put(static_cast<uint64_t>(_mm_cvtsi128_si64(c8)), static_cast<unsigned>(length));
}

// The three strings of a body; each in whole words, then copied: the payload has not the room behind it.
struct strings {
  alignas(32) uint8_t low[2 * block_max + 64], unary[golomb_flag + 64], extra[block_max / 8 + 64];
  uint8_t* low_end = low;
  bit_appender unaries{unary}, extras{extra};

  uint8_t* copy(uint8_t* out) {
    const auto add = [&](const uint8_t* from, const uint8_t* to) {
      std::memcpy(out, from, static_cast<size_t>(to - from));
      out += to - from;
    };
    add(low, low_end);
    add(unary, unaries.finish());
    add(extra, extras.finish());
    return out;
  }
};

// Appends n gaps (and zeros up to a multiple of 32) of one divisor.
void put_run(const uint16_t* gaps, size_t n, const golomb_code& code, strings& to) {
  const divider divide(code.divisor);
  const __m256i short_low = all16(code.short_low), one = all16(1);
  const unsigned k = code.low_bits;
  const bool has_low = code.divisor > 1;
  const __m128i by2 = _mm_cvtsi32_si128(static_cast<int>(16 - k)),
                by4 = _mm_cvtsi32_si128(static_cast<int>(32 - 2 * k));
  const __m256i even16 = all32(0xffff), even32 = _mm256_set1_epi64x(0xffffffff);
  bit_appender unaries = to.unaries, extras = to.extras;
  uint8_t* const low = to.low_end;
  // 16 lanes of k bits to 2k bytes, by fours, then eights.
  const auto pack = [&](__m256i v, uint8_t* out) {
    v = _mm256_or_si256(_mm256_and_si256(v, even16), _mm256_srl_epi32(_mm256_andnot_si256(even16, v), by2));
    v = _mm256_or_si256(_mm256_and_si256(v, even32), _mm256_srl_epi64(_mm256_andnot_si256(even32, v), by4));
    alignas(32) uint64_t fours[4];
    store256(fours, v);
    const unsigned width = 4 * k;  // <= 60
    const auto high = [&](uint64_t four) { return width ? four >> (64 - width) : 0; };
    store(out, fours[0] | fours[1] << width);
    store(out + 8, high(fours[1]));
    store(out + k, fours[2] | fours[3] << width);
    store(out + k + 8, high(fours[3]));
  };
  for (size_t i = 0; i < n; i += 32) {
    const uint32_t valid = valid_lanes(i, n);
    const quotients a = divide(gaps + i), b = divide(gaps + i + 16);
    if (valid == ~0u) {
      put_unaries(unaries, _mm256_castsi256_si128(a.q));
      put_unaries(unaries, _mm256_extracti128_si256(a.q, 1));
      put_unaries(unaries, _mm256_castsi256_si128(b.q));
      put_unaries(unaries, _mm256_extracti128_si256(b.q, 1));
    } else {
      alignas(32) uint16_t each[32];
      store256(each, a.q);
      store256(each + 16, b.q);
      unaries = put_long_unaries(unaries, each, n - i);
    }
    if (!has_low) continue;
    const auto split = [&](__m256i r, __m256i& longer, __m256i& odd) {
      longer = at_least(r, short_low);
      const __m256i moved = _mm256_add_epi16(r, short_low);
      odd = _mm256_cmpeq_epi16(_mm256_and_si256(moved, one), one);
      return _mm256_blendv_epi8(r, _mm256_srli_epi16(moved, 1), longer);
    };
    __m256i longer_a, odd_a, longer_b, odd_b;
    const __m256i va = split(a.r, longer_a, odd_a), vb = split(b.r, longer_b, odd_b);
    pack(va, low + i / 8 * k);
    pack(vb, low + i / 8 * k + 2 * k);
    const uint32_t longer = mask32(longer_a, longer_b) & valid;
    extras.put(_pext_u32(mask32(odd_a, odd_b), longer), static_cast<unsigned>(_mm_popcnt_u32(longer)));
  }
  // (Lanes that are not there have gap 0, so v = 0: padding.)
  to.low_end = low + (has_low ? ceil_div(n * k, 8) : 0);
  to.unaries = unaries;
  to.extras = extras;
}

// Gaps below 2^31, in 32-bit lanes: of blocks with one of 2^15 or more.
struct wide_gaps {
  alignas(32) uint32_t of[block_max];  // zero up to a multiple of 8

  bool load(const uint32_t* x, size_t n, uint64_t base) {
    const __m256i one = all32(1);
    __m256i any = _mm256_setzero_si256();
    uint32_t rest = of[0] = x[0] - static_cast<uint32_t>(base);
    size_t i = 1;
    const auto single = [&] {
      of[i] = x[i] - x[i - 1] - 1;
      rest |= of[i++];
    };
    while (i < n && i % 8) single();
    for (; i + 8 <= n; i += 8) {
      const __m256i gaps = _mm256_sub_epi32(_mm256_sub_epi32(load256(x + i), load256(x + i - 1)), one);
      any = _mm256_or_si256(any, gaps);
      store256(of + i, gaps);
    }
    while (i < n) single();
    for (; i % 8; ++i) of[i] = 0;
    return _mm256_movemask_ps(_mm256_castsi256_ps(any)) == 0 && rest >> 31 == 0;
  }
};

// As wide_gaps::divide in golomb_encode_avx512.cpp: an estimate below 2^15 is the quotient or one less.
struct wide_divider {
  __m256i divisor, last, short_low;
  __m256 inverse;
  explicit wide_divider(const golomb_code& code)
      : divisor(all32(code.divisor)),
        last(all32(code.divisor - 1)),
        short_low(all32(code.short_low)),
        inverse(_mm256_set1_ps(1.0f / static_cast<float>(code.divisor) * (1 - 0x1p-21f))) {}
  [[gnu::always_inline]] quotients operator()(const uint32_t* gaps) const {
    const __m256i g = load256(gaps), q = _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_cvtepi32_ps(g), inverse));
    const __m256i r = _mm256_sub_epi32(g, _mm256_mullo_epi32(q, divisor)), more = _mm256_cmpgt_epi32(r, last);
    return {_mm256_sub_epi32(q, more), _mm256_sub_epi32(r, _mm256_and_si256(more, divisor))};
  }
  // Of the remainders: whether they have an extra bit.
  [[gnu::always_inline]] __m256i longer(__m256i r) const {
    return _mm256_cmpeq_epi32(_mm256_max_epi32(r, short_low), r);
  }
};
uint32_t mask8(__m256i lanes) { return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes))); }
uint32_t valid_eight(size_t i, size_t n) { return i + 8 <= n ? 0xff : (1u << (n - i)) - 1; }

// Bytes of the body; 0 if a quotient is too large to estimate, or M is (or is 1: then most are).
uint64_t wide_body_size(const wide_gaps& gaps, size_t n, const golomb_code& code) {
  if (code.divisor == 1 || code.low_bits > 20) return 0;
  const wide_divider divide(code);
  __m256i sum = _mm256_setzero_si256(), most = sum;
  uint64_t extra = 0;
  for (size_t i = 0; i < n; i += 8) {
    const quotients o = divide(gaps.of + i);
    sum = _mm256_add_epi32(sum, o.q);
    most = _mm256_max_epi32(most, o.q);
    extra += static_cast<unsigned>(_mm_popcnt_u32(mask8(divide.longer(o.r)) & valid_eight(i, n)));
  }
  if (mask8(_mm256_cmpgt_epi32(most, all32(32700)))) return 0;
  alignas(32) uint32_t each[8];
  store256(each, sum);
  uint64_t unary = n;
  for (const uint32_t part : each) unary += part;
  return ceil_div(n * code.low_bits, 8) + ceil_div(unary, 8) + ceil_div(extra, 8);
}

// A body of a size.
uint8_t* put_wide(const wide_gaps& gaps, size_t n, const golomb_code& code, uint8_t* out) {
  const wide_divider divide(code);
  alignas(32) uint32_t v[block_max];
  strings to;
  bit_appender unaries = to.unaries, extras = to.extras;
  const __m256i one = all32(1);
  for (size_t i = 0; i < n; i += 8) {
    const quotients o = divide(gaps.of + i);
    const __m128i q = _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(o.q, o.q), 0x08));
    if (i + 8 <= n) {
      put_unaries(unaries, q);
    } else {
      alignas(16) uint16_t each[8];
      _mm_store_si128(reinterpret_cast<__m128i*>(each), q);
      unaries = put_long_unaries(unaries, each, n - i);
    }
    const __m256i longer = divide.longer(o.r), moved = _mm256_add_epi32(o.r, divide.short_low);
    store256(v + i, _mm256_blendv_epi8(o.r, _mm256_srli_epi32(moved, 1), longer));
    const uint32_t wants = mask8(longer) & valid_eight(i, n);
    extras.put(_pext_u32(mask8(_mm256_cmpeq_epi32(_mm256_and_si256(moved, one), one)), wants),
               static_cast<unsigned>(_mm_popcnt_u32(wants)));
  }
  to.unaries = unaries;
  to.extras = extras;
  return to.copy(pack_avx2(v, n, code.low_bits, out));
}

// Bits of a group at a level.
uint64_t group_bits(const uint16_t* gaps, size_t n, const golomb_code& code) {
  const divider divide(code.divisor);
  const __m256i short_low = all16(code.short_low), one = all16(1);
  const quotients a = divide(gaps), b = divide(gaps + 16);
  const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(a.q, one), _mm256_madd_epi16(b.q, one));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  const uint32_t longer = mask32(at_least(a.r, short_low), at_least(b.r, short_low)) & valid_lanes(0, n);
  return n * (code.low_bits + 1) + static_cast<uint32_t>(_mm_cvtsi128_si32(four)) +
         (code.divisor > 1 ? static_cast<unsigned>(_mm_popcnt_u32(longer)) : 0);
}

uint8_t* put_adaptive_block(const uint32_t* x, size_t n, uint64_t base, uint8_t* out, bool& flagged) {
  const golomb_code plain = adaptive_rule.code(uint64_t{x[n - 1]} + 1 - base, n, false);
  alignas(32) uint16_t gaps[block_max + 32];
  uint8_t levels[block_max / 32];
  bool wide[block_max / 32] = {};
  const bool narrow = narrow_gaps(x, n, base, gaps) && plain.divisor < 32768;
  uint64_t bits = 0;
  for (size_t i = 0; i < n; i += 32) {
    const size_t size = n - i < 32 ? n - i : 32;
    if (!narrow) {
      const golomb_wide_group g(x, i, n, base);
      wide[i / 32] = g.is_wide();
      if (wide[i / 32]) {
        bits += 4 + golomb_choose_level(g.of, g.size, levels[i / 32]);
        continue;
      }
    }
    uint64_t sum = 0;
    for (size_t j = i; j < i + size; ++j) sum += gaps[j];
    const golomb_choice choice = choose_level(
        first_level(sum, size), [&](unsigned at) { return group_bits(gaps + i, size, golomb_levels.of[at]); });
    levels[i / 32] = static_cast<uint8_t>(choice.level);
    bits += 4 + choice.bits;
  }
  wide_gaps all;
  uint64_t size = narrow ? body_size(gaps, n, plain) : all.load(x, n, base) ? wide_body_size(all, n, plain) : 0;
  const bool scalar = size == 0;
  if (scalar) size = golomb_block_size(x, n, base, plain);
  flagged = ceil_div(bits, 8) + 3 < size;
  if (!flagged && !narrow) return scalar ? golomb_encode_block(x, n, base, plain, out) : put_wide(all, n, plain, out);
  strings to;
  if (!flagged) {
    put_run(gaps, n, plain, to);
    return to.copy(out);
  }
  bit_writer table(out);
  for (size_t i = 0; i < n; i += 32) {
    const golomb_code& code = golomb_levels.of[levels[i / 32]];
    table.put(levels[i / 32], 4);
    if (wide[i / 32])
      to.low_end = golomb_wide_group(x, i, n, base).put(code, to.low_end, to.unaries, to.extras);
    else
      put_run(gaps + i, n - i < 32 ? n - i : 32, code, to);
  }
  return to.copy(table.finish());
}

uint8_t* put_wide_block(const uint32_t* x, size_t n, uint64_t base, divisor_rule rule, uint8_t* out, bool& flagged) {
  const auto scalar = [&] { return golomb_put_block(x, n, base, rule, out, flagged); };
  const uint64_t span = uint64_t{x[n - 1]} + 1 - base;
  golomb_code code = rule.code(span, n, false);
  wide_gaps gaps;
  if (!gaps.load(x, n, base)) return scalar();
  const uint64_t size = wide_body_size(gaps, n, code);
  if (!size) return scalar();
  flagged = false;
  if (rule.may_cluster) {
    const golomb_code other = rule.code(span, n, true);
    const uint64_t other_size = wide_body_size(gaps, n, other);
    if (!other_size) return scalar();
    flagged = other_size < size;
    if (flagged) code = other;
  }
  return put_wide(gaps, n, code, out);
}

}  // namespace

uint8_t* golomb_put_avx2(const uint32_t* x, size_t n, uint64_t base, divisor_rule rule, uint8_t* out, bool& flagged) {
  if (rule.adaptive) return put_adaptive_block(x, n, base, out, flagged);
  const uint64_t span = uint64_t{x[n - 1]} + 1 - base;
  golomb_code code = rule.code(span, n, false);
  alignas(32) uint16_t gaps[block_max + 32];
  if (code.divisor > 32768 || !narrow_gaps(x, n, base, gaps)) return put_wide_block(x, n, base, rule, out, flagged);
  flagged = false;
  if (rule.may_cluster && code.divisor > 1) {
    const golomb_code other = rule.code(span, n, true);
    flagged = body_size(gaps, n, other) < body_size(gaps, n, code);
    if (flagged) code = other;
  }
  strings to;
  put_run(gaps, n, code, to);
  return to.copy(out);
}

}  // namespace dr
DR_ISA_END
#endif
