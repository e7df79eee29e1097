// Split Golomb encoded at 16 gaps a step, in 16-bit lanes. See golomb_encode_avx512.cpp, whose ways these are.
#include "codecs/family/golomb/golomb_lanes.hpp"
#include "codecs/family/golomb/golomb_payload.hpp"
#include "codecs/family/golomb/golomb_strings_vectors.hpp"
#include "primitive/packing.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

struct quotients {
  __m256i q, r;
};
// Division of gaps below 2^15 by M, 2 to 2^15, exactly: by an inverse ⌈2^(16 + k) / M⌉, k = ⌈log2 M⌉ − 1, which has 16
// bits and is too large by less than 1. So a product is by less than g · M / 2^(16 + k) / M <= 1 / M.
struct divider {
  __m256i divisor, inverse;
  __m128i shift;
  explicit divider(const golomb_code& code)
      : divisor(all16(code.divisor)),
        inverse(all16(ceil_div(uint64_t{1} << (16 + code.low_bits), code.divisor))),
        shift(_mm_cvtsi32_si128(static_cast<int>(code.low_bits))) {}
  [[gnu::always_inline]] __m256i quotient(__m256i gaps) const {
    return _mm256_srl_epi16(_mm256_mulhi_epu16(gaps, inverse), shift);
  }
  [[gnu::always_inline]] quotients operator()(__m256i gaps) const {
    const __m256i q = quotient(gaps);
    return {q, _mm256_sub_epi16(gaps, _mm256_mullo_epi16(q, divisor))};
  }
};
uint32_t sum_of(__m256i v) {  // of 16 lanes
  v = _mm256_add_epi32(_mm256_and_si256(v, all32(0xffff)), _mm256_srli_epi32(v, 16));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1))));
}

// Bits of a body of gaps below 2^15 with a divisor above 1, while the gaps are computed: in 16-bit lanes, for the
// quotients of a block add up to less than 2^16 (golomb_tile.hpp).
struct body_cost {
  const golomb_code& code;
  divider divide;
  __m256i below_long, zeros = _mm256_setzero_si256(), extras = zeros;

  explicit body_cost(const golomb_code& c) : code(c), divide(c), below_long(all16(c.short_low - 1)) {}
  [[gnu::always_inline]] void add(__m256i gaps) {
    const quotients o = divide(gaps);
    zeros = _mm256_add_epi16(zeros, o.q);
    extras = _mm256_sub_epi16(extras, _mm256_cmpgt_epi16(o.r, below_long));
  }
  [[gnu::always_inline]] uint64_t size(size_t n) const {
    uint64_t extra = sum_of(extras);
    if (code.short_low == 0) extra = n;  // but for the lanes that are not there
    return ceil_div(n * code.low_bits, 8) + ceil_div(n + sum_of(zeros), 8) + ceil_div(extra, 8);
  }
};
// The same for the divisor 1.
uint64_t unit_size(uint64_t span) { return ceil_div(span, 8); }

// Gaps of n indices, zero up to a multiple of 32, and the bits by each of `costs`. False if one is 2^15 or more (or
// near it). (Inlined, so that sums stay in registers.)
template <class... Costs>
[[gnu::always_inline]] inline bool narrow_gaps(const uint32_t* x, size_t n, uint64_t base, uint16_t* gaps,
                                               Costs&... costs) {
  const __m256i one = all16(1);
  __m256i any = _mm256_setzero_si256();
  for (size_t i = 0; i < n; i += 32) {
    const uint32_t* before = x + i - 1;
    uint32_t copy[33];
    if (i == 0 || n - i < 32) {
      copy[0] = i ? x[i - 1] : static_cast<uint32_t>(base) - 1;
      for (size_t j = 0; j < 32; ++j) copy[j + 1] = i + j < n ? x[i + j] : copy[j] + 1;
      before = copy;
    }
    const auto steps = [&](size_t at) { return _mm256_sub_epi32(load256(before + at + 1), load256(before + at)); };
    const auto sixteen = [&](size_t at) {
      const __m256i a = steps(at), b = steps(at + 8);
      any = _mm256_or_si256(any, _mm256_or_si256(a, b));
      const __m256i g = _mm256_sub_epi16(_mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8), one);
      store256(gaps + i + at, g);
      (costs.add(g), ...);
    };
    sixteen(0);
    sixteen(16);
  }
  return _mm256_testz_si256(any, all32(~0x7fffu));
}

uint64_t body_size(const uint16_t* gaps, size_t n, const golomb_code& code) {  // code.divisor > 1
  body_cost cost(code);
  for (size_t i = 0; i < n; i += 32) {
    cost.add(load256(gaps + i));
    cost.add(load256(gaps + i + 16));
  }
  return cost.size(n);
}

// Of 32 gaps numbers 0 to 7 and 16 to 23, or, from 8 on, the others.
__m256i load_lanes(const uint16_t* gaps) {
  const auto half = [](const uint16_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(half(gaps)), half(gaps + 16), 1);
}

// Appends n gaps (and zeros up to a multiple of 32) of one divisor. next: indices that will be read soon: by then they
// are in the cache.
void put_run(const uint16_t* gaps, size_t n, const golomb_code& code, const uint32_t* next, golomb_strings& to) {
  alignas(32) uint8_t quotient[golomb_block_max];
  if (code.divisor == 1) {
    for (size_t i = 0; i < n; i += 32)
      store256(quotient + i, _mm256_packus_epi16(load_lanes(gaps + i), load_lanes(gaps + i + 8)));
    return put_quotients(to.unaries, quotient, n, [&](size_t i) { return gaps[i]; });
  }
  const unsigned k = code.low_bits;
  const golomb_packer low_bits(k);
  const divider divide(code);
  const __m256i short_low = all16(code.short_low), below_long = all16(code.short_low - 1);
  bit_appender extras = to.extras;
  uint8_t* const low = to.low_end;
  for (size_t i = 0; i < n; i += 32) {
    const auto ahead = reinterpret_cast<uintptr_t>(next) + i * sizeof *next;  // (There may be nothing.)
    _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(ahead + 64), _MM_HINT_T0);
    const quotients a = divide(load_lanes(gaps + i)), b = divide(load_lanes(gaps + i + 8));
    store256(quotient + i, _mm256_packus_epi16(a.q, b.q));
    // Below s, (r + s) / 2 is not below r; from there on it is.
    const __m256i moved_a = _mm256_add_epi16(a.r, short_low), moved_b = _mm256_add_epi16(b.r, short_low);
    if (k)
      low_bits.put(_mm256_min_epu16(a.r, _mm256_srli_epi16(moved_a, 1)),
                   _mm256_min_epu16(b.r, _mm256_srli_epi16(moved_b, 1)), low + i / 8 * k);
    const auto mask_of = [](__m256i of_a, __m256i of_b) {
      return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(of_a, of_b)));
    };
    const uint32_t longer =
        mask_of(_mm256_cmpgt_epi16(a.r, below_long), _mm256_cmpgt_epi16(b.r, below_long)) & golomb_valid_lanes(i, n);
    const uint32_t odd = mask_of(_mm256_slli_epi16(moved_a, 15), _mm256_slli_epi16(moved_b, 15));
    extras.put(_pext_u32(odd, longer), static_cast<unsigned>(_mm_popcnt_u32(longer)));
  }
  // (Lanes that are not there have gap 0, so v = 0: padding.)
  to.low_end = low + ceil_div(n * k, 8);
  to.extras = extras;
  put_quotients(to.unaries, quotient, n, [&](size_t i) { return code.quotient(gaps[i]); });
}

// Gaps below 2^31, in 32-bit lanes: of blocks with one of 2^15 or more.
struct wide_gaps {
  alignas(32) uint32_t of[golomb_block_max];  // zero up to a multiple of 8

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

// Bytes of the body; 0 if a quotient or M is too large to estimate (or M is 1: then most quotients are).
uint64_t wide_body_size(const wide_gaps& gaps, size_t n, const golomb_code& code) {
  if (code.divisor == 1 || code.low_bits > 20) return 0;
  const wide_divider divide(code);
  __m256i sum = _mm256_setzero_si256(), largest = sum;
  uint64_t extra = 0;
  for (size_t i = 0; i < n; i += 8) {
    const quotients o = divide(gaps.of + i);
    sum = _mm256_add_epi32(sum, o.q);
    largest = _mm256_max_epi32(largest, o.q);
    extra += static_cast<unsigned>(_mm_popcnt_u32(mask8(divide.longer(o.r)) & valid_eight(i, n)));
  }
  if (mask8(_mm256_cmpgt_epi32(largest, all32(32700)))) return 0;
  alignas(32) uint32_t lanes[8];
  store256(lanes, sum);
  uint64_t unary = n;
  for (const uint32_t part : lanes) unary += part;
  return ceil_div(n * code.low_bits, 8) + ceil_div(unary, 8) + ceil_div(extra, 8);
}

// A body of a size.
uint8_t* put_wide(const wide_gaps& gaps, size_t n, const golomb_code& code, uint8_t* out) {
  const wide_divider divide(code);
  alignas(32) uint32_t v[golomb_block_max];
  golomb_strings to;
  bit_appender unaries = to.unaries, extras = to.extras;
  const __m256i one = all32(1);
  for (size_t i = 0; i < n; i += 8) {
    const quotients o = divide(gaps.of + i);
    const __m128i q = _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(o.q, o.q), 0x08));
    if (i + 8 <= n) {
      put_unaries(unaries, q);
    } else {
      alignas(16) uint16_t lanes[8];
      _mm_store_si128(reinterpret_cast<__m128i*>(lanes), q);
      unaries = put_long_unaries(unaries, lanes, n - i);
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

// Bits of a group at a level, of a sum of gaps.
uint64_t group_bits(const uint16_t* gaps, size_t n, uint64_t sum, unsigned level) {
  const golomb_code& code = golomb_levels.of[level];
  if (level == 0) return n + sum;
  const divider divide(code);
  const __m256i below_long = all16(code.short_low - 1);
  const quotients a = divide(load256(gaps)), b = divide(load256(gaps + 16));
  const __m256i all =
      _mm256_sub_epi16(_mm256_add_epi16(a.q, b.q),
                       _mm256_add_epi16(_mm256_cmpgt_epi16(a.r, below_long), _mm256_cmpgt_epi16(b.r, below_long)));
  const __m256i sums = _mm256_madd_epi16(all, all16(1));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  const size_t absent = code.short_low == 0 ? 32 - n : 0;  // lanes that are not there have r = 0
  return n * (code.low_bits + 1) + static_cast<uint32_t>(_mm_cvtsi128_si32(four)) - absent;
}

uint8_t* put_adaptive_block(const uint32_t* x, size_t n, uint64_t base, uint8_t* out, bool& flagged) {
  const uint64_t span = uint64_t{x[n - 1]} + 1 - base;
  const golomb_code plain = adaptive_rule.code(span, n, false);
  alignas(32) uint16_t gaps[golomb_block_max + 32];
  uint8_t levels[golomb_block_max / 32];
  bool wide[golomb_block_max / 32] = {};
  const bool narrow = narrow_gaps(x, n, base, gaps) && plain.divisor <= 32768;
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
    const golomb_choice choice =
        choose_level(first_level(sum, size), [&](unsigned at) { return group_bits(gaps + i, size, sum, at); });
    levels[i / 32] = static_cast<uint8_t>(choice.level);
    bits += 4 + choice.bits;
  }
  wide_gaps all;
  const auto narrow_size = [&] { return plain.divisor > 1 ? body_size(gaps, n, plain) : unit_size(span); };
  uint64_t size = narrow ? narrow_size() : all.load(x, n, base) ? wide_body_size(all, n, plain) : 0;
  const bool scalar = size == 0;
  if (scalar) size = golomb_block_size(x, n, base, plain);
  flagged = ceil_div(bits, 8) + 3 < size;
  if (!flagged && !narrow) return scalar ? golomb_encode_block(x, n, base, plain, out) : put_wide(all, n, plain, out);
  golomb_strings to;
  if (!flagged) {
    put_run(gaps, n, plain, x + n, to);
    return to.copy(out);
  }
  bit_writer table(out);
  for (size_t i = 0; i < n; i += 32) {
    const golomb_code& code = golomb_levels.of[levels[i / 32]];
    table.put(levels[i / 32], 4);
    if (wide[i / 32])
      to.low_end = golomb_wide_group(x, i, n, base).put(code, to.low_end, to.unaries, to.extras);
    else
      put_run(gaps + i, n - i < 32 ? n - i : 32, code, x + n + i, to);
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
  alignas(32) uint16_t gaps[golomb_block_max + 32];
  const auto wide = [&] { return put_wide_block(x, n, base, rule, out, flagged); };
  if (code.divisor > 32768) return wide();
  flagged = false;
  if (rule.may_cluster && code.divisor > 1) {
    const golomb_code other = rule.code(span, n, true);
    body_cost cost(code);
    if (other.divisor == 1) {
      if (!narrow_gaps(x, n, base, gaps, cost)) return wide();
      flagged = unit_size(span) < cost.size(n);
    } else {
      body_cost other_cost(other);
      if (!narrow_gaps(x, n, base, gaps, cost, other_cost)) return wide();
      flagged = other_cost.size(n) < cost.size(n);
    }
    if (flagged) code = other;
  } else if (!narrow_gaps(x, n, base, gaps)) {
    return wide();
  }
  golomb_strings to;
  put_run(gaps, n, code, x + n, to);
  return to.copy(out);
}

}  // namespace dr
DR_ISA_END
#endif
