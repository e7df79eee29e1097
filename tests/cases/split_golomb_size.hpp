// How long a split Golomb payload is: one loop over the gaps, from codecs/index/golomb/SPEC.md.
#pragma once

#include <algorithm>
#include <cmath>

#include "cases/case.hpp"

namespace dr::cases {

inline uint64_t split_golomb_size(std::span<const uint32_t> indices, uint64_t universe, uint64_t block_log2,
                                  bool power_of_two, bool may_cluster = true) {
  const auto bytes = [](uint64_t bits) { return (bits + 7) / 8; };
  const auto length_of = [](uint64_t x) {  // in binary
    uint64_t bits = 0;
    for (; x; x /= 2) ++bits;
    return bits;
  };
  const size_t block = size_t{1} << block_log2;
  const auto body = [&](std::span<const uint32_t> part, uint64_t base, uint64_t m) {
    uint64_t c = 0, unary = 0, extra = 0;
    while (uint64_t{1} << c < m) ++c;
    for (const uint64_t index : part) {
      const uint64_t gap = index - base;
      base = index + 1;
      unary += gap / m + 1;
      extra += m > 1 && gap % m >= (uint64_t{1} << c) - m;
    }
    return bytes(m > 1 ? (c - 1) * part.size() : 0) + bytes(unary) + bytes(extra);
  };
  uint64_t total = indices.size() <= block ? 0 : 6 * ((indices.size() + block - 1) / block), base = 0;
  for (size_t begin = 0; begin < indices.size(); begin += block) {
    const auto part = indices.subspan(begin, std::min(block, indices.size() - begin));
    const uint64_t n = part.size(), end = part.back() + uint64_t{1}, span = end - base;
    uint64_t m = std::max<uint64_t>(1, ((2 * span - n) * 22713 + n * 32768) / (n * 65536));
    if (power_of_two) m = uint64_t{1} << (length_of(2 * m * m) - 1) / 2;
    uint64_t size = body(part, base, m), clustered = 0;
    if (!power_of_two && may_cluster && m > 1) {
      const uint64_t power = uint64_t{1} << (length_of(m) - 1),
                     other = body(part, base, power - std::max<uint64_t>(1, power / 16));
      clustered = other < size;
      size = std::min(size, other);
    }
    if (indices.size() <= block) total += std::max<uint64_t>(1, (length_of(2 * (universe - end) + clustered) + 6) / 7);
    total += size;
    base = end;
  }
  return total;
}

// "Uniform sets cost about log2 C(d, r) / r + 0.04 bits an index at 4096", and a little for the bytes that are padded.
inline std::string judge_split_golomb(const observation& o, bool power_of_two, double bits_above_entropy) {
  const auto indices = words(o.in.elements);
  const uint64_t expected = split_golomb_size(indices, o.in.universe, o.fields[0], power_of_two);
  if (o.payload.size() != expected)
    return "a payload of " + std::to_string(o.payload.size()) + " bytes, where SPEC.md gives " +
           std::to_string(expected);
  const double d = static_cast<double>(o.in.universe), r = static_cast<double>(o.in.count);
  const double entropy = (std::lgamma(d + 1) - std::lgamma(r + 1) - std::lgamma(d - r + 1)) / std::log(2.0);
  if (o.in.name.starts_with("uniform (") && r >= 4000 && o.fields[0] >= 12 &&
      8 * static_cast<double>(o.payload.size()) > entropy + r * bits_above_entropy)
    return "a uniform set costs " + std::to_string((8 * static_cast<double>(o.payload.size()) - entropy) / r) +
           " bits an index above its entropy";
  return "";
}

}  // namespace dr::cases
