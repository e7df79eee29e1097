// Split Golomb decoded at 32 indices a step, or 8 where remainders are long. See golomb_decode_avx512.cpp, whose ways
// these are.
#include <algorithm>

#include "codecs/family/golomb/golomb_payload.hpp"

#if DR_X86
DR_AVX2_BEGIN
namespace dr {
namespace {

constexpr size_t block_max = size_t{1} << golomb_block_log2_max;

__m256i load256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
void store256(void* to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
__m256i all32(uint64_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }

struct ones_table {
  alignas(16) uint16_t of[256][8]{};  // positions of the ones of a byte
  constexpr ones_table() {
    for (unsigned byte = 0; byte < 256; ++byte)
      for (unsigned bit = 0, found = 0; bit < 8; ++bit)
        if (byte >> bit & 1) of[byte][found++] = static_cast<uint16_t>(bit);
  }
};
constexpr ones_table ones;

// Positions of the first n ones of a bit string of at most 65535 bits; 0 if there are fewer, else the bits up to the
// last of them.
size_t select_ones(const uint8_t* bits, size_t size, size_t n, uint16_t* positions) {
  const __m128i step = _mm_set1_epi16(8);
  __m128i base = _mm_setzero_si128();
  size_t found = 0;
  const auto take = [&](uint64_t byte) {
    const __m128i at = _mm_load_si128(reinterpret_cast<const __m128i*>(ones.of[byte]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(positions + found), _mm_add_epi16(at, base));
    base = _mm_add_epi16(base, step);
    found += static_cast<size_t>(_mm_popcnt_u64(byte));
  };
  size_t at = 0;
  for (; found < n && at + 8 <= size; at += 8) {
    const uint64_t word = load<uint64_t>(bits + at);
    for (unsigned i = 0; i < 64; i += 8) take(word >> i & 0xff);
  }
  for (; found < n && at < size; ++at) take(bits[at]);
  return found < n ? 0 : positions[n - 1] + size_t{1};
}

// Where field j of eight of k bits is: those of the upper half are loaded from byte k / 2.
struct eight_fields {
  alignas(32) uint8_t from[32];
  alignas(32) uint32_t shift[8];
};
struct fields_table {
  eight_fields of[21]{};
  constexpr fields_table() {
    for (unsigned k = 0; k < 21; ++k)
      for (unsigned j = 0; j < 8; ++j) {
        const unsigned bit = j < 4 ? k * j : k * j - k / 2 * 8;
        for (unsigned b = 0; b < 4; ++b) of[k].from[4 * j + b] = static_cast<uint8_t>(bit / 8 + b);
        of[k].shift[j] = bit % 8;
      }
  }
};
constexpr fields_table fields_of;

// Extra bits, as they are used up.
struct extra_string {
  const uint8_t* bytes;
  size_t size;
  uint64_t used = 0;

  uint32_t next() const {  // at least 8 bits, zeros past the end
    const size_t byte = used / 8;
    if (byte + 4 <= size) return load<uint32_t>(bytes + byte) >> used % 8;
    uint32_t word = 0;
    for (size_t i = byte; i < size; ++i) word |= uint32_t{bytes[i]} << 8 * (i - byte);
    return word >> used % 8;
  }
  bool is_used_up() const { return size == ceil_div(used, 8) && padding_is_zero(bytes, used); }
};

// Reads n indices of one divisor from `start` on: v in `low` and `there` bytes from it on, their ones at positions[i],
// the one before at `before` − 1.
[[gnu::always_inline]] inline void get_run(const uint8_t* low, size_t there, size_t n, uint32_t start,
                                           const golomb_code& code, const uint16_t* positions, uint32_t before,
                                           extra_string& extra, uint32_t* x) {
  // r + s = v + max(v, s) + extra bit, and x_i = start + M · (pos_i − before) + Σ (r_j + s) − s + i · (1 − M − s).
  const bool has_low = code.divisor > 1;
  const auto m = static_cast<uint32_t>(code.divisor), s = has_low ? static_cast<uint32_t>(code.short_low) : 0;
  const uint32_t slope = 1 - m - s;
  const unsigned k = code.low_bits;
  const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), step = all32(8 * slope), divisor = all32(m);
  __m256i offset = _mm256_add_epi32(all32(start - s - m * before), _mm256_mullo_epi32(iota, all32(slope)));
  const __m256i spread = load256(fields_of.of[k].from), shifts = load256(fields_of.of[k].shift);
  const __m256i mask = all32(low_mask(k)), short_low = all32(s);
  const __m256i below = all32(s - 1), nibbles = _mm256_slli_epi32(iota, 2), one = all32(1), last = all32(7);
  for (size_t i = 0; i < n; i += 8) {
    const size_t rest = n - i;
    __m256i v = _mm256_setzero_si256();
    if (has_low) {
      const uint8_t* p = low + i / 8 * k;
      uint8_t copy[32] = {};
      if (const size_t left = there - i / 8 * k; left < 16 + k / 2) {
        std::memcpy(copy, p, left);
        p = copy;
      }
      const auto half = [](const uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
      v = _mm256_inserti128_si256(_mm256_castsi128_si256(half(p)), half(p + k / 2), 1);
      v = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(v, spread), shifts), mask);
      auto longer = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi32(v, below))) & 0x11111111;
      if (rest < 8) longer &= static_cast<uint32_t>(low_mask(static_cast<unsigned>(4 * rest)));
      const __m256i odd = _mm256_srlv_epi32(all32(_pdep_u32(extra.next(), longer)), nibbles);
      extra.used += static_cast<unsigned>(_mm_popcnt_u32(longer));
      v = _mm256_add_epi32(_mm256_add_epi32(v, _mm256_max_epu32(v, short_low)), _mm256_and_si256(odd, one));
      v = _mm256_add_epi32(v, _mm256_slli_si256(v, 4));
      v = _mm256_add_epi32(v, _mm256_slli_si256(v, 8));
      v = _mm256_add_epi32(v, _mm256_shuffle_epi32(_mm256_permute2x128_si256(v, v, 0x08), 0xff));
    }
    const __m256i at = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(positions + i)));
    const __m256i index = _mm256_add_epi32(_mm256_add_epi32(v, offset), _mm256_mullo_epi32(at, divisor));
    if (rest >= 8) {
      store256(x + i, index);
    } else {
      alignas(32) uint32_t lanes[8];
      store256(lanes, index);
      std::memcpy(x + i, lanes, 4 * rest);
    }
    offset = _mm256_add_epi32(offset, _mm256_add_epi32(step, _mm256_permutevar8x32_epi32(v, last)));
  }
}

// As eight_fields, for sixteen fields of at most 10 bits in 16-bit lanes: four of the lower half, then four of the upper one,
// are neighbours in 32-bit lanes once they are unpacked. The upper half is loaded from byte k / 2. No field has bits in
// three bytes: of 10, it begins at an even one.
constexpr unsigned sixteen_bits_max = 10;
constexpr unsigned field_of_lane(unsigned lane) { return lane / 8 * 4 + lane % 8 / 4 * 8 + lane % 4; }
struct sixteen_fields {
  alignas(32) uint8_t from[32];
  alignas(32) uint16_t up[16];  // the shift that brings it to the top
};
struct sixteen_table {
  sixteen_fields of[sixteen_bits_max + 1]{};
  constexpr sixteen_table() {
    for (unsigned k = 1; k <= sixteen_bits_max; ++k)
      for (unsigned lane = 0; lane < 16; ++lane) {
        const unsigned bit = k * field_of_lane(lane) - (lane < 8 ? 0 : k / 2 * 8);
        of[k].from[2 * lane] = static_cast<uint8_t>(bit / 8);
        of[k].from[2 * lane + 1] = static_cast<uint8_t>(bit / 8 + 1);
        of[k].up[lane] = static_cast<uint16_t>(1u << (16 - k - bit % 8));
      }
  }
};
constexpr sixteen_table sixteens;

// Reads as get_run, 32 at a time as long as there are bytes to load; positions are below 2^15 and remainders of eight
// add up to less. Returns how many, and leaves the next index in `start`.
size_t get_narrow(const uint8_t* low, size_t there, size_t n, uint32_t& start, const golomb_code& code,
                  const uint16_t* positions, extra_string& extra, uint32_t* x) {
  const auto m = static_cast<uint32_t>(code.divisor), s = static_cast<uint32_t>(code.short_low);
  const unsigned k = code.low_bits;
  const __m256i slope = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), all32(1 - m - s));
  const __m256i later = _mm256_add_epi32(slope, all32(8 * (1 - m - s))), step = all32(16 * (1 - m - s));
  const __m256i spread = load256(sixteens.of[k].from), up = load256(sixteens.of[k].up);
  const __m256i down = _mm256_set1_epi16(static_cast<short>(1u << k));
  const __m256i short_low = _mm256_set1_epi16(static_cast<short>(s)),
                below_long = _mm256_set1_epi16(static_cast<short>(s - 1));
  const __m256i weights = all32(m << 16 | 1), fifth = all32(5), last = all32(7);
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bit_of = _mm256_setr_epi16(1, 2, 4, 8, 0x100, 0x200, 0x400, 0x800, 0x10, 0x20, 0x40, 0x80, 0x1000,
                                           0x2000, 0x4000, static_cast<short>(0x8000));
  const __m256i ends = _mm256_setr_epi8(6, 7, 6, 7, 6, 7, 6, 7, 14, 15, 14, 15, 14, 15, 14, 15, 6, 7, 6, 7, 6, 7, 6, 7,
                                        14, 15, 14, 15, 14, 15, 14, 15);
  const __m256i upper = all32(0x10000);
  __m256i base = all32(start - s);
  const auto half = [](const uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
  const auto fields = [&](const uint8_t* p) {
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(half(p)), half(p + k / 2), 1);
    return _mm256_mulhi_epu16(_mm256_mullo_epi16(_mm256_shuffle_epi8(bytes, spread), up), down);
  };
  // Loads the last fields of 32 from byte 2k + k / 2 on; skips the others.
  const size_t reach = 2 * k + k / 2 + 16;
  const size_t groups = there < reach ? 0 : k ? std::min(n / 32, (there - reach) / (4 * k) + 1) : n / 32;
  // First v + max(v, s) and the extra bits, then indices: in one loop the way from a field to its index would be longer
  // than schedulers see.
  alignas(32) uint16_t doubled[block_max];
  uint16_t odd[block_max / 16];
  const size_t size = extra.size;
  const uint8_t* const extras = extra.bytes;
  size_t used = extra.used;
  for (size_t g = 0; g < groups; ++g, low += 4 * k) {
    const __m256i a = fields(low), b = fields(low + 2 * k);
    const __m256i longer_of = _mm256_packs_epi16(_mm256_cmpgt_epi16(a, below_long), _mm256_cmpgt_epi16(b, below_long));
    const auto longer = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permutevar8x32_epi32(longer_of, in_order)));
    const size_t byte = used / 8;
    const uint64_t word = byte + 8 <= size ? load<uint64_t>(extras + byte)
                          : byte < size    ? load_bytes(extras + byte, static_cast<unsigned>(size - byte))
                                           : 0;
    store(odd + 2 * g, _pdep_u32(static_cast<uint32_t>(word >> used % 8), longer));
    used += static_cast<unsigned>(_mm_popcnt_u32(longer));
    store256(doubled + 32 * g, _mm256_add_epi16(a, _mm256_max_epi16(a, short_low)));
    store256(doubled + 32 * g + 16, _mm256_add_epi16(b, _mm256_max_epi16(b, short_low)));
  }
  for (size_t i = 0; i < 32 * groups; i += 16) {
    const __m256i bits = _mm256_set1_epi16(static_cast<short>(odd[i / 16]));
    // r + s = v + max(v, s) + extra bit; their sums in each four, then with those of the lower half's.
    __m256i sum = _mm256_sub_epi16(load256(doubled + i), _mm256_cmpeq_epi16(_mm256_and_si256(bits, bit_of), bit_of));
    sum = _mm256_add_epi16(sum, _mm256_slli_epi64(sum, 16));
    sum = _mm256_add_epi16(sum, _mm256_slli_epi64(sum, 32));
    const __m256i four = _mm256_shuffle_epi8(sum, ends);
    sum = _mm256_add_epi16(sum, _mm256_permute2x128_si256(four, four, 0x08));
    const __m256i at = _mm256_permute4x64_epi64(load256(positions + i), 0xd8);
    const __m256i eight = _mm256_madd_epi16(_mm256_unpacklo_epi16(sum, at), weights),
                  more = _mm256_madd_epi16(_mm256_unpackhi_epi16(sum, at), weights);
    store256(x + i, _mm256_add_epi32(eight, _mm256_add_epi32(base, slope)));
    base = _mm256_add_epi32(base, _mm256_madd_epi16(_mm256_permutevar8x32_epi32(sum, fifth), upper));
    store256(x + i + 8, _mm256_add_epi32(more, _mm256_add_epi32(base, later)));
    base = _mm256_add_epi32(base,
                            _mm256_add_epi32(step, _mm256_madd_epi16(_mm256_permutevar8x32_epi32(sum, last), upper)));
  }
  extra.used = used;
  start = static_cast<uint32_t>(_mm256_cvtsi256_si32(base)) + s;
  return 32 * groups;
}

bool get_block(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, golomb_code code, uint32_t* x) {
  const auto scalar = [&] { return golomb_decode_block(body, size, n, base, end, code, x); };
  const uint64_t low_total = code.divisor > 1 ? uint64_t{code.low_bits} * n : 0;
  const size_t low_size = static_cast<size_t>(ceil_div(low_total, 8));
  if (low_size > size || !padding_is_zero(body, low_total)) return false;
  if (code.low_bits > 20) return scalar();
  const uint8_t* const unary = body + low_size;
  const size_t unary_max = size - low_size;
  alignas(32) uint16_t positions[block_max + 128];
  const size_t unary_bits = select_ones(unary, unary_max < 8191 ? unary_max : 8191, n, positions);
  if (!unary_bits) return unary_max > 8191 && scalar();
  if (!padding_is_zero(unary, unary_bits)) return false;
  const size_t unary_size = ceil_div(unary_bits, 8);
  extra_string extra{unary + unary_size, unary_max - unary_size};
  size_t done = 0;
  auto start = static_cast<uint32_t>(base);
  // Eight of r + s are below 8 · 2^11.
  if (code.divisor > 1 && code.low_bits <= sixteen_bits_max && unary_bits <= 32768)
    done = get_narrow(body, size, n, start, code, positions, extra, x);
  if (done < n) {
    const size_t at = done / 8 * code.low_bits;
    get_run(body + at, size - at, n - done, start, code, positions + done, 0, extra, x + done);
  }
  if (!extra.is_used_up()) return false;
  // As in golomb_decode_avx512.cpp; remainders sum up to below 2^13 · 2^19.
  const uint64_t without = base + code.divisor * (unary_bits - n) + n - 1;
  return without + static_cast<uint32_t>(x[n - 1] - static_cast<uint32_t>(without)) + 1 == end;
}

bool get_adaptive(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, uint32_t* x) {
  const size_t groups = ceil_div(n, 32), table = ceil_div(groups, 2);
  golomb_group_levels levels;
  if (!levels.read(body, size, groups)) return false;
  const auto code_of = [&](size_t g) -> const golomb_code& { return golomb_levels.of[levels[g]]; };
  uint64_t low_total = 0;
  for (size_t g = 0; g < groups; ++g) low_total += code_of(g).low_bits * (g + 1 < groups ? 32 : n - 32 * g);
  const uint8_t* low = body + table;
  const size_t low_size = static_cast<size_t>(ceil_div(low_total, 8));
  if (low_size > size - table || !padding_is_zero(low, low_total)) return false;
  const uint8_t* const unary = low + low_size;
  const size_t unary_max = size - table - low_size;
  alignas(32) uint16_t positions[block_max + 128];
  const size_t unary_bits = select_ones(unary, unary_max < 8191 ? unary_max : 8191, n, positions);
  if (!unary_bits) return unary_max > 8191 && golomb_get_adaptive(body, size, n, base, end, x);
  if (!padding_is_zero(unary, unary_bits)) return false;
  const size_t unary_size = ceil_div(unary_bits, 8);
  extra_string extra{unary + unary_size, unary_max - unary_size};
  uint64_t unaries = 0;
  uint32_t before = 0, start = static_cast<uint32_t>(base);
  for (size_t i = 0; i < n; i += 32) {
    const golomb_code& code = code_of(i / 32);
    const size_t some = n - i < 32 ? n - i : 32;
    get_run(low, static_cast<size_t>(body + size - low), some, start, code, positions + i, before, extra, x + i);
    low += 4 * code.low_bits;
    start = x[i + some - 1] + 1;
    const uint32_t behind = positions[i + some - 1] + 1u;
    unaries += code.divisor * (behind - before - some);
    before = behind;
  }
  if (!extra.is_used_up()) return false;
  const uint64_t without = base + unaries + n - 1;
  return without + static_cast<uint32_t>(x[n - 1] - static_cast<uint32_t>(without)) + 1 == end;
}

}  // namespace

bool golomb_get_avx2(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, divisor_rule rule,
                     bool flagged, uint32_t* x) {
  if (flagged && rule.adaptive) return get_adaptive(body, size, n, base, end, x);
  return get_block(body, size, n, base, end, rule.code(end - base, n, flagged), x);
}

}  // namespace dr
DR_ISA_END
#endif
