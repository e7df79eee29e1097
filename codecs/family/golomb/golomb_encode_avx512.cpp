// Split Golomb encoded at 32 gaps a step: quotients by a high multiplication, v packed by shifts that close up lanes,
// sixteen unary codes merged before they are appended.
#include "codecs/family/golomb/golomb_lanes.hpp"
#include "codecs/family/golomb/golomb_payload.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {
namespace {

constexpr size_t group = adaptive_group, block_max = size_t{1} << golomb_block_log2_max;

[[gnu::always_inline]] inline __m512i pairs_of(__m512i v, unsigned bits, __m512i even32, __m512i even64) {
  // u16 lanes of `bits` bits to 128-bit lanes of 8 * bits: each step pushes the lower half of a lane against its upper
  // half.
  const auto count = [](uint64_t n) { return _mm_cvtsi64_si128(static_cast<long long>(n)); };
  v = _mm512_srl_epi32(_mm512_sllv_epi16(v, even32), count(16 - bits));
  v = _mm512_srl_epi64(_mm512_sllv_epi32(v, even64), count(32 - 2 * bits));
  const __m512i up = _mm512_unpackhi_epi64(v, v);  // low half: even | odd << 4b; high half: odd >> (64 - 4b)
  const __m512i even = _mm512_maskz_mov_epi64(0x55, v);
  const __m512i low = _mm512_maskz_sll_epi64(0x55, up, count(4 * bits));
  const __m512i high = _mm512_maskz_srl_epi64(0xaa, up, count(64 - 4 * bits));
  return _mm512_or_si512(even, _mm512_or_si512(low, high));
}

struct closing_table {
  alignas(64) uint8_t of[16][64]{};
  constexpr closing_table() {
    for (unsigned bits = 0; bits < 16; ++bits)
      for (unsigned i = 0; i < 4 * bits; ++i) of[bits][i] = static_cast<uint8_t>(16 * (i / bits) + i % bits);
  }
};
constexpr closing_table closing;

// Closes 32 lanes of `bits` bits, at most 15, up to 4 * bits bytes.
struct packer {
  unsigned bits;
  __m512i even32, even64, close;

  explicit packer(unsigned b)
      : bits(b),
        even32(_mm512_set1_epi32(static_cast<int>(16 - b))),
        even64(_mm512_set1_epi64(static_cast<long long>(32 - 2 * b))),
        close(_mm512_load_si512(closing.of[b])) {}
  [[gnu::always_inline]] inline __m512i pack(__m512i v) const {
    return _mm512_permutexvar_epi8(close, pairs_of(v, bits, even32, even64));
  }
};

// Quotients and remainders of 32 gaps, below 2^15 and 2^16.
struct quotients {
  __m512i q, r;
};

// Gaps below 2^15, in 16-bit lanes; `wide` is set for a group of 32 with a larger gap.
struct narrow_gaps {
  alignas(64) uint16_t of[block_max];
  bool wide[block_max / group];

  [[gnu::noinline]] bool load(const uint32_t* x, size_t n, uint64_t base) {
    const __m512i one = _mm512_set1_epi32(1),
                  even = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                                          24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    __m512i before = _mm512_set1_epi32(static_cast<int>(base - 1)), all = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += group) {
      const uint32_t valid = i + group <= n ? ~0u : static_cast<uint32_t>(low_mask(static_cast<unsigned>(n - i)));
      const auto low = static_cast<__mmask16>(valid), high = static_cast<__mmask16>(valid >> 16);
      const __m512i a = _mm512_maskz_loadu_epi32(low, x + i), b = _mm512_maskz_loadu_epi32(high, x + i + 16);
      const __m512i ga = _mm512_maskz_sub_epi32(low, _mm512_sub_epi32(a, _mm512_alignr_epi32(a, before, 15)), one);
      const __m512i gb = _mm512_maskz_sub_epi32(high, _mm512_sub_epi32(b, _mm512_alignr_epi32(b, a, 15)), one);
      before = b;
      const __m512i both = _mm512_or_si512(ga, gb);
      wide[i / group] = _mm512_test_epi32_mask(both, _mm512_set1_epi32(~0x7fff)) != 0;
      all = _mm512_or_si512(all, both);
      _mm512_store_si512(of + i, _mm512_permutex2var_epi16(ga, even, gb));
    }
    return _mm512_test_epi32_mask(all, _mm512_set1_epi32(~0x7fff)) == 0;
  }

  struct divide {
    const narrow_gaps& gaps;
    __m512i divisor, inverse;
    bool unit;
    divide(const narrow_gaps& g, uint64_t m)
        : gaps(g),
          divisor(_mm512_set1_epi16(static_cast<short>(m))),
          inverse(_mm512_set1_epi16(static_cast<short>(m > 1 ? 65536 / m : 0))),
          unit(m == 1) {}
    // The estimate is at most one too small: gap · (65536/M − ⌊65536/M⌋) / 65536 < 1.
    bool operator()(size_t i, quotients& o) const {
      const __m512i g = _mm512_load_si512(gaps.of + i);
      const __m512i q = _mm512_mulhi_epu16(g, inverse), r = _mm512_sub_epi16(g, _mm512_mullo_epi16(q, divisor));
      const __mmask32 more = _mm512_cmpge_epu16_mask(r, divisor);
      o.q = unit ? g : _mm512_mask_sub_epi16(q, more, q, _mm512_set1_epi16(-1));
      o.r = unit ? _mm512_setzero_si512() : _mm512_mask_sub_epi16(r, more, r, divisor);
      return true;
    }
  };
};

// Gaps of any length, in 32-bit lanes.
struct wide_gaps {
  alignas(64) uint32_t of[block_max];

  bool load(const uint32_t* x, size_t n, uint64_t base) {
    const __m512i one = _mm512_set1_epi32(1);
    __m512i before = _mm512_set1_epi32(static_cast<int>(base - 1));
    for (size_t i = 0; i < n; i += 16) {
      const auto valid = static_cast<__mmask16>(i + 16 <= n ? ~0u : low_mask(static_cast<unsigned>(n - i)));
      const __m512i a = _mm512_maskz_loadu_epi32(valid, x + i);
      _mm512_store_si512(of + i,
                         _mm512_maskz_sub_epi32(valid, _mm512_sub_epi32(a, _mm512_alignr_epi32(a, before, 15)), one));
      before = a;
    }
    if (n % group && n % group <= 16) _mm512_store_si512(of + n / group * group + 16, _mm512_setzero_si512());
    return true;
  }

  struct divide {
    const wide_gaps& gaps;
    __m512i divisor;
    __m512 inverse;
    divide(const wide_gaps& g, uint64_t m)
        : gaps(g),
          divisor(_mm512_set1_epi32(static_cast<int>(m))),
          inverse(_mm512_set1_ps(1.0f / static_cast<float>(m) * (1 - 0x1p-21f))) {}
    // The inverse is 2^-21 too small, which four roundings of 2^-24 each do not make up for: so the estimate is never
    // above the quotient, and below 2^15 at most one below it.
    bool half(const uint32_t* from, __m512i& q, __m512i& r) const {
      const __m512i g = _mm512_load_si512(from);
      q = _mm512_cvttps_epu32(_mm512_mul_ps(_mm512_cvtepu32_ps(g), inverse));
      r = _mm512_sub_epi32(g, _mm512_mullo_epi32(q, divisor));
      const __mmask16 more = _mm512_cmpge_epu32_mask(r, divisor);
      q = _mm512_mask_sub_epi32(q, more, q, _mm512_set1_epi32(-1));
      r = _mm512_mask_sub_epi32(r, more, r, divisor);
      return _mm512_cmpge_epu32_mask(q, _mm512_set1_epi32(32760)) == 0;
    }
    bool operator()(size_t i, quotients& o) const {
      __m512i qa, ra, qb, rb;
      if (!half(gaps.of + i, qa, ra) || !half(gaps.of + i + 16, qb, rb)) return false;
      const __m512i even = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                                            24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
      o.q = _mm512_permutex2var_epi16(qa, even, qb);
      o.r = _mm512_permutex2var_epi16(ra, even, rb);
      return true;
    }
  };
};

// Bytes of the body; 0 if a quotient is too large for these lanes.
template <class Gaps>
uint64_t body_size(const Gaps& gaps, size_t n, const golomb_code& code) {
  const typename Gaps::divide divide(gaps, code.divisor);
  const __m512i ones = _mm512_set1_epi16(1), short_low = _mm512_set1_epi16(static_cast<short>(code.short_low));
  __m512i sum = _mm512_setzero_si512();
  uint64_t extra = 0;
  for (size_t i = 0; i < n; i += group) {
    quotients o{};
    if (!divide(i, o)) return 0;
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(o.q, ones));
    extra +=
        static_cast<unsigned>(_mm_popcnt_u32(_mm512_mask_cmpge_epu16_mask(golomb_valid_lanes(i, n), o.r, short_low)));
  }
  const uint64_t unary = n + static_cast<uint32_t>(_mm512_reduce_add_epi32(sum));
  if (code.divisor == 1) extra = 0;
  return ceil_div(n * code.low_bits, 8) + ceil_div(unary, 8) + ceil_div(extra, 8);
}

// Codes too long for the loop below, or the last few. The string is passed by value, so that it stays in registers
// elsewhere.
[[gnu::noinline]] bit_appender put_long_unaries(bit_appender out, __m512i q, uint32_t valid) {
  alignas(64) uint16_t zeros[group];
  _mm512_store_si512(zeros, q);
  for (unsigned i = 0; i < group && valid >> i; ++i) out.put_unary(zeros[i]);
  return out;
}

// Sixteen unary codes at once where they are short. Two neighbours become one: the lower is pushed against the upper,
// then both down.
[[gnu::always_inline]] inline void put_unaries(bit_appender& out, __m512i q, uint32_t valid) {
  const __m512i one = _mm512_set1_epi16(1);
  // Codes end in their one, so the lower of 16 bits is that alone.
  const __m512i pushed2 = _mm512_mask_sllv_epi16(_mm512_set1_epi16(-32768), 0xaaaaaaaa, one, q);
  const __m512i c2 = _mm512_srlv_epi32(pushed2, _mm512_maskz_sub_epi16(0x55555555, _mm512_set1_epi16(15), q));
  const __m512i l2 = _mm512_add_epi32(_mm512_madd_epi16(q, one), _mm512_set1_epi32(2));
  const __m512i push4 = _mm512_maskz_sub_epi32(0x5555, _mm512_set1_epi32(32), l2);
  const __m512i c4 = _mm512_srlv_epi64(_mm512_sllv_epi32(c2, push4), push4);
  const __m512i l4 = _mm512_add_epi32(_mm512_srli_epi64(l2, 32), _mm512_maskz_mov_epi32(0x5555, l2));
  const __m512i c8 = _mm512_or_si512(c4, _mm512_sllv_epi64(_mm512_bsrli_epi128(c4, 8), l4));  // in even lanes
  const __m512i l8 = _mm512_add_epi64(l4, _mm512_bsrli_epi128(l4, 8));
  const __m512i c16 =
      _mm512_or_si512(c8, _mm512_sllv_epi64(_mm512_shuffle_i64x2(c8, c8, 0xf5), l8));  // in lanes 0 and 4
  const __m512i l16 = _mm512_add_epi64(l8, _mm512_shuffle_i64x2(l8, l8, 0xf5));
  const auto first = [](__m512i v) { return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm512_castsi512_si128(v))); };
  const auto fourth = [](__m512i v) {
    return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm512_extracti64x2_epi64(v, 2)));
  };
  const auto low = static_cast<unsigned>(first(l16)), high = static_cast<unsigned>(fourth(l16));
  // Where a quotient passes 15, or the last lanes are not there, c16 is wrong; l16 is right.
  if (low > 56 || high > 56 || valid != ~0u || _mm512_cmpgt_epu16_mask(q, _mm512_set1_epi16(15))) {
    out = put_long_unaries(out, q, valid);
    return;
  }
  out.put(first(c16), low);
  out.put(fourth(c16), high);
}

template <class Gaps>
uint8_t* put_body(const Gaps& gaps, size_t n, const golomb_code& code, const uint32_t* next, uint8_t* out) {
  // Each string in full vectors, then copied: the payload has no room past it. Unary: at most n + span / M <= 5
  // n bits.
  alignas(64) uint8_t low[2 * block_max + 64], unary[block_max + 64], extra[block_max / 8 + 64];
  const typename Gaps::divide divide(gaps, code.divisor);
  const packer low_bits(code.low_bits);
  const __m512i short_low = _mm512_set1_epi16(static_cast<short>(code.short_low));
  const __m512i one = _mm512_set1_epi16(1);
  const bool has_low = code.divisor > 1;
  bit_appender unaries{unary}, extras{extra};
  for (size_t i = 0; i < n; i += group) {
    const uint32_t valid = golomb_valid_lanes(i, n);
    // Prefetches the next block, if any.
    const auto ahead = reinterpret_cast<uintptr_t>(next) + i * sizeof *next;
    _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(ahead + 64), _MM_HINT_T0);
    quotients o{};
    divide(i, o);
    put_unaries(unaries, o.q, valid);
    if (!has_low) continue;
    const uint32_t longer = _mm512_mask_cmpge_epu16_mask(valid, o.r, short_low);
    const __m512i moved = _mm512_add_epi16(o.r, short_low);
    _mm512_storeu_si512(low + i / group * 4 * code.low_bits,
                        low_bits.pack(_mm512_mask_srli_epi16(o.r, longer, moved, 1)));
    extras.put(_pext_u32(_mm512_test_epi16_mask(moved, one), longer), static_cast<unsigned>(_mm_popcnt_u32(longer)));
  }
  const auto copy = [&](const uint8_t* from, size_t size) {
    std::memcpy(out, from, size);
    out += size;
  };
  copy(low, ceil_div(n * code.low_bits, 8));
  copy(unary, static_cast<size_t>(unaries.finish() - unary));
  copy(extra, static_cast<size_t>(extras.finish() - extra));
  return out;
}

[[gnu::always_inline]] inline quotients divide_group(const uint16_t* gaps, unsigned level) {
  const __m512i g = _mm512_load_si512(gaps), m = _mm512_set1_epi16(static_cast<short>(golomb_lanes_of.divisor[level]));
  if (level == 0) return {g, _mm512_setzero_si512()};
  const __m512i q = _mm512_mulhi_epu16(g, _mm512_set1_epi16(static_cast<short>(golomb_lanes_of.inverse[level])));
  const __m512i r = _mm512_sub_epi16(g, _mm512_mullo_epi16(q, m));
  const __mmask32 more = _mm512_cmpge_epu16_mask(r, m);
  return {_mm512_mask_sub_epi16(q, more, q, _mm512_set1_epi16(-1)), _mm512_mask_sub_epi16(r, more, r, m)};
}

// As scalar's of the same names.
uint64_t choose_levels(const narrow_gaps& gaps, const uint32_t* x, size_t n, uint64_t base, uint8_t* levels) {
  const __m512i one = _mm512_set1_epi16(1);
  uint64_t total = 0;
  for (size_t i = 0; i < n; i += group) {
    if (gaps.wide[i / group]) {
      const golomb_wide_group g(x, i, n, base);
      total += golomb_choose_level(g.of, g.size, levels[i / group]) + 4;
      continue;
    }
    const size_t size = n - i < group ? n - i : group;
    const uint32_t valid = golomb_valid_lanes(i, n);
    const auto sum =
        static_cast<uint32_t>(_mm512_reduce_add_epi32(_mm512_madd_epi16(_mm512_load_si512(gaps.of + i), one)));
    unsigned level = first_level(sum, size);
    uint64_t best = ~uint64_t{0};
    for (unsigned at = level;; --at) {  // as choose_level
      const quotients o = divide_group(gaps.of + i, at);
      const auto q = static_cast<uint32_t>(_mm512_reduce_add_epi32(_mm512_madd_epi16(o.q, one)));
      const uint32_t longer = _mm512_mask_cmpge_epu16_mask(
          valid, o.r, _mm512_set1_epi16(static_cast<short>(golomb_lanes_of.short_low[at])));
      const uint64_t bits =
          size * (golomb_levels.of[at].low_bits + 1) + q + static_cast<unsigned>(_mm_popcnt_u32(longer));
      if (bits > best) break;
      best = bits;
      level = at;
      if (at == 0) break;
    }
    levels[i / group] = static_cast<uint8_t>(level);
    total += best + 4;
  }
  return ceil_div(total, 8) + 3;
}

uint8_t* put_adaptive(const narrow_gaps& gaps, const uint32_t* x, size_t n, uint64_t base, const uint8_t* levels,
                      uint8_t* out) {
  // A body has less than 2^15 bytes: this one is shorter than one that has.
  alignas(64) uint8_t low[2 * block_max + 64], unary[golomb_flag + 64], extra[block_max / 8 + 64];
  bit_appender unaries{unary}, extras{extra};
  const __m512i one = _mm512_set1_epi16(1);
  uint8_t* low_end = low;
  bit_writer table(out);
  for (size_t i = 0; i < n; i += group) {
    const uint32_t valid = golomb_valid_lanes(i, n);
    const unsigned level = levels[i / group];
    const golomb_code& code = golomb_levels.of[level];
    table.put(level, 4);
    if (gaps.wide[i / group]) {
      low_end = golomb_wide_group(x, i, n, base).put(code, low_end, unaries, extras);
      continue;
    }
    const quotients o = divide_group(gaps.of + i, level);
    put_unaries(unaries, o.q, valid);
    const __m512i short_low = _mm512_set1_epi16(static_cast<short>(golomb_lanes_of.short_low[level]));
    const uint32_t longer = _mm512_mask_cmpge_epu16_mask(valid, o.r, short_low);
    const __m512i moved = _mm512_add_epi16(o.r, short_low);
    const __m512i v = _mm512_maskz_mov_epi16(valid, _mm512_mask_srli_epi16(o.r, longer, moved, 1));
    _mm512_storeu_si512(low_end, packer(code.low_bits).pack(v));
    low_end += valid == ~0u ? 4 * code.low_bits : ceil_div((n - i) * code.low_bits, 8);
    extras.put(_pext_u32(_mm512_test_epi16_mask(moved, one), longer), static_cast<unsigned>(_mm_popcnt_u32(longer)));
  }
  out = table.finish();
  const auto copy = [&](const uint8_t* from, size_t size) {
    std::memcpy(out, from, size);
    out += size;
  };
  copy(low, static_cast<size_t>(low_end - low));
  copy(unary, static_cast<size_t>(unaries.finish() - unary));
  copy(extra, static_cast<size_t>(extras.finish() - extra));
  return out;
}

template <class Gaps>
uint8_t* put_block(const uint32_t* x, size_t n, uint64_t base, divisor_rule rule, uint8_t* out, bool& flagged) {
  const uint64_t span = uint64_t{x[n - 1]} + 1 - base;
  golomb_code code = rule.code(span, n, false);
  if (code.divisor > 65536) return nullptr;
  Gaps gaps;
  if (!gaps.load(x, n, base)) return nullptr;
  flagged = false;
  const uint64_t size = body_size(gaps, n, code);
  if (!size) return nullptr;
  if (rule.may_cluster && code.divisor > 1) {
    const golomb_code other = rule.code(span, n, true);
    const uint64_t other_size = body_size(gaps, n, other);
    if (!other_size) return nullptr;
    flagged = other_size < size;
    if (flagged) code = other;
  }
  return put_body(gaps, n, code, x + n, out);
}

uint8_t* put_adaptive_block(const uint32_t* x, size_t n, uint64_t base, uint8_t* out, bool& flagged) {
  const golomb_code code = adaptive_rule.code(uint64_t{x[n - 1]} + 1 - base, n, false);
  narrow_gaps gaps;
  uint8_t levels[block_max / group];
  const bool narrow = gaps.load(x, n, base) && code.divisor < 32768;
  const uint64_t size = narrow ? body_size(gaps, n, code) : golomb_block_size(x, n, base, code);
  flagged = choose_levels(gaps, x, n, base, levels) < size;
  if (flagged) return put_adaptive(gaps, x, n, base, levels, out);
  return narrow ? put_body(gaps, n, code, x + n, out) : golomb_encode_block(x, n, base, code, out);
}

}  // namespace

uint8_t* golomb_put_avx512(const uint32_t* x, size_t n, uint64_t base, divisor_rule rule, uint8_t* out, bool& flagged) {
  if (rule.adaptive) return put_adaptive_block(x, n, base, out, flagged);
  uint8_t* end = put_block<narrow_gaps>(x, n, base, rule, out, flagged);
  if (!end) end = put_block<wide_gaps>(x, n, base, rule, out, flagged);
  return end ? end : golomb_put_block(x, n, base, rule, out, flagged);
}

}  // namespace dr
DR_ISA_END
#endif
