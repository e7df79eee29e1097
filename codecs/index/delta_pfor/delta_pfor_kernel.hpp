// Gaps of 128 indices at a time, in the width with the smallest total; wider gaps are patched (Zukowski et al. 2006,
// PFor; Yan, Ding, Suel 2009, OptPFD; Lemire, Boytsov 2015, FastPFor; layout: SPEC.md).
#pragma once

#include <array>
#include <iterator>

#include "codecs/family/gaps/gaps.hpp"

namespace dr {

// A block's first two bytes: bits per gap; for wider gaps (exceptions) the bits of their upper parts and their number, or
// a mark for a bitmap.
struct pfor_head {
  unsigned bits = 0, upper_bits = 0, exceptions = 0;
};
inline constexpr unsigned pfor_head_size = 2, pfor_bitmap = 31;

constexpr uint16_t pfor_pack_head(const pfor_head& h) {
  return static_cast<uint16_t>(h.bits | h.upper_bits << 6 | h.exceptions << 11);
}
constexpr pfor_head pfor_unpack_head(uint16_t x) { return {x & 63u, x >> 6 & 31u, x >> 11 & 31u}; }

// Whether 128 gaps span less than 2^32: with exceptions they are below 2^(bits + upper_bits + 1).
constexpr bool pfor_narrow(const pfor_head& h) { return h.bits + h.upper_bits < narrow_gap_bits; }

// A position costs up to 7 bits in a list and n bits in a bitmap, so eighths are less in a list. Sixteen fit a vector.
constexpr bool pfor_listed(size_t n, unsigned exceptions) { return exceptions <= n / 8; }
constexpr unsigned pfor_position_bits(size_t n) { return bit_width(n - 1); }

constexpr uint64_t pfor_exceptions_size(size_t n, unsigned exceptions, unsigned upper_bits) {
  if (exceptions == 0) return 0;
  return pfor_listed(n, exceptions) ? packed_size(exceptions, pfor_position_bits(n) + upper_bits)
                                    : ceil_div(n, 8) + packed_size(exceptions, upper_bits);
}

// A block is at most as large as with the width of its widest gap.
constexpr uint64_t delta_pfor_bound(uint64_t universe, uint64_t count_max) {
  return packed_gaps_bound(universe, count_max) + (pfor_head_size - 1) * ceil_div(count_max, gap_block);
}

// Numbers after the last exception that vectors access.
inline constexpr size_t pfor_room = 16;

struct pfor_form {
  unsigned bits, upper_bits, exceptions;
  uint64_t size;  // without head
};

// The form of fewest bytes, the widest among equals. wider(bits): the number of gaps that need more bits.
template <class Wider>
pfor_form pfor_least(size_t n, uint32_t widest, Wider&& wider) {
  const unsigned top = bit_width(widest);
  pfor_form best{top, 0, 0, packed_size(n, top)};
  for (unsigned bits = top; bits-- > 0;) {
    const unsigned exceptions = wider(bits), upper_bits = bit_width((widest >> bits) - 1);
    // With k <= bits there are no fewer exceptions, of at least top - 1 - k bits each, so no fewer than
    // n·k + exceptions·(top - 1 - k) >= exceptions·(top - 1) bits beside positions.
    const uint64_t positions = pfor_listed(n, exceptions) ? uint64_t{exceptions} * pfor_position_bits(n) : n;
    if (positions + uint64_t{exceptions} * (top - 1) >= 8 * best.size) break;
    if (upper_bits > 31 || bits + upper_bits > 32) continue;
    const uint64_t size = packed_size(n, bits) + pfor_exceptions_size(n, exceptions, upper_bits);
    if (size < best.size) best = {bits, upper_bits, exceptions, size};
  }
  return best;
}

inline pfor_form pfor_form_scalar(const uint32_t* gaps, size_t n) {
  unsigned of_width[33] = {};
  uint32_t widest = 0;
  for (size_t i = 0; i < n; ++i) {
    ++of_width[bit_width(gaps[i])];
    if (gaps[i] > widest) widest = gaps[i];
  }
  for (unsigned k = 32; k-- > 0;) of_width[k] += of_width[k + 1];
  return pfor_least(n, widest, [&](unsigned bits) { return of_width[bits + 1]; });
}

// Of n gaps: the low bits, the list of exceptions, and their upper bits in order.
inline void pfor_split_scalar(const uint32_t* gaps, size_t n, unsigned bits, uint32_t* low, uint64_t* which,
                              uint32_t* upper) {
  which[0] = which[1] = 0;
  for (size_t i = 0; i < n; ++i) {
    low[i] = gaps[i] & static_cast<uint32_t>(low_mask(bits));
    if (const uint32_t above = gaps[i] >> bits) {
      which[i / 64] |= uint64_t{1} << i % 64;
      *upper++ = above;
    }
  }
}

// A list's bytes, or a bitmap's and those of its numbers, if all of them are there and padded with zeros; else 0.
inline uint64_t pfor_whole_list(const uint8_t* in, uint64_t size, size_t n, const pfor_head& head) {
  const uint64_t bits = uint64_t{head.exceptions} * (pfor_position_bits(n) + head.upper_bits),
                 taken = ceil_div(bits, 8);
  return pfor_listed(n, head.exceptions) && taken <= size && padding_is_zero(in, bits) ? taken : 0;
}
inline uint64_t pfor_whole_bitmap(const uint8_t* in, uint64_t size, size_t n, unsigned exceptions,
                                  unsigned upper_bits) {
  const uint64_t bitmap = ceil_div(n, 8), bits = uint64_t{exceptions} * upper_bits, taken = bitmap + ceil_div(bits, 8);
  if (pfor_listed(n, exceptions) || taken > size) return 0;
  return padding_is_zero(in, n) && padding_is_zero(in + bitmap, bits) ? taken : 0;
}

// Reads a block's exceptions from [in, in + size), in a payload that ends at `end`: above[i] of n is the part of gap i
// above its low bits, 0 if it is not an exception; one more is scratch. Returns their bytes, or 0 if they are not as an encoder
// writes.
inline uint64_t pfor_above_scalar(const uint8_t* in, uint64_t size, const uint8_t*, size_t n, pfor_head head,
                                  uint32_t* above) {
  uint64_t which[2] = {}, taken;
  uint32_t all = 0;
  for (size_t i = 0; i < n; ++i) above[i] = 0;
  const auto take = [&](uint64_t i, bit_reader& reader) {
    const auto upper = static_cast<uint32_t>(reader.get(head.upper_bits));
    all |= upper;
    above[i] = upper + 1;
  };
  if (head.exceptions == pfor_bitmap) {
    const uint64_t bitmap = ceil_div(n, 8);
    if (bitmap > size) return 0;
    std::memcpy(which, in, bitmap);
    taken = pfor_whole_bitmap(in, size, n, popcount(which[0]) + popcount(which[1]), head.upper_bits);
    if (taken == 0) return 0;
    bit_reader reader(in + bitmap, 8 * (taken - bitmap));
    for (const uint64_t word : {0, 1})
      for (uint64_t left = which[word]; left; left &= left - 1) take(64 * word + countr_zero(left), reader);
  } else {
    taken = pfor_whole_list(in, size, n, head);
    if (taken == 0) return 0;
    bit_reader reader(in, 8 * taken);
    uint64_t next = 0;
    for (unsigned i = 0; i < head.exceptions; ++i) {
      const uint64_t position = reader.get(pfor_position_bits(n));
      if (position < next || position >= n) return 0;
      next = position + 1;
      take(position, reader);
    }
  }
  return bit_width(all) == head.upper_bits ? taken : 0;
}

// x[i] of n, as ungap_scalar, from the low bits of their gaps and their upper parts.
inline uint64_t pfor_ungap_scalar(const uint8_t* in, const uint8_t*, size_t n, unsigned bits, uint64_t next,
                                  const uint32_t* above, uint32_t* x) {
  bit_reader reader(in, n * bits);
  for (size_t i = 0; i < n; ++i) {
    next += reader.get(bits) + (uint64_t{above[i]} << bits);
    x[i] = static_cast<uint32_t>(next++);
  }
  return next;
}

pfor_form pfor_form_avx2(const uint32_t* gaps, size_t n);
void pfor_split_avx2(const uint32_t* gaps, size_t n, unsigned bits, uint32_t* low, uint64_t* which, uint32_t* upper);
uint64_t pfor_above_avx2(const uint8_t* in, uint64_t size, const uint8_t* end, size_t n, pfor_head head,
                         uint32_t* above);
uint64_t pfor_ungap_avx2(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next,
                         const uint32_t* above, uint32_t* x);
pfor_form pfor_form_avx512(const uint32_t* gaps, size_t n);
void pfor_split_avx512(const uint32_t* gaps, size_t n, unsigned bits, uint32_t* low, uint64_t* which, uint32_t* upper);
uint64_t pfor_above_avx512(const uint8_t* in, uint64_t size, const uint8_t* end, size_t n, pfor_head head,
                           uint32_t* above);
uint64_t pfor_ungap_avx512(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint64_t next,
                           const uint32_t* above, uint32_t* x);

inline constexpr cpu_table<decltype(&pfor_form_scalar)> pfor_form_of{pfor_form_scalar, on_x86(pfor_form_avx2),
                                                                     on_x86(pfor_form_avx512)};
inline constexpr cpu_table<decltype(&pfor_split_scalar)> pfor_split{pfor_split_scalar, on_x86(pfor_split_avx2),
                                                                    on_x86(pfor_split_avx512)};
inline constexpr cpu_table<decltype(&pfor_above_scalar)> pfor_above{pfor_above_scalar, on_x86(pfor_above_avx2),
                                                                    on_x86(pfor_above_avx512)};
inline constexpr cpu_table<decltype(&pfor_ungap_scalar)> pfor_ungap{pfor_ungap_scalar, on_x86(pfor_ungap_avx2),
                                                                    on_x86(pfor_ungap_avx512)};

inline uint64_t delta_pfor_size(const uint32_t* x, uint64_t n, cpu_level level) {
  const auto form_of = pfor_form_of.at(level);
  uint64_t size = pfor_head_size * ceil_div(n, gap_block);
  each_gap_block(x, n, level,
                 [&](uint64_t, size_t m, const uint32_t* gaps, unsigned) { size += form_of(gaps, m).size; });
  return size;
}

// The exceptions of a block of n, after its low bits. upper: less one, since none is 0. Returns the end.
inline uint8_t* pfor_put_exceptions(const uint64_t* which, uint32_t* upper, size_t n, const pfor_form& form,
                                    decltype(&pack_scalar) pack_at, uint8_t* out) {
  if (!pfor_listed(n, form.exceptions)) {
    std::memcpy(out, which, ceil_div(n, 8));
    return pack_at(upper, form.exceptions, form.upper_bits, out + ceil_div(n, 8));
  }
  const unsigned position_bits = pfor_position_bits(n);
  const bool fit = position_bits + form.upper_bits <= 32;
  bit_writer writer(out);
  unsigned i = 0;
  for (const uint64_t word : {0, 1})
    for (uint64_t left = which[word]; left; left &= left - 1, ++i) {
      const uint32_t position = static_cast<uint32_t>(64 * word) + countr_zero(left);
      if (fit) {
        upper[i] = position | upper[i] << position_bits;
      } else {
        writer.put(position, position_bits);
        writer.put(upper[i], form.upper_bits);
      }
    }
  return fit ? pack_at(upper, form.exceptions, position_bits + form.upper_bits, out) : writer.finish();
}

//   x [n] strictly ascending     out: delta_pfor_bound bytes. Returns bytes written.
inline uint64_t delta_pfor_encode(const uint32_t* x, uint64_t n, cpu_level level, uint8_t* out) {
  const auto form_of = pfor_form_of.at(level);
  const auto split_at = pfor_split.at(level);
  const auto pack_at = pack_bits.at(level);
  uint8_t *head = out, *body = out + pfor_head_size * ceil_div(n, gap_block);
  each_gap_block(x, n, level, [&](uint64_t, size_t m, const uint32_t* gaps, unsigned) {
    const pfor_form form = form_of(gaps, m);
    const unsigned exceptions = pfor_listed(m, form.exceptions) ? form.exceptions : pfor_bitmap;
    store(head, pfor_pack_head({form.bits, form.upper_bits, exceptions}));
    head += pfor_head_size;
    if (form.exceptions == 0) {
      body = pack_at(gaps, m, form.bits, body);
      return;
    }
    uint32_t low[gap_block], upper[gap_block + pfor_room];
    uint64_t which[2];
    split_at(gaps, m, form.bits, low, which, upper);
    for (unsigned i = 0; i < form.exceptions; ++i) --upper[i];
    body = pack_at(low, m, form.bits, body);
    body = pfor_put_exceptions(which, upper, m, form, pack_at, body);
  });
  return static_cast<uint64_t>(body - out);
}

// Returns false and sets *where (a byte of the payload) if it is corrupt.
inline bool delta_pfor_decode(const uint8_t* in, uint64_t size, uint64_t n, uint64_t universe, cpu_level level,
                              uint32_t* x, uint64_t* where) {
  const auto above_of = pfor_above.at(level);
  const auto ungap_at = ungap.at(level);
  const auto patched_at = pfor_ungap.at(level);
  // Exceptions of a few blocks first: a vector that is read soon after numbers were put in it waits for them (1.2 times
  // slower).
  struct block {
    pfor_head head;
    uint64_t at;
    alignas(64) uint32_t above[gap_block + 1];
  };
  block ahead[4];
  uint64_t at = pfor_head_size * ceil_div(n, gap_block), next = 0;
  *where = 0;
  if (at > size) return false;
  const auto length = [n](uint64_t i) { return static_cast<size_t>(n - i < gap_block ? n - i : gap_block); };
  // Reads the exceptions of the block of index i, and moves past it.
  const auto read = [&](block& b, uint64_t i) {
    *where = pfor_head_size * (i / gap_block);
    const pfor_head head = b.head = pfor_unpack_head(load<uint16_t>(in + *where));
    const uint64_t low_bits = uint64_t{length(i)} * head.bits, low = ceil_div(low_bits, 8);
    if (head.bits > 32 || low > size - at) return false;
    if (head.exceptions ? head.bits == 32 || head.bits + head.upper_bits > 32 : head.upper_bits != 0) return false;
    *where = b.at = at;
    if (!padding_is_zero(in + at, low_bits)) return false;
    at += low;
    if (head.exceptions == 0) return true;
    const uint64_t taken = above_of(in + at, size - at, in + size, length(i), head, b.above);
    at += taken;
    return taken != 0;
  };
  const auto indices = [&](const block& b, uint64_t i) {
    uint32_t all = 0;
    if (b.head.exceptions == 0)
      next = ungap_at(in + b.at, in + size, length(i), b.head.bits, next, x + i, all);
    else
      next = (pfor_narrow(b.head) ? patched_at : pfor_ungap_scalar)(in + b.at, in + size, length(i), b.head.bits, next,
                                                                    b.above, x + i);
    return next <= index_end(universe) && (b.head.exceptions != 0 || bit_width(all) == b.head.bits);
  };
  for (uint64_t i = 0, done = 0; i < n;) {
    size_t blocks = 0;
    bool sound = true;
    while (blocks < std::size(ahead) && i < n && (sound = read(ahead[blocks], i))) ++blocks, i += gap_block;
    for (size_t k = 0; k < blocks; ++k, done += gap_block)
      if (!indices(ahead[k], done)) return *where = ahead[k].at, false;
    if (!sound) return false;
  }
  *where = at;
  return at == size;
}

}  // namespace dr
