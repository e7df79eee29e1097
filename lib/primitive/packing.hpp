// Numbers of k bits each, one behind the other in a bit string (low bit of a byte first), and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "primitive/bits.hpp"
#include "primitive/cpu.hpp"

namespace dr {

constexpr uint64_t packed_size(uint64_t n, unsigned bits) { return ceil_div(n * bits, 8); }

// v [n], each < 2^bits, bits <= 32     out: packed_size, padded with zero bits. Returns its end.
inline uint8_t* pack_scalar(const uint32_t* v, size_t n, unsigned bits, uint8_t* out) {
  bit_writer writer(out);
  for (size_t i = 0; i < n; ++i) writer.put(v[i], bits);
  return writer.finish();
}

// in: packed_size(n, bits) bytes, in memory that may be read up to `end`
// v: the n numbers, in memory for whole vectors of 16: entries past the last are undefined
inline void unpack_scalar(const uint8_t* in, const uint8_t*, size_t n, unsigned bits, uint32_t* v) {
  bit_reader reader(in, n * bits);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<uint32_t>(reader.get(bits));
}

uint8_t* pack_avx2(const uint32_t* v, size_t n, unsigned bits, uint8_t* out);
uint8_t* pack_avx512(const uint32_t* v, size_t n, unsigned bits, uint8_t* out);
uint8_t* pack_neon(const uint32_t* v, size_t n, unsigned bits, uint8_t* out);
void unpack_avx2(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint32_t* v);
void unpack_avx512(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint32_t* v);
void unpack_neon(const uint8_t* in, const uint8_t* end, size_t n, unsigned bits, uint32_t* v);

inline constexpr cpu_table<decltype(&pack_scalar)> pack_bits{pack_scalar, on_x86(pack_avx2), on_x86(pack_avx512),
                                                             on_arm(pack_neon)};
inline constexpr cpu_table<decltype(&unpack_scalar)> unpack_bits{unpack_scalar, on_x86(unpack_avx2),
                                                                 on_x86(unpack_avx512), on_arm(unpack_neon)};

}  // namespace dr
