// Gaps of an ascending index set: the place and the value of a gap's two highest bits are a symbol of a Huffman
// code, the bits below as they are (SPEC.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codecs/family/huffman/code_lengths.hpp"
#include "codecs/index/gap_huffman/gap_symbols_kernel.hpp"

namespace dr {

// Of a block's body: more than a code, 11 bits and 30 a gap, and sizes.
inline constexpr size_t gap_body_max = 32767;
inline constexpr uint16_t gap_own_code = 0x8000;

// ---- Writing ---------------------------------------------------------------------------------------------

// Blocks, one after another, with the previous code or their own.
class gap_writer {
 public:
  explicit gap_writer(cpu_level level) : level_(level) {}

  // Bytes of the block's body.   x [n], 1 <= n <= gap_huffman_block, from base on
  size_t make(const uint32_t* x, size_t n, uint32_t base) {
    n_ = n;
    gap_split.at(level_)(x, n, base, symbols_, gaps_);
    count();
    choose();
    return size();
  }
  bool own_code() const { return own_; }
  // Writes the code that make() built, and up to gap_slack bytes past its end. Returns the end.
  uint8_t* put(uint8_t* out) const {
    if (own_) out = put_lengths(lengths_, out);
    out = level_huffman_encode.at(level_)(symbols_, n_, code_, out);
    return gap_extras.at(level_)(symbols_, gaps_, n_, out);
  }

 private:
  static constexpr size_t string = level_huffman_string, strings_max = level_huffman_strings_max;
  static constexpr unsigned equal_lengths_bits = 6 + 8 + 63;  // 64 times 6

  size_t strings() const { return ceil_div(n_, string); }
  size_t length(size_t s) const { return n_ - s * string < string ? n_ - s * string : string; }

  void count() {
    std::memset(counts_, 0, sizeof counts_);
    const size_t full = n_ / string;
    if (full == strings_max) {  // neighbours are often equal: separate tables avoid dependent increments
      for (size_t i = 0; i < string; ++i)
        for (size_t s = 0; s < strings_max; ++s) ++counts_[s][symbols_[s * string + i]];
    } else {
      for (size_t i = 0; i < n_; ++i) ++counts_[i / string][symbols_[i]];
    }
    for (unsigned i = 0; i < gap_symbols; ++i) {
      all_[i] = 0;
      for (size_t s = 0; s < strings_max; ++s) all_[i] += counts_[s][i];
    }
  }
  uint64_t bits_by(const uint8_t* lengths) const {
    uint64_t bits = 0;
    for (unsigned i = 0; i < gap_symbols; ++i) bits += uint64_t{all_[i]} * lengths[i];
    return bits;
  }
  bool has_all() const {
    for (unsigned i = 0; i < gap_symbols; ++i)
      if (all_[i] && !lengths_[i]) return false;
    return true;
  }
  void choose() {
    // A decoder makes tables for a code, in about the time of a block: so one of its own is to be worth that.
    constexpr uint64_t worth = 256;
    uint8_t lengths[gap_symbols];
    huffman_code_lengths<gap_symbols>(all_, gap_symbols, gap_length_max, lengths);
    uint64_t least = bits_by(lengths) + lengths_bits(lengths);
    const uint64_t equal = equal_lengths_bits + 6 * n_;
    if (equal < least) {
      std::memset(lengths, 6, sizeof lengths);
      least = equal;
    }
    own_ = !coded_ || !has_all() || bits_by(lengths_) > (least + worth < equal ? least + worth : equal);
    if (!own_) return;
    std::memcpy(lengths_, lengths, sizeof lengths);
    code_.set(lengths_, gap_symbols);
    coded_ = true;
  }
  size_t size() const {
    uint64_t bytes = own_ ? ceil_div(lengths_bits(lengths_), 8) : 0, extras = 0;
    bytes += 2 * (strings() - 1);
    for (size_t s = 0; s < strings(); ++s) {
      uint32_t bits = 0;
      for (unsigned i = 0; i < gap_symbols; ++i) bits += counts_[s][i] * lengths_[i];
      bytes += ceil_div(bits, 8);
    }
    for (unsigned i = 0; i < gap_symbols; ++i) extras += uint64_t{all_[i]} * gap_width(i);
    return bytes + ceil_div(extras, 8);
  }

  cpu_level level_;
  bool coded_ = false, own_ = false;
  size_t n_ = 0;
  uint8_t lengths_[gap_symbols];
  level_huffman_code code_;
  uint32_t all_[gap_symbols], counts_[strings_max][gap_symbols];
  alignas(64) uint8_t symbols_[gap_huffman_block + gap_slack];
  alignas(64) uint32_t gaps_[gap_huffman_block + gap_slack];
};

// ---- Payloads --------------------------------------------------------------------------------------------

// Bytes of at most n indices below the universe. A block has an entry of 6 bytes (or a varint of up to 5 stands for
// it), a code in 77 bits and 6 bits a symbol, or less, padded to bytes 9 times; sizes of 7 strings. Extras: the width
// of a gap g is at most log2(g + 1), and gaps with a one each add up to the universe at most, so that, log2 being
// concave, n of them have n · log2(universe / n) bits. The whole does not fall as n rises: its derivative is 6 −
// log2(e) + log2(universe / n) > 0.
constexpr uint64_t gap_huffman_bound(uint64_t universe, uint64_t n) {
  if (n == 0) return 0;
  const uint64_t strings = ceil_div(n, level_huffman_string), blocks = ceil_div(n, gap_huffman_block);
  return blocks * (6 + 10 + 1) + 3 * strings + ceil_div(6 * n, 8) + ((n * log2_q16_above(universe, n) >> 16) / 8 + 1) +
         gap_slack;
}

struct gap_payload {
  uint64_t n, universe;  // n >= 1 indices below the universe, which is below 2^32
  cpu_level level = cpu();

  // block_parts.hpp. The encoder begins a part with a code.
  static constexpr uint64_t part = 16, entry_size = 6;
  uint64_t blocks() const { return ceil_div(n, gap_huffman_block); }
  size_t length(uint64_t b) const {
    return static_cast<size_t>(n - b * gap_huffman_block < gap_huffman_block ? n - b * gap_huffman_block
                                                                             : gap_huffman_block);
  }

  // Calls f(writer, body size, end) for blocks [first, last) of x, first a multiple of part.
  template <class F>
  void each_block(const uint32_t* x, uint64_t first, uint64_t last, F&& f) const {
    for (uint64_t begin = first; begin < last; begin += part) {
      gap_writer writer(level);
      for (uint64_t b = begin; b < last && b < begin + part; ++b) {
        const uint32_t* const of_block = x + b * gap_huffman_block;
        const size_t size = writer.make(of_block, length(b), b ? of_block[-1] + 1 : 0);
        f(writer, size, of_block[length(b) - 1] + uint32_t{1});
      }
    }
  }

  // Writes bodies and entries, and up to gap_slack bytes after them. Returns the bodies' end.
  uint8_t* put(const uint32_t* x, uint64_t first, uint64_t last, uint8_t* entries, uint8_t* body) const {
    const bool alone = blocks() == 1;
    each_block(x, first, last, [&](const gap_writer& writer, size_t size, uint32_t end) {
      if (alone) {
        body = put_varint(body, universe - end);
      } else {
        store(entries, end);
        store(entries + 4, static_cast<uint16_t>(size | (writer.own_code() ? gap_own_code : 0)));
        entries += entry_size;
      }
      body = writer.put(body);
    });
    return body;
  }
  size_t encode(const uint32_t* x, uint8_t* out) const {
    return static_cast<size_t>(put(x, 0, blocks(), out, out + (blocks() > 1 ? entry_size * blocks() : 0)) - out);
  }
  // The size that encode would return.
  uint64_t size(const uint32_t* x) const {
    uint64_t bytes = blocks() > 1 ? entry_size * blocks() : 0;
    each_block(x, 0, blocks(), [&](const gap_writer&, size_t size, uint32_t end) {
      uint8_t varint[10];
      bytes += size;
      if (blocks() == 1) bytes += static_cast<uint64_t>(put_varint(varint, universe - end) - varint);
    });
    return bytes;
  }

  // Reads blocks [first, last) of a payload of `size` bytes. Returns false and sets *where (a byte of the payload) if
  // it is corrupt; else *where is the end of the last one's body.
  bool get(const uint8_t* in, size_t size, uint64_t first, uint64_t last, uint32_t* x, uint64_t* where) const {
    const bool alone = blocks() == 1;
    uint64_t at = entry_size * blocks(), rest = 0, code_at = 0, code_end = 0;
    *where = 0;
    if (alone) {
      const uint8_t* const behind = get_varint(in, in + size, rest);
      if (!behind || rest > universe) return false;
      at = static_cast<uint64_t>(behind - in);
    }
    if (at > size) return false;
    const auto end_of = [&](uint64_t b) { return alone ? universe - rest : load<uint32_t>(in + entry_size * b); };
    const auto entry = [&](uint64_t b) {
      return alone ? unsigned{gap_own_code} : load<uint16_t>(in + entry_size * b + 4);
    };
    const auto has_own = [&](uint64_t b) { return (entry(b) & gap_own_code) != 0; };
    for (uint64_t b = 0; b < first; ++b) {
      const unsigned of_block = entry(b);
      const uint64_t body = of_block & gap_body_max;
      if (of_block & gap_own_code) {
        code_at = at;
        code_end = at + body;
      }
      at += body;
    }
    level_huffman_table table;
    bool coded = false;
    alignas(64) uint8_t symbols[level_huffman_strings_max * level_huffman_stride];
    alignas(64) uint8_t padded[gap_body_max + level_huffman_slack + gap_slack];
    uint64_t base = first ? end_of(first - 1) : 0;
    for (uint64_t b = first; b < last; ++b) {
      *where = entry_size * b;
      // An entry is read once, so that the validated value is the one used.
      const uint64_t end = end_of(b);
      const unsigned of_block = entry(b);
      const bool own = of_block & gap_own_code;
      if (at > size) return false;
      uint64_t body = alone ? size - at : of_block & gap_body_max;
      if (end > universe || end < base || end - base < length(b) || body > size - at || body > gap_body_max)
        return false;
      *where = at;
      const uint64_t behind = at + body;
      if (own) {
        code_at = at;
        code_end = behind;
      }
      if (own || !coded) {
        uint8_t lengths[gap_symbols];
        level_huffman_code code;
        const uint8_t* const from = code_end ? get_lengths(in + code_at, in + code_end, lengths) : nullptr;
        if (!from || !code.set(lengths, gap_symbols)) return false;
        if (own) at = static_cast<uint64_t>(from - in);
        uint64_t next = b + 1;
        while (next < last && next < b + 8 && !has_own(next)) ++next;
        table.set(code, (next - b - 1) * gap_huffman_block + length(next - 1));
        coded = true;
      }
      body = behind - at;
      // Bytes read past a body are not used.
      const uint8_t* from = in + at;
      if (size - behind < level_huffman_slack + gap_slack) {
        std::memcpy(padded, from, body);
        std::memset(padded + body, 0, level_huffman_slack + gap_slack);
        from = padded;
      }
      const size_t used = level_huffman_decode.at(level)(from, body, length(b), table, symbols);
      if (!used ||
          !gap_join.at(level)(symbols, length(b), from + used, body - used, base, end, x + b * gap_huffman_block))
        return false;
      at = behind;
      base = end;
    }
    *where = at;
    return last < blocks() || at == size;
  }
};

}  // namespace dr
