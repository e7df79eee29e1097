#include <algorithm>

#include "cases/case.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {
namespace {

unsigned bit_length(uint64_t x) {
  unsigned bits = 0;
  while (x >> bits) ++bits;
  return bits;
}

// At least the entropy of each block's symbols and their extras; not above 6 bits a symbol, 10 bytes of lengths, and what is
// padded, and stated about sizes.
std::string judge(const observation& o) {
  const auto indices = words(o.in.elements);
  const double size = static_cast<double>(o.payload.size());
  double least = 0, most = 5;
  uint64_t next = 0;
  for (size_t begin = 0; begin < indices.size(); begin += 4096) {
    const size_t n = std::min<size_t>(4096, indices.size() - begin);
    std::vector<double> counts(64);
    double extras = 0;
    for (size_t i = begin; i < begin + n; ++i) {
      const uint64_t gap = indices[i] - next, width = gap < 4 ? 0 : bit_length(gap) - 2;
      next = indices[i] + uint64_t{1};
      ++counts[2 * width + (gap >> width)];
      extras += static_cast<double>(width);
    }
    double entropy = 0;
    for (const double c : counts) entropy += c > 0 ? c * std::log2(static_cast<double>(n) / c) : 0;
    least += (entropy + extras) / 8;
    most += 18 + 3 * std::ceil(static_cast<double>(n) / 512) + (6 * static_cast<double>(n) + extras) / 8;
  }
  if (size < least - 1e-6) return "shorter than its entropy of " + std::to_string(least);
  if (size > most) return "longer than 6 bits a symbol: " + std::to_string(size) + " to " + std::to_string(most);
  return "";
}

}  // namespace

codec_case index_gap_huffman() {
  std::vector<input> inputs = supports("gap_huffman");
  random_source random("gap_huffman");
  // Blocks of several kinds one after the other, so that codes change and stay; more than a part of 16.
  for (const uint64_t n : {4096, 4097, 20000, 90000}) {
    std::vector<uint32_t> indices;
    uint64_t at = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t kind = i / 12288 % 3;
      at += kind == 0 ? random.below(3) : kind == 1 ? random.below(2) * random.below(2000) : 64 << random.below(5);
      indices.push_back(static_cast<uint32_t>(at++));
    }
    inputs.push_back(support("codes that change, of " + std::to_string(n), at + 5, indices));
  }
  // Every width of extras.
  std::vector<uint32_t> powers{0, 1, 2, 3};
  for (unsigned k = 2; k < 32; ++k)
    for (const uint64_t index : {(uint64_t{1} << k) - 1, uint64_t{1} << k, (uint64_t{3} << k) / 2})
      if (index > powers.back() && index < largest_universe) powers.push_back(static_cast<uint32_t>(index));
  inputs.push_back(support("gaps of every width", largest_universe, powers));
  return {DR_ROLE_INDEX, "gap_huffman", {"gap_huffman"}, std::move(inputs), judge};
}

}  // namespace dr::cases
