#include "codecs/family/levels/table_levels.hpp"

#include "codecs/family/huffman/code_lengths.hpp"

namespace dr {

namespace {

// With more levels, one in eight is sampled, in groups of 64: the loss is below 0.01 bits a level.
constexpr uint64_t all_looked_at = 65536, looked_at = 64, apart = 512;

// Bits of split Golomb for levels of these counts, in sixteenths; and of runs, where they are for them.
uint64_t golomb_bits(const uint32_t* counts, unsigned levels, uint64_t n, uint64_t sum) {
  const level_code code = level_code::of(level_divisor(sum, n));
  uint64_t bits = n * code.low_bits;
  for (unsigned i = 0; i < levels; ++i) {
    const uint32_t q = i / code.divisor, r = i - q * code.divisor;
    bits += uint64_t{counts[i]} * (q + 1 + (code.divisor > 1 && r >= code.short_low));
  }
  // A run costs about log2(e · bits of the string / zeros), and a twentieth for the code.
  if (2 * sum < n && sum > 0) {
    const uint64_t runs = sum * (log2_q16_above(n + sum, sum) + 91990) >> 16;
    if (runs < bits) bits = runs;
  }
  return sum ? bits : 0;
}

}  // namespace

table_coding table_coding_of(const uint8_t* levels, uint64_t n, unsigned count) {
  uint32_t counts[4][level_huffman_alphabet] = {};
  const uint64_t step = n <= all_looked_at ? looked_at : apart;
  uint64_t seen = 0;
  for (uint64_t i = 0; i < n; i += step) {
    const uint64_t end = n - i < looked_at ? n : i + looked_at;
    uint64_t j = i;
    for (; j + 4 <= end; j += 4)
      for (unsigned k = 0; k < 4; ++k) ++counts[k][levels[j + k]];
    for (; j < end; ++j) ++counts[0][levels[j]];
    seen += end - i;
  }
  uint64_t sum = 0;
  for (unsigned i = 0; i < count; ++i) {
    counts[0][i] += counts[1][i] + counts[2][i] + counts[3][i];
    sum += uint64_t{i} * counts[0][i];
  }
  table_coding coding{};
  if (count < 2) return coding;
  const uint64_t plain = golomb_bits(counts[0], count, seen, sum);
  // A level that the sample lacks may be there.
  if (step == apart)
    for (unsigned i = 0; i < count; ++i) counts[0][i] += counts[0][i] == 0;
  huffman_code_lengths<level_huffman_alphabet>(counts[0], count, level_huffman_bits_max, coding.lengths);
  uint64_t bits =
      8 * ceil_div(count, 2) * seen / n + seen / level_huffman_string * 20;  // a size and half a byte a string
  for (unsigned i = 0; i < count; ++i) bits += uint64_t{counts[0][i]} * coding.lengths[i];
  coding.huffman = bits < plain;
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
