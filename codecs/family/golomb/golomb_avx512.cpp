// Split Golomb at 32 gaps a step. Encode: quotients by a high multiplication, v packed by shifts that close up lanes, sixteen unary
// codes merged before they are appended. Decode: ones of the unary string by compress, v by multishift, extras by pdep, one prefix sum.
#include "codecs/family/golomb/golomb_payload.hpp"

#if DR_X86
DR_AVX512_BEGIN
namespace dr {
namespace {

constexpr size_t group = 32, block_max = size_t{1} << golomb_block_log2_max;

[[gnu::always_inline]] inline __m512i pairs_of(__m512i v, unsigned bits, __m512i even32, __m512i even64) {
  // u16 lanes of `bits` bits to 128-bit lanes of 8 * bits: each step pushes the lower half of a lane against its upper half.
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

// Gaps below 2^15, in 16-bit lanes; `wide` says of each 32 whether one is not.
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
    // The inverse is 2^-21 too small, which four roundings of 2^-24 each do not make up for: so the estimate is never above the
    // quotient, and below 2^15 at most one below it.
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

uint32_t valid_lanes(size_t i, size_t n) {
  return i + group <= n ? ~0u : static_cast<uint32_t>(low_mask(static_cast<unsigned>(n - i)));
}

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
    extra += static_cast<unsigned>(_mm_popcnt_u32(_mm512_mask_cmpge_epu16_mask(valid_lanes(i, n), o.r, short_low)));
  }
  const uint64_t unary = n + static_cast<uint32_t>(_mm512_reduce_add_epi32(sum));
  if (code.divisor == 1) extra = 0;
  return ceil_div(n * code.low_bits, 8) + ceil_div(unary, 8) + ceil_div(extra, 8);
}

// What is too long for the way below, or the last few. The string goes by value, so that it stays in registers elsewhere.
[[gnu::noinline]] bit_appender put_long_unaries(bit_appender out, __m512i q, uint32_t valid) {
  alignas(64) uint16_t each[group];
  _mm512_store_si512(each, q);
  for (unsigned i = 0; i < group && valid >> i; ++i) out.put_unary(each[i]);
  return out;
}

// Sixteen unary codes at once where they are short. Two neighbours become one: the lower is pushed against the upper, then
// both down.
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
  // Where a quotient passes 15, or the last lanes are not there, c16 is not what it should be; l16 is.
  if (low > 56 || high > 56 || valid != ~0u || _mm512_cmpgt_epu16_mask(q, _mm512_set1_epi16(15))) {
    out = put_long_unaries(out, q, valid);
    return;
  }
  out.put(first(c16), low);
  out.put(fourth(c16), high);
}

template <class Gaps>
uint8_t* put_body(const Gaps& gaps, size_t n, const golomb_code& code, const uint32_t* next, uint8_t* out) {
  // Each string in full vectors, then copied: the payload has not the room behind it. Unary: at most n + span / M <= 5 n bits.
  alignas(64) uint8_t low[2 * block_max + 64], unary[block_max + 64], extra[block_max / 8 + 64];
  const typename Gaps::divide divide(gaps, code.divisor);
  const packer low_bits(code.low_bits);
  const __m512i short_low = _mm512_set1_epi16(static_cast<short>(code.short_low));
  const __m512i one = _mm512_set1_epi16(1);
  const bool has_low = code.divisor > 1;
  bit_appender unaries{unary}, extras{extra};
  for (size_t i = 0; i < n; i += group) {
    const uint32_t valid = valid_lanes(i, n);
    // The block behind this one, if there is one: by its turn it is in the cache.
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

// What a group of 32 needs to be divided by a level's divisor.
struct level_lanes {
  uint16_t divisor[16], inverse[16], short_low[16];
  constexpr level_lanes() : divisor{}, inverse{}, short_low{} {
    for (unsigned level = 0; level < 16; ++level) {
      const golomb_code& code = golomb_levels.of[level];
      divisor[level] = static_cast<uint16_t>(code.divisor);
      inverse[level] = static_cast<uint16_t>(level ? 65536 / code.divisor : 0);
      // Of the divisor 1 no remainder has an extra bit.
      short_low[level] = static_cast<uint16_t>(level ? code.short_low : 1);
    }
  }
};
constexpr level_lanes lanes_of;

[[gnu::always_inline]] inline quotients divide_group(const uint16_t* gaps, unsigned level) {
  const __m512i g = _mm512_load_si512(gaps), m = _mm512_set1_epi16(static_cast<short>(lanes_of.divisor[level]));
  if (level == 0) return {g, _mm512_setzero_si512()};
  const __m512i q = _mm512_mulhi_epu16(g, _mm512_set1_epi16(static_cast<short>(lanes_of.inverse[level])));
  const __m512i r = _mm512_sub_epi16(g, _mm512_mullo_epi16(q, m));
  const __mmask32 more = _mm512_cmpge_epu16_mask(r, m);
  return {_mm512_mask_sub_epi16(q, more, q, _mm512_set1_epi16(-1)), _mm512_mask_sub_epi16(r, more, r, m)};
}

// As scalar's of the same names, but for groups with a wide gap, which are its: q would not fit a lane.
struct group_of_gaps {
  uint32_t of[group];
  size_t size;

  group_of_gaps(const uint32_t* x, size_t i, size_t n, uint64_t base) : size(n - i < group ? n - i : group) {
    for (size_t j = 0; j < size; ++j) of[j] = x[i + j] - (i + j ? x[i + j - 1] + 1 : static_cast<uint32_t>(base));
  }
};

uint64_t choose_levels(const narrow_gaps& gaps, const uint32_t* x, size_t n, uint64_t base, uint8_t* levels) {
  const __m512i one = _mm512_set1_epi16(1);
  uint64_t total = 0;
  for (size_t i = 0; i < n; i += group) {
    if (gaps.wide[i / group]) {
      const group_of_gaps g(x, i, n, base);
      total += golomb_choose_level(g.of, g.size, levels[i / group]) + 4;
      continue;
    }
    const size_t size = n - i < group ? n - i : group;
    const uint32_t valid = valid_lanes(i, n);
    const auto sum =
        static_cast<uint32_t>(_mm512_reduce_add_epi32(_mm512_madd_epi16(_mm512_load_si512(gaps.of + i), one)));
    unsigned level = first_level(sum, size);
    uint64_t best = ~uint64_t{0};
    for (unsigned at = level;; --at) {  // as choose_level
      const quotients o = divide_group(gaps.of + i, at);
      const auto q = static_cast<uint32_t>(_mm512_reduce_add_epi32(_mm512_madd_epi16(o.q, one)));
      const uint32_t longer =
          _mm512_mask_cmpge_epu16_mask(valid, o.r, _mm512_set1_epi16(static_cast<short>(lanes_of.short_low[at])));
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
    const uint32_t valid = valid_lanes(i, n);
    const unsigned level = levels[i / group];
    const golomb_code& code = golomb_levels.of[level];
    table.put(level, 4);
    if (gaps.wide[i / group]) {
      const group_of_gaps g(x, i, n, base);
      bit_writer lows(low_end);
      for (size_t j = 0; j < g.size; ++j) {
        const uint64_t q = code.quotient(g.of[j]), r = g.of[j] - q * code.divisor;
        const bool longer = level > 0 && r >= code.short_low;
        lows.put(longer ? (r + code.short_low) >> 1 : r, code.low_bits);
        unaries.put_unary(q);
        extras.put(longer ? (r + code.short_low) & 1 : 0, longer);
      }
      low_end = lows.finish();
      continue;
    }
    const quotients o = divide_group(gaps.of + i, level);
    put_unaries(unaries, o.q, valid);
    const __m512i short_low = _mm512_set1_epi16(static_cast<short>(lanes_of.short_low[level]));
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

// Unpacks 32 fields of `bits` bits, at most 15, from 4 * bits bytes.
struct unpacker {
  alignas(64) uint8_t spread[64], shift[64];
  uint16_t mask;
};
struct unpacker_table {
  unpacker of[16]{};
  constexpr unpacker_table() {
    for (unsigned bits = 0; bits < 16; ++bits)
      for (unsigned i = 0; i < 64; ++i) {
        const unsigned first = i / 8 * 4 * bits;  // bit of the first field of this 64-bit lane
        of[bits].spread[i] = static_cast<uint8_t>(first / 8 + i % 8);
        of[bits].shift[i] = static_cast<uint8_t>(first % 8 + i % 8 / 2 * bits + i % 2 * 8);
        of[bits].mask = static_cast<uint16_t>((1u << bits) - 1);
      }
  }
};
constexpr unpacker_table unpackers;

__m512i all32(uint64_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }

__m512i load_tail(const uint8_t* from, size_t rest) {  // of 64 bytes those that are there
  return rest >= 64 ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(low_mask(static_cast<unsigned>(rest)), from);
}

// Positions of the first n ones of a bit string of at most 65535 bits; 0 if there are fewer, else the bits up to the last of them.
size_t select_ones(const uint8_t* bits, size_t size, size_t n, uint16_t* positions) {
  const __m512i step = _mm512_set1_epi16(32);
  __m512i iota = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11,
                                  10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  size_t found = 0, at = 0;
  for (; found < n && at + 8 <= size; at += 8) {
    const uint64_t word = load<uint64_t>(bits + at);
    const auto low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> 32);
    _mm512_storeu_si512(positions + found, _mm512_maskz_compress_epi16(low, iota));
    iota = _mm512_add_epi16(iota, step);
    const size_t between = found + static_cast<size_t>(_mm_popcnt_u32(low));
    _mm512_storeu_si512(positions + between, _mm512_maskz_compress_epi16(high, iota));
    iota = _mm512_add_epi16(iota, step);
    found += static_cast<size_t>(_mm_popcnt_u64(word));
  }
  for (; found < n && at < size; at += 4) {
    const size_t rest = size - at;
    const auto word = static_cast<uint32_t>(load_bytes(bits + at, rest < 4 ? static_cast<unsigned>(rest) : 4));
    _mm512_storeu_si512(positions + found, _mm512_maskz_compress_epi16(word, iota));
    iota = _mm512_add_epi16(iota, step);
    found += static_cast<size_t>(_mm_popcnt_u32(word));
  }
  return found < n ? 0 : positions[n - 1] + size_t{1};
}

// A constant that stays in its register: gcc would rather make it anew in each turn of a loop.
__m512i kept(__m512i v) {
  __asm__("" : "+v"(v));
  return v;
}
__mmask32 kept(__mmask32 m) {
  __asm__("" : "+Yk"(m));
  return m;
}

// At least 32 bits of a string from bit `at` on, zeros behind its `size` bytes; `begin` is where what may be read begins.
[[gnu::always_inline]] inline uint64_t bits_from(const uint8_t* string, uint64_t at, size_t size,
                                                 const uint8_t* begin) {
  const size_t byte = at / 8;
  if (byte + 8 <= size) return load<uint64_t>(string + byte) >> at % 8;
  const uint8_t* const end = string + size;
  if (end - begin < 8) return byte < size ? load_bytes(string + byte, static_cast<unsigned>(size - byte)) >> at % 8 : 0;
  const uint64_t gone = at + 64 - 8 * size;  // bits of the last 8 bytes that are before `at`
  return gone < 64 ? load<uint64_t>(end - 8) >> gone : 0;
}

// Inclusive sums of 32 lanes, all below 2^16. (Shifts and additions where they do: shuffles are scarcer.)
struct summer {
  __m512i third = kept(_mm512_set4_epi32(0x07060706, 0x07060706, -1, -1));  // of the lower quadword, to the upper
  __m512i seventh = kept(_mm512_set_epi16(23, 23, 23, 23, 23, 23, 23, 23, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7,
                                          7, 0, 0, 0, 0, 0, 0, 0, 0));
  __m512i fifteenth = kept(_mm512_set1_epi16(15));
  __mmask32 odd = kept(__mmask32{0xff00ff00}), upper = kept(__mmask32{0xffff0000});

  summer() {}  // (an implied one would not be compiled for these instructions)
  [[gnu::always_inline]] inline __m512i operator()(__m512i v) const {
    v = _mm512_add_epi16(v, _mm512_slli_epi64(v, 16));
    v = _mm512_add_epi16(v, _mm512_slli_epi64(v, 32));
    v = _mm512_add_epi16(v, _mm512_shuffle_epi8(v, third));
    v = _mm512_mask_add_epi16(v, odd, v, _mm512_permutexvar_epi16(seventh, v));
    return _mm512_mask_add_epi16(v, upper, v, _mm512_permutexvar_epi16(fifteenth, v));
  }
};
__m512i sums_of32(__m512i v) {
  const __m512i zero = _mm512_setzero_si512();
  v = _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 15));
  v = _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 14));
  v = _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 12));
  return _mm512_add_epi32(v, _mm512_alignr_epi32(v, zero, 8));
}

template <bool wide>  // 32 remainders whose sum passes 15 bits
bool get_block(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, golomb_code code, uint32_t* x) {
  const bool has_low = code.divisor > 1;
  const uint64_t low_total = has_low ? uint64_t{code.low_bits} * n : 0;
  const size_t low_size = static_cast<size_t>(ceil_div(low_total, 8));
  if (low_size > size || !padding_is_zero(body, low_total)) return false;
  const uint8_t* const unary = body + low_size;
  const size_t unary_max = size - low_size;

  alignas(64) uint16_t positions[block_max + 2 * group];
  const size_t unary_bits = select_ones(unary, unary_max < 8191 ? unary_max : 8191, n, positions);
  if (!unary_bits) return unary_max > 8191 && golomb_decode_block(body, size, n, base, end, code, x);
  if (!wide && unary_bits > 32768) return get_block<true>(body, size, n, base, end, code, x);
  if (!padding_is_zero(unary, unary_bits)) return false;
  const size_t unary_size = ceil_div(unary_bits, 8), extra_max = unary_max - unary_size;
  const uint8_t* const extra = unary + unary_size;

  // r + s = v + max(v, s) + extra bit, and x_i = base + M · pos_i + Σ (r_j + s) − s + i · (1 − M − s).
  const auto m = static_cast<uint32_t>(code.divisor), s = has_low ? static_cast<uint32_t>(code.short_low) : 0;
  const uint32_t slope = 1 - m - s;
  const __m512i iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i step = kept(all32(group * slope)), short_low = _mm512_set1_epi16(static_cast<short>(s));
  const uint32_t start = static_cast<uint32_t>(base) - s;
  __m512i low_offset = _mm512_add_epi32(all32(start), _mm512_mullo_epi32(iota, all32(slope)));
  __m512i high_offset = _mm512_add_epi32(low_offset, all32(16 * slope));
  const unpacker& low_bits = unpackers.of[code.low_bits];
  const __m512i one = kept(_mm512_set1_epi16(1)), last = all32(15), weights = kept(all32(m << 16 | 1));
  const __m512i low_pairs = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                             37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high_pairs = _mm512_add_epi16(low_pairs, _mm512_set1_epi16(16));
  const summer sums_of;
  const __m512i spread = kept(_mm512_load_si512(low_bits.spread)), shift = kept(_mm512_load_si512(low_bits.shift)),
                mask = kept(_mm512_set1_epi16(static_cast<short>(low_bits.mask))),
                last_of = kept(_mm512_set1_epi16(31));
  const __mmask32 even = kept(__mmask32{0x55555555});
  uint64_t extra_bits = 0;
  for (size_t i = 0; i < n; i += group) {
    const uint32_t valid = valid_lanes(i, n);
    __m512i r = _mm512_setzero_si512();
    if (has_low) {
      const size_t at = i / group * 4 * code.low_bits;
      const __m512i v = _mm512_and_si512(
          _mm512_multishift_epi64_epi8(shift, _mm512_permutexvar_epi8(spread, load_tail(body + at, size - at))), mask);
      const uint32_t longer = _mm512_mask_cmpge_epu16_mask(valid, v, short_low);
      const uint32_t odd = _pdep_u32(static_cast<uint32_t>(bits_from(extra, extra_bits, extra_max, body)), longer);
      extra_bits += static_cast<unsigned>(_mm_popcnt_u32(longer));
      r = _mm512_add_epi16(v, _mm512_max_epu16(v, short_low));
      r = _mm512_mask_add_epi16(r, odd, r, one);
    }
    __m512i low, high, total;
    if constexpr (wide) {
      const __m512i sums = sums_of32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(r)));
      const __m512i more = sums_of32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(r, 1)));
      const __m512i before = _mm512_permutexvar_epi32(last, sums);
      total = _mm512_add_epi32(before, _mm512_permutexvar_epi32(last, more));
      const __m512i at = _mm512_loadu_si512(positions + i), low_at = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(at));
      const __m512i high_at = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(at, 1));
      low = _mm512_add_epi32(sums, _mm512_mullo_epi32(low_at, all32(m)));
      high = _mm512_add_epi32(_mm512_add_epi32(more, before), _mm512_mullo_epi32(high_at, all32(m)));
    } else {
      const __m512i sums = sums_of(r), at = _mm512_loadu_si512(positions + i);
      low = _mm512_madd_epi16(_mm512_permutex2var_epi16(sums, low_pairs, at), weights);
      high = _mm512_madd_epi16(_mm512_permutex2var_epi16(sums, high_pairs, at), weights);
      total = _mm512_maskz_permutexvar_epi16(even, last_of, sums);
    }
    low = _mm512_add_epi32(low, low_offset);
    high = _mm512_add_epi32(high, high_offset);
    if (valid == ~0u) {
      _mm512_storeu_si512(x + i, low);
      _mm512_storeu_si512(x + i + 16, high);
    } else {
      _mm512_mask_storeu_epi32(x + i, static_cast<__mmask16>(valid), low);
      _mm512_mask_storeu_epi32(x + i + 16, static_cast<__mmask16>(valid >> 16), high);
    }
    total = _mm512_add_epi32(total, step);
    low_offset = _mm512_add_epi32(low_offset, total);
    high_offset = _mm512_add_epi32(high_offset, total);
  }
  if (extra_max != ceil_div(extra_bits, 8) || !padding_is_zero(extra, extra_bits)) return false;
  // Strictly ascending in 64 bits, as x is made: so the last is right if its 64 bits are. The remainders' sum, below 2^13 · 2^16, follows from its 32.
  const uint64_t without = base + code.divisor * (unary_bits - n) + n - 1;
  const uint32_t sum = x[n - 1] - static_cast<uint32_t>(without);
  return without + sum + 1 == end;
}

// As get_block, with constants that change from group to group. A group begins behind the last index of the one before, and at the
// one behind its last.
struct adaptive_lanes {
  alignas(64) uint32_t offset[32];  // (1 − M − s) · i − s
  constexpr adaptive_lanes() : offset{} {}
};
struct adaptive_table {
  adaptive_lanes of[16]{};
  constexpr adaptive_table() {
    for (unsigned level = 0; level < 16; ++level)
      for (uint32_t i = 0; i < 32; ++i) {
        const uint32_t m = lanes_of.divisor[level], s = lanes_of.short_low[level];
        of[level].offset[i] = (1 - m - s) * i - s;
      }
  }
};
constexpr adaptive_table adaptive_offsets;

bool get_adaptive(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, uint32_t* x) {
  const size_t groups = ceil_div(n, group), table = ceil_div(groups, 2);
  golomb_group_levels levels;
  if (!levels.read(body, size, groups)) return false;
  const auto level_of = [&](size_t g) { return levels[g]; };
  const auto bits_of = [](unsigned level) { return level < 2 ? 0 : level - 1; };
  uint64_t low_total = 0;
  for (size_t g = 0; g + 1 < groups; ++g) low_total += 32 * bits_of(level_of(g));
  low_total += bits_of(level_of(groups - 1)) * (n - (groups - 1) * group);
  const uint8_t* const lows = body + table;
  const size_t low_size = static_cast<size_t>(ceil_div(low_total, 8));
  if (low_size > size - table || !padding_is_zero(lows, low_total)) return false;
  const uint8_t* const unary = lows + low_size;
  const size_t unary_max = size - table - low_size;

  alignas(64) uint16_t positions[block_max + 2 * group];
  const size_t unary_bits = select_ones(unary, unary_max < 4095 ? unary_max : 4095, n, positions);
  if (!unary_bits)
    return unary_max > 4095 && golomb_get_adaptive(body, size, n, base, end, x);  // 16-bit lanes have a sign
  if (!padding_is_zero(unary, unary_bits)) return false;
  const size_t unary_size = ceil_div(unary_bits, 8), extra_max = unary_max - unary_size;
  const uint8_t* const extra = unary + unary_size;

  const summer sums_of;
  const __m512i one = kept(_mm512_set1_epi16(1)), last = kept(all32(15));
  const __m512i low_pairs = kept(_mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                                  38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0));
  const __m512i high_pairs = kept(_mm512_add_epi16(low_pairs, _mm512_set1_epi16(16)));
  __m512i start = all32(base);  // in every lane
  uint64_t extra_bits = 0, unaries = 0, previous = 0, low_at = 0;
  for (size_t i = 0; i < n; i += group) {
    const uint32_t valid = valid_lanes(i, n);
    const unsigned level = level_of(i / group), bits = bits_of(level);
    const unpacker& low_bits = unpackers.of[bits];
    const uint32_t m = lanes_of.divisor[level];
    const __m512i short_low = _mm512_set1_epi16(static_cast<short>(lanes_of.short_low[level]));
    const __m512i packed = load_tail(lows + low_at, static_cast<size_t>(size - table - low_at));
    low_at += 4 * bits;
    const __m512i v = _mm512_and_si512(
        _mm512_multishift_epi64_epi8(_mm512_load_si512(low_bits.shift),
                                     _mm512_permutexvar_epi8(_mm512_load_si512(low_bits.spread), packed)),
        _mm512_set1_epi16(static_cast<short>(low_bits.mask)));
    const uint32_t longer = _mm512_mask_cmpge_epu16_mask(valid, v, short_low);
    const uint32_t odd = _pdep_u32(static_cast<uint32_t>(bits_from(extra, extra_bits, extra_max, body)), longer);
    extra_bits += static_cast<unsigned>(_mm_popcnt_u32(longer));
    __m512i r = _mm512_add_epi16(v, _mm512_max_epu16(v, short_low));
    r = _mm512_mask_add_epi16(r, odd, r, one);
    const __m512i at =
        _mm512_sub_epi16(_mm512_loadu_si512(positions + i), _mm512_set1_epi16(static_cast<short>(previous)));
    const uint64_t behind = positions[i + group <= n ? i + group - 1 : n - 1] + uint64_t{1};
    unaries += m * (behind - previous - (i + group <= n ? group : n - i));
    previous = behind;
    __m512i low, high;
    if (level <= 10) {  // 32 · (2^10 − 1) < 2^15
      const __m512i sums = sums_of(r), weights = all32(m << 16 | 1);
      low = _mm512_madd_epi16(_mm512_permutex2var_epi16(sums, low_pairs, at), weights);
      high = _mm512_madd_epi16(_mm512_permutex2var_epi16(sums, high_pairs, at), weights);
    } else {
      const __m512i sums = sums_of32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(r)));
      const __m512i more = sums_of32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(r, 1)));
      const __m512i low_at32 = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(at));
      const __m512i high_at32 = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(at, 1));
      low = _mm512_add_epi32(sums, _mm512_mullo_epi32(low_at32, all32(m)));
      high = _mm512_add_epi32(_mm512_add_epi32(more, _mm512_permutexvar_epi32(last, sums)),
                              _mm512_mullo_epi32(high_at32, all32(m)));
    }
    const uint32_t* const offset = adaptive_offsets.of[level].offset;
    low = _mm512_add_epi32(_mm512_add_epi32(low, _mm512_load_si512(offset)), start);
    high = _mm512_add_epi32(_mm512_add_epi32(high, _mm512_load_si512(offset + 16)), start);
    if (valid == ~0u) {
      _mm512_storeu_si512(x + i, low);
      _mm512_storeu_si512(x + i + 16, high);
    } else {
      _mm512_mask_storeu_epi32(x + i, static_cast<__mmask16>(valid), low);
      _mm512_mask_storeu_epi32(x + i + 16, static_cast<__mmask16>(valid >> 16), high);
    }
    start = _mm512_add_epi32(_mm512_permutexvar_epi32(last, high), all32(1));
  }
  if (extra_max != ceil_div(extra_bits, 8) || !padding_is_zero(extra, extra_bits)) return false;
  const uint64_t without = base + unaries + n - 1;  // and the remainders' sum, below 2^13 · 2^15, as in get_block
  return without + static_cast<uint32_t>(x[n - 1] - static_cast<uint32_t>(without)) + 1 == end;
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

uint8_t* encode_avx512(const uint32_t* x, size_t n, uint64_t base, divisor_rule rule, uint8_t* out, bool& flagged) {
  if (rule.adaptive) return put_adaptive_block(x, n, base, out, flagged);
  uint8_t* end = put_block<narrow_gaps>(x, n, base, rule, out, flagged);
  if (!end) end = put_block<wide_gaps>(x, n, base, rule, out, flagged);
  return end ? end : golomb_put_block(x, n, base, rule, out, flagged);
}

bool decode_avx512(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, divisor_rule rule,
                   bool flagged, uint32_t* x) {
  if (flagged && rule.adaptive) return get_adaptive(body, size, n, base, end, x);
  const golomb_code code = rule.code(end - base, n, flagged);
  if (code.divisor > 65536) return golomb_decode_block(body, size, n, base, end, code, x);
  return code.divisor <= 1024 ? get_block<false>(body, size, n, base, end, code, x)  // 32 · 1023 < 2^15
                              : get_block<true>(body, size, n, base, end, code, x);
}

}  // namespace

const golomb_block_coder golomb_avx512{encode_avx512, decode_avx512};

}  // namespace dr
DR_ISA_END
#endif
