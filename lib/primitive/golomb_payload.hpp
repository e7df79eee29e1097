// A whole payload of split Golomb blocks, whose blocks are coded at the level of instructions that the CPU has.
#pragma once

#include "primitive/cpu.hpp"
#include "primitive/golomb_adaptive.hpp"

namespace dr {

// golomb_put_block and golomb_get_block, or what does the same faster.
struct golomb_block_coder {
  uint8_t* (*put)(const uint32_t* x, size_t n, uint64_t base, divisor_rule rule, uint8_t* out, bool& flagged);
  bool (*get)(const uint8_t* body, size_t size, size_t n, uint64_t base, uint64_t end, divisor_rule rule, bool flagged,
              uint32_t* x);
};
const golomb_block_coder& golomb_at(cpu_level level);
#if DR_X86
extern const golomb_block_coder golomb_avx2, golomb_avx512;
#endif

// A whole payload: table of block ends and body sizes, bodies.
//   x [n] strictly ascending, each < universe < 2^32, n >= 1     out: golomb_bound bytes
// Returns bytes written. Cannot fail.
inline size_t golomb_encode(const uint32_t* x, uint64_t n, uint64_t universe, unsigned block_log2, divisor_rule rule,
                            uint8_t* out, cpu_level level = cpu()) {
  const golomb_block_coder& coder = golomb_at(level);
  const uint64_t block = uint64_t{1} << block_log2, blocks = ceil_div(n, block);
  uint8_t* body = out + (blocks == 1 ? 0 : 6 * blocks);
  uint64_t base = 0;
  for (uint64_t b = 0; b < blocks; ++b) {
    const size_t length = static_cast<size_t>(b + 1 < blocks ? block : n - b * block);
    const uint32_t* first = x + b * block;
    const uint64_t end = uint64_t{first[length - 1]} + 1;
    bool flagged = false;
    uint8_t* const lone = body;  // of one block: its end, whose low bit is known last and makes it no longer
    if (blocks == 1) body = put_varint(body, 2 * (universe - end));
    uint8_t* const begin = body;
    body = coder.put(first, length, base, rule, body, flagged);
    if (blocks == 1) *lone |= static_cast<uint8_t>(flagged);
    if (blocks > 1) {
      store(out + 6 * b, static_cast<uint32_t>(end));
      store(out + 6 * b + 4, static_cast<uint16_t>((body - begin) | (flagged ? golomb_flag : 0)));
    }
    base = end;
  }
  return static_cast<size_t>(body - out);
}

// Returns false and sets *where (a byte of the payload) if it is corrupt.
inline bool golomb_decode(const uint8_t* in, size_t size, uint64_t n, uint64_t universe, unsigned block_log2,
                          divisor_rule rule, uint32_t* x, uint64_t* where, cpu_level level = cpu()) {
  const golomb_block_coder& coder = golomb_at(level);
  const uint64_t block = uint64_t{1} << block_log2, blocks = ceil_div(n, block);
  *where = 0;
  uint64_t at = 6 * blocks, base = 0, lone = 0;
  if (blocks == 1) {
    const uint8_t* const behind = get_varint(in, in + size, lone);
    if (!behind || lone / 2 > universe) return false;
    at = static_cast<uint64_t>(behind - in);
  }
  if (at > size) return false;
  for (uint64_t b = 0; b < blocks; ++b) {
    *where = 6 * b;
    const size_t length = static_cast<size_t>(b + 1 < blocks ? block : n - b * block);
    const uint64_t entry = blocks == 1 ? 0 : load<uint16_t>(in + 6 * b + 4);
    const uint64_t end = blocks == 1 ? universe - lone / 2 : load<uint32_t>(in + 6 * b);
    const uint64_t body = blocks == 1 ? size - at : entry & (golomb_flag - 1u);
    const bool flagged = blocks == 1 ? lone & 1 : entry >> 15;
    // Positions in a body fit 32 bits.
    if (end > universe || end < base || end - base < length || body > size - at || body >= golomb_flag) return false;
    if (flagged && !rule.adaptive && (!rule.may_cluster || rule.plain(end - base, length) == 1)) return false;
    *where = at;
    if (!coder.get(in + at, static_cast<size_t>(body), length, base, end, rule, flagged, x + b * block)) return false;
    at += body;
    base = end;
  }
  *where = at;
  return at == size;
}

}  // namespace dr
