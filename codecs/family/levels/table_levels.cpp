#include "codecs/family/levels/table_levels.hpp"

#include "codecs/family/huffman/code_lengths.hpp"

namespace dr {

table_coding table_coding_of(const uint8_t* levels, uint64_t n, unsigned count) {
  uint32_t counts[4][level_huffman_alphabet] = {};
  const level_sample sample = level_sample::of(n);
  for (uint64_t i = 0; i < n; i += sample.step) {
    const uint64_t end = n - i < level_sample::group ? n : i + level_sample::group;
    uint64_t j = i;
    for (; j + 4 <= end; j += 4)
      for (unsigned k = 0; k < 4; ++k) ++counts[k][levels[j + k]];
    for (; j < end; ++j) ++counts[0][levels[j]];
  }
  uint64_t sum = 0;
  for (unsigned i = 0; i < count; ++i) {
    counts[0][i] += counts[1][i] + counts[2][i] + counts[3][i];
    sum += uint64_t{i} * counts[0][i];
  }
  table_coding coding{};
  if (count < 2) return coding;
  const level_code code = level_code::of(level_divisor(sum, sample.seen));
  uint64_t golomb = 0, huffman = level_huffman_head_bits(count, sample.seen, n);
  for (unsigned i = 0; i < count; ++i) golomb += uint64_t{counts[0][i]} * code.bits(i);
  if (sample.is_part())
    for (unsigned i = 0; i < count; ++i) counts[0][i] += counts[0][i] == 0;
  huffman_code_lengths<level_huffman_alphabet>(counts[0], count, level_huffman_bits_max, coding.lengths);
  for (unsigned i = 0; i < count; ++i) huffman += uint64_t{counts[0][i]} * coding.lengths[i];
  coding.huffman = huffman < level_bits(golomb, sample.seen, sum);
  return coding;
}

uint8_t* table_encode(const uint8_t* levels, uint64_t n, unsigned count, const table_coding& coding, uint8_t* out) {
  const auto each_block = [&](auto&& f) {
    for (uint64_t i = 0; i < n; i += level_block)
      f(levels + i, static_cast<size_t>(n - i < level_block ? n - i : level_block));
  };
  if (!coding.huffman) {
    level_writer writer(out, n);
    each_block([&](const uint8_t* block, size_t length) {
      uint32_t sum = 0;
      for (size_t i = 0; i < length; ++i) sum += block[i];
      uint8_t padded[level_block + level_slack];
      if (length % 64) {
        std::memcpy(padded, block, length);
        std::memset(padded + length, 0, level_slack);
        block = padded;
      }
      if (!writer.make_runs(block, length, sum)) {
        uint16_t wide[level_block + level_slack];
        for (size_t i = 0; i < length; ++i) wide[i] = block[i];
        std::memset(wide + length, 0, 2 * level_slack);
        writer.make(wide, length, sum);
      }
      writer.put();
    });
    return writer.end();
  }
  for (unsigned i = 0; i < count; i += 2)
    *out++ = static_cast<uint8_t>(coding.lengths[i] | (i + 1 < count ? coding.lengths[i + 1] << 4 : 0));
  level_huffman_code code;
  code.set(coding.lengths, count);
  uint8_t* size = out;
  if (n > level_block) out += 2 * level_blocks(n);
  uint8_t made[level_huffman_body_bound(level_block) + level_slack];
  each_block([&](const uint8_t* block, size_t length) {
    const auto bytes = static_cast<size_t>(level_huffman_encode.best()(block, length, code, made) - made);
    if (n > level_block) store(size, static_cast<uint16_t>(bytes));
    size += 2;
    std::memcpy(out, made, bytes);
    out += bytes;
  });
  return out;
}

}  // namespace dr
