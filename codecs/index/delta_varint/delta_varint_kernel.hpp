// Gaps in bytes of seven bits (LEB128; SPEC.md).
#pragma once

#include "primitive/bits.hpp"

namespace dr {

// A gap of b bytes or more is at least 128^(b-1), and all gaps together are below the universe.
constexpr uint64_t delta_varint_bound(uint64_t universe, uint64_t count_max) {
  uint64_t bytes = count_max;
  for (unsigned shift = 7; shift < 32; shift += 7) {
    const uint64_t as_long = universe >> shift;
    bytes += as_long < count_max ? as_long : count_max;
  }
  return bytes;
}

inline uint64_t delta_varint_size(const uint32_t* x, uint64_t n) {
  uint64_t bytes = n, next = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t gap = x[i] - next;
    bytes += uint64_t{gap >> 7 != 0} + (gap >> 14 != 0) + (gap >> 21 != 0) + (gap >> 28 != 0);
    next = uint64_t{x[i]} + 1;
  }
  return bytes;
}

//   x [n] strictly ascending     out: delta_varint_bound bytes. Returns bytes written.
inline uint64_t delta_varint_encode(const uint32_t* x, uint64_t n, uint8_t* out) {
  uint8_t* at = out;
  uint64_t next = 0;
  for (uint64_t i = 0; i < n; ++i) {
    at = put_varint(at, x[i] - next);
    next = uint64_t{x[i]} + 1;
  }
  return static_cast<uint64_t>(at - out);
}

// Returns false and sets *where (a byte of the payload) if it is corrupt.
inline bool delta_varint_decode(const uint8_t* in, uint64_t size, uint64_t n, uint64_t universe, uint32_t* x,
                                uint64_t* where) {
  const uint8_t *at = in, *const end = in + size;
  uint64_t next = 0;
  for (uint64_t i = 0; i < n; ++i) {
    *where = static_cast<uint64_t>(at - in);
    uint64_t gap;
    if (end - at >= 2 && (at[0] & at[1] & 0x80) == 0 && !(at[0] >= 0x80 && at[1] == 0)) {
      // One byte or two, without a branch between them: at 1 % the branch would be unpredictable.
      const uint64_t two = at[0] >> 7;
      gap = (at[0] & 0x7fu) | (two * at[1]) << 7;
      at += 1 + two;
    } else {
      at = get_varint(at, end, gap);
      if (!at) return false;
    }
    if (gap >= universe - next) return false;  // next <= universe
    next += gap;
    x[i] = static_cast<uint32_t>(next++);
  }
  *where = static_cast<uint64_t>(at - in);
  return at == end;
}

}  // namespace dr
