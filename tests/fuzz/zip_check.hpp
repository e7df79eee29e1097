// Puts the CRC-32 of a ZIP's members right, so that what lies behind them is reached. From PKWARE's APPNOTE alone.
#pragma once

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "little_endian.hpp"

namespace zip_check {

using little_endian::number;

// Of `size` raw deflated bytes; at most so much that a fuzzer does not wait.
inline std::vector<uint8_t> inflated(const uint8_t* from, uint64_t size) {
  std::vector<uint8_t> out(1 << 16);
  z_stream z{};
  if (inflateInit2(&z, -MAX_WBITS) != Z_OK) return {};
  z.next_in = const_cast<Bytef*>(from);
  z.avail_in = static_cast<uInt>(size);
  z.next_out = out.data();
  z.avail_out = static_cast<uInt>(out.size());
  (void)inflate(&z, Z_FINISH);
  out.resize(z.total_out);
  inflateEnd(&z);
  return out;
}

inline void fix(uint8_t* file, uint64_t size) {
  constexpr uint64_t entry_size = 46, local_size = 30;
  for (uint64_t at = 0; at + entry_size <= size; ++at) {
    if (number(file + at, 4) != 0x02014b50) continue;
    const uint64_t method = number(file + at + 10, 2), local = number(file + at + 42, 4);
    if (local + local_size > size || number(file + local, 4) != 0x04034b50) continue;
    const uint64_t data = local + local_size + number(file + local + 26, 2) + number(file + local + 28, 2);
    if (data > size) continue;
    const uint64_t packed = std::min<uint64_t>(number(file + at + 20, 4), size - data);
    const std::vector<uint8_t> plain =
        method == 8 ? inflated(file + data, packed) : std::vector<uint8_t>(file + data, file + data + packed);
    const uint64_t crc = crc32_z(0, plain.data(), plain.size());
    little_endian::put(file + at + 16, crc, 4);
    little_endian::put(file + local + 14, crc, 4);
  }
}

}  // namespace zip_check
