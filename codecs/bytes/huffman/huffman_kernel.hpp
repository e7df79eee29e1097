// Canonical Huffman codes of bytes (Huffman 1952), at most 11 bits long, in streams that decode side by side (SPEC.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codecs/family/huffman/code_lengths.hpp"
#include "primitive/bits.hpp"

namespace dr {

inline constexpr unsigned huffman_bits_max = 11;    // a table of 4 KiB; 12 gains nothing on gaps or sketches
inline constexpr uint64_t huffman_lone_max = 4096;  // bytes of a lone stream
inline constexpr uint64_t huffman_block = 32768;    // bytes of a block
inline constexpr unsigned huffman_streams = 8;      // of a block; four are decoded at once

// Stored bytes never take more, and coded ones are taken only if they are fewer.
constexpr uint64_t huffman_bound(uint64_t n) { return ceil_div(bit_width(2 * n + 1), 7) + n; }

struct huffman_lengths {
  uint8_t of[256];  // 0: the byte does not occur
  unsigned last;    // byte that does
};

// Elias's gamma code of each length's distance from the one before (from 0 for the first), folded: 0, -1, 1, -2, … to
// 1, 2, 3, 4, …
template <class F>
void huffman_steps(const huffman_lengths& lengths, F&& step) {
  int before = 0;
  for (unsigned b = 0; b <= lengths.last; ++b) {
    const int d = lengths.of[b] - before;
    step(static_cast<uint32_t>(d < 0 ? -2 * d : 2 * d + 1));
    before = lengths.of[b];
  }
}
inline uint64_t huffman_lengths_size(const huffman_lengths& lengths) {
  uint64_t bits = 0;
  huffman_steps(lengths, [&](uint32_t s) { bits += 2 * bit_width(s) - 1; });
  return ceil_div(bits, 8);
}
inline uint8_t* huffman_put_lengths(const huffman_lengths& lengths, uint8_t* out) {
  bit_writer bits(out);
  huffman_steps(lengths, [&](uint32_t s) {
    const unsigned more = bit_width(s) - 1;
    bits.put_unary(more);
    bits.put(s - (1u << more), more);
  });
  return bits.finish();
}
// Returns the end, or nullptr. Lengths that are not all 0 are a complete code.
inline const uint8_t* huffman_get_lengths(const uint8_t* in, const uint8_t* end, huffman_lengths& lengths) {
  const uint64_t size = 8 * static_cast<uint64_t>(end - in);
  bit_reader bits(in, size);
  uint64_t at = 0;
  unsigned before = 0, kraft = 0;
  std::memset(lengths.of, 0, sizeof lengths.of);
  for (unsigned b = 0; b <= lengths.last; ++b) {
    unsigned more = 0;
    while (more < 5 && at < size && !bits.get(1)) ++more, ++at;
    if (more >= 5 || at + 1 + more > size) return nullptr;
    at += 1 + more;
    const auto s = static_cast<unsigned>(1u << more | bits.get(more));
    const unsigned length = s & 1 ? before + s / 2 : before - s / 2;
    if (length > huffman_bits_max) return nullptr;  // (below 0 too)
    lengths.of[b] = static_cast<uint8_t>(length);
    if (length) kraft += 1u << (huffman_bits_max - length);
    before = length;
  }
  if (!padding_is_zero(in, at)) return nullptr;
  if (kraft && (kraft != 1u << huffman_bits_max || before == 0)) return nullptr;
  return in + ceil_div(at, 8);
}

// Codes ascend with (length, byte), and their first bit is the stream's lowest. Calls code(byte, bits in that order,
// length).
template <class F>
void huffman_codes(const huffman_lengths& lengths, F&& code) {
  uint32_t next = 0;
  for (unsigned length = 1; length <= huffman_bits_max; ++length) {
    next <<= 1;
    for (unsigned b = 0; b <= lengths.last; ++b) {
      if (lengths.of[b] != length) continue;
      uint32_t turned = 0;
      for (unsigned k = 0; k < length; ++k) turned |= (next >> k & 1) << (length - 1 - k);
      code(b, turned, length);
      ++next;
    }
  }
}

// ---- Encode ----------------------------------------------------------------------------------------------------

// codes[byte]: bits, and from bit 16 their number. Returns the stream's end.
inline uint8_t* huffman_encode_stream(const uint8_t* in, uint64_t n, const uint32_t* codes, uint8_t* out,
                                      const uint8_t* out_end) {
  uint64_t word = 0, i = 0;
  unsigned fill = 0;
  for (; i + 4 <= n && out_end - out >= 8; i += 4) {
    for (unsigned k = 0; k < 4; ++k) {  // at most 7 + 44 bits
      const uint32_t c = codes[in[i + k]];
      word |= uint64_t{c & 0xffff} << fill;
      fill += c >> 16;
    }
    store(out, word);
    out += fill / 8;
    word >>= fill & ~7u;
    fill &= 7;
  }
  for (;;) {
    for (; fill >= 8; fill -= 8, word >>= 8) *out++ = static_cast<uint8_t>(word);
    if (i == n) break;
    const uint32_t c = codes[in[i++]];
    word |= uint64_t{c & 0xffff} << fill;
    fill += c >> 16;
  }
  if (fill) *out++ = static_cast<uint8_t>(word);
  return out;
}

// Where stream s of a block of m bytes begins, in it.
constexpr uint64_t huffman_stream_begin(uint64_t m, uint64_t s) {
  const uint64_t begin = s * ceil_div(m, huffman_streams);
  return begin < m ? begin : m;
}

inline void huffman_count(const uint8_t* in, uint64_t n, uint64_t* counts) {
  uint64_t parts[4][256] = {};  // equal neighbours do not wait for each other
  uint64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (unsigned k = 0; k < 4; ++k) ++parts[k][in[i + k]];
  for (; i < n; ++i) ++parts[0][in[i]];
  for (unsigned b = 0; b < 256; ++b) counts[b] = parts[0][b] + parts[1][b] + parts[2][b] + parts[3][b];
}

//   in [n]     out: huffman_bound bytes. Returns bytes written.
inline uint64_t huffman_encode(const uint8_t* in, uint64_t n, uint8_t* out) {
  uint8_t* const out_end = out + huffman_bound(n);
  uint64_t counts[256];
  huffman_count(in, n, counts);
  huffman_lengths lengths{};
  unsigned different = 0;
  for (unsigned b = 0; b < 256; ++b)
    if (counts[b]) {
      ++different;
      lengths.last = b;
    }
  uint64_t bits = 0;
  if (different > 1) huffman_code_lengths<256>(counts, 256, huffman_bits_max, lengths.of);
  for (unsigned b = 0; b < 256; ++b) bits += counts[b] * lengths.of[b];
  const bool lone = n <= huffman_lone_max;
  const uint64_t streams = different <= 1 ? 0 : lone ? 1 : huffman_streams * ceil_div(n, huffman_block);
  // At most: a byte of padding and two of size for each stream.
  const uint64_t coded = 1 + huffman_lengths_size(lengths) + bits / 8 + 3 * streams;
  uint8_t* at = put_varint(out, 2 * n + (coded < n));
  if (coded >= n) {
    if (n) std::memcpy(at, in, n);
    return static_cast<uint64_t>(at - out) + n;
  }
  *at++ = static_cast<uint8_t>(lengths.last);
  at = huffman_put_lengths(lengths, at);
  uint32_t codes[256] = {};
  huffman_codes(lengths, [&](unsigned b, uint32_t code, unsigned length) { codes[b] = code | length << 16; });
  if (streams == 1) at = huffman_encode_stream(in, n, codes, at, out_end);
  if (streams <= 1) return static_cast<uint64_t>(at - out);
  uint8_t* sizes = at;
  at += 2 * streams;
  for (uint64_t first = 0; first < n; first += huffman_block) {
    const uint64_t m = n - first < huffman_block ? n - first : huffman_block;
    for (unsigned s = 0; s < huffman_streams; ++s, sizes += 2) {
      const uint64_t begin = huffman_stream_begin(m, s), end = huffman_stream_begin(m, s + 1);
      uint8_t* const from = at;
      at = huffman_encode_stream(in + first + begin, end - begin, codes, at, out_end);
      store(sizes, static_cast<uint16_t>(at - from));
    }
  }
  return static_cast<uint64_t>(at - out);
}

// ---- Decode ----------------------------------------------------------------------------------------------------

// By the next 11 bits: how many are the code's, and from bit 8 its byte.
struct huffman_table {
  uint16_t of[1u << huffman_bits_max];

  explicit huffman_table(const huffman_lengths& lengths) {
    huffman_codes(lengths, [&](unsigned b, uint32_t code, unsigned length) {
      for (uint32_t at = code; at < 1u << huffman_bits_max; at += 1u << length)
        of[at] = static_cast<uint16_t>(b << 8 | length);
    });
  }
};

// Decodes n bytes from a stream of `size` bytes; memory may be read up to `readable`.
struct huffman_stream {
  const uint8_t* in;
  uint64_t size, n;
  uint8_t* out;
  uint64_t at = 0, done = 0;  // bits, bytes
};

// Five codes a load: 7 + 55 bits. Four at once, because each waits for its table; BMI2's shifts gain nothing measurable
// on Zen 4 (kernel_bench huffman), so there is one level.
template <unsigned count>
inline void huffman_side_by_side(const uint16_t* table, huffman_stream* streams, const uint8_t* readable) {
  constexpr uint32_t mask = (1u << huffman_bits_max) - 1;
  uint64_t least = ~uint64_t{0};
  for (unsigned s = 0; s < count; ++s) least = std::min(least, streams[s].n);
  const uint8_t* in[count];
  uint8_t* out[count];
  uint64_t at[count], done = 0;
  for (unsigned s = 0; s < count; ++s) {
    in[s] = streams[s].in;
    out[s] = streams[s].out;
    at[s] = 0;
  }
  // Five codes advance a stream by at most 7 bytes: this number of rounds is safe for any bits.
  for (;;) {
    uint64_t rounds = (least - done) / 5;
    for (unsigned s = 0; s < count; ++s) {
      const uint8_t* const next = in[s] + at[s] / 8;
      rounds = std::min<uint64_t>(rounds, readable - next < 16 ? 0 : static_cast<uint64_t>(readable - next - 8) / 7);
    }
    if (rounds == 0) break;
    for (; rounds; --rounds, done += 5) {
      uint64_t word[count], used[count];
      for (unsigned s = 0; s < count; ++s) {
        std::memcpy(&word[s], in[s] + at[s] / 8, 8);
        word[s] >>= at[s] % 8;
        used[s] = 0;
      }
      for (unsigned k = 0; k < 5; ++k)
        for (unsigned s = 0; s < count; ++s) {
          const uint64_t entry = table[word[s] & mask];
          out[s][done + k] = static_cast<uint8_t>(entry >> 8);
          word[s] >>= entry & 63;
          used[s] += entry;
        }
      for (unsigned s = 0; s < count; ++s) at[s] += used[s] & 0xff;  // five lengths are below 256
    }
  }
  for (unsigned s = 0; s < count; ++s) {
    streams[s].at = at[s];
    streams[s].done = done;
  }
}

// The rest of a stream, a byte at a time; false unless it ends with its last code.
inline bool huffman_finish(const uint16_t* table, huffman_stream& s) {
  for (; s.done < s.n; ++s.done) {
    const uint64_t byte = s.at / 8;
    if (byte >= s.size) return false;
    const auto left = static_cast<unsigned>(s.size - byte < 3 ? s.size - byte : 3);
    const auto entry = table[load_bytes(s.in + byte, left) >> s.at % 8 & ((1u << huffman_bits_max) - 1)];
    s.out[s.done] = static_cast<uint8_t>(entry >> 8);
    s.at += entry & 0xff;
  }
  return ceil_div(s.at, 8) == s.size && padding_is_zero(s.in, s.at);
}

// Returns false and sets *where (a byte of the payload) if it is corrupt. *n: bytes written, at most `capacity`.
inline bool huffman_decode(const uint8_t* in, uint64_t size, uint8_t* out, uint64_t capacity, uint64_t* n,
                           uint64_t* where) {
  *where = *n = 0;
  const uint8_t* const end = in + size;
  uint64_t head;
  const uint8_t* at = get_varint(in, end, head);
  if (!at || head / 2 > capacity) return false;
  const uint64_t total = head / 2;
  *where = static_cast<uint64_t>(at - in);
  *n = total;
  if (!(head & 1)) {
    if (static_cast<uint64_t>(end - at) != total) return false;
    if (total) std::memcpy(out, at, total);
    return true;
  }
  if (total == 0 || at == end) return false;
  huffman_lengths lengths;
  lengths.last = *at;
  at = huffman_get_lengths(at + 1, end, lengths);
  if (!at) return false;
  *where = static_cast<uint64_t>(at - in);
  if (lengths.of[lengths.last] == 0) {
    std::memset(out, static_cast<int>(lengths.last), total);
    return at == end;
  }
  const huffman_table table(lengths);
  if (total <= huffman_lone_max) {
    huffman_stream lone{at, static_cast<uint64_t>(end - at), total, out};
    huffman_side_by_side<1>(table.of, &lone, end);
    return huffman_finish(table.of, lone);
  }
  const uint8_t* sizes = at;
  const uint64_t streams = huffman_streams * ceil_div(total, huffman_block);
  if (static_cast<uint64_t>(end - at) / 2 < streams) return false;
  at += 2 * streams;
  for (uint64_t first = 0; first < total; first += huffman_block) {
    const uint64_t m = total - first < huffman_block ? total - first : huffman_block;
    for (unsigned half = 0; half < huffman_streams; half += 4) {
      huffman_stream four[4];
      for (unsigned s = 0; s < 4; ++s, sizes += 2) {
        const uint64_t begin = huffman_stream_begin(m, half + s), stop = huffman_stream_begin(m, half + s + 1),
                       length = load<uint16_t>(sizes);
        *where = static_cast<uint64_t>(at - in);
        if (length > static_cast<uint64_t>(end - at)) return false;
        four[s] = {at, length, stop - begin, out + first + begin};
        at += length;
      }
      huffman_side_by_side<4>(table.of, four, end);
      for (huffman_stream& s : four)
        if (!huffman_finish(table.of, s)) return false;
    }
  }
  *where = static_cast<uint64_t>(at - in);
  return at == end;
}

}  // namespace dr
