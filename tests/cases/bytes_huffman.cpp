#include <algorithm>
#include <cmath>
#include <map>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

// Within a bit a byte of the entropy and 3/8 of what sizes and paddings take; no more than a varint above what went in.
std::string judge(const observation& o) {
  const double n = static_cast<double>(o.in.elements.size()), size = static_cast<double>(o.payload.size());
  if (size > n + 5) return "it is longer than stored bytes";
  std::map<uint8_t, double> counts;
  for (const uint8_t b : o.in.elements) ++counts[b];
  double bits = 0;
  for (const auto& [byte, count] : counts) bits -= count * std::log2(count / n);
  if (counts.size() == 1 && size > 50) return "one byte again and again does not shrink";
  const double table = 3 * counts.size() + 20, streams = n / 1000 + 32;
  if (8 * size > std::min(8 * n + 40, bits + 0.1 * n + (counts.size() == 2 ? n : 0) + 8 * (table + streams)))
    return std::to_string(size) + " bytes, where the entropy is " + std::to_string(bits / 8);
  return "";
}

}  // namespace

codec_case bytes_huffman() {
  auto inputs = byte_strings();
  random_source random("huffman");
  const auto add = [&](std::string name, size_t size, auto&& byte) {
    std::vector<uint8_t> bytes(size);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(byte());
    inputs.push_back({std::move(name) + ", " + std::to_string(size), 0, 0, 0, 1, std::move(bytes)});
  };
  // About the edges of streams and blocks; and counts like Fibonacci's numbers, whose best code is longer than 11 bits.
  for (const size_t size : {4095, 4096, 4097, 32767, 32768, 32769, 70001}) {
    add("bytes of a geometric law", size, [&] { return -std::log(random.unit() + 1e-9) * 9; });
    add("bytes of two kinds", size, [&] { return random.below(40) ? 7 : 200; });
    add("bytes that halve", size, [&] { return __builtin_ctzll(random.below(1u << 30) | 1u << 30); });
  }
  return {DR_ROLE_BYTES, "huffman", {"huffman"}, std::move(inputs), judge};
}

}  // namespace dr::cases
