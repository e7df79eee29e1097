// A query tests a part of the universe hash by hash, and passes on elements whose bit is set:
// about 2 hashes an element where half of the bits are, and nothing for a branch predictor to guess. (Lane by lane
// until all lanes of a vector have failed costs 5 hashes at 16 lanes; element by element it costs mispredictions.)
#include "codecs/index/bloom/bloom_query_kernel.hpp"

#include <cstring>

namespace dr {

uint32_t bloom_ask_scalar(const bloom_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n,
                          uint32_t* found) {
  for (uint32_t i = 0; i < n; ++i) found[i] = first + i;
  for (uint32_t j = 0; j < shape.hashes && n; ++j) {
    uint32_t hits = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t element = found[i], bit = shape.bit(element, j);
      found[hits] = element;
      hits += filter[bit / 8] >> (bit % 8) & 1;
    }
    n = hits;
  }
  return n;
}

// Tests two words per element first, without a branch; one element in seven remains (k r / m = 0.5).
uint32_t bloom_ask_split_scalar(const split_block_shape& shape, const uint8_t* filter, uint32_t first, uint32_t n,
                                uint32_t* found) {
  uint32_t block[bloom_part], mixed[bloom_part], maybe = 0;
  const auto has = [&](uint32_t of, uint32_t g, uint32_t j) {
    const uint32_t bit = g * shape.salt[j] >> 27;
    return filter[size_t{32} * of + 4 * j + bit / 8] >> (bit % 8) & 1;
  };
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t h = shape.hash(first + i), g = shape.mix(h), of = shape.block(h);
    found[maybe] = first + i;
    block[maybe] = of;
    mixed[maybe] = g;
    maybe += static_cast<uint32_t>(has(of, g, 0) & has(of, g, 1));
  }
  uint32_t hits = 0;
  for (uint32_t i = 0; i < maybe; ++i) {
    int all = 1;
    for (uint32_t j = 2; j < shape.hashes && all; ++j) all = has(block[i], mixed[i], j);
    found[hits] = found[i];
    hits += static_cast<uint32_t>(all);
  }
  return hits;
}

void bloom_insert_split_scalar(const split_block_shape& shape, uint8_t* filter, const uint32_t* elements,
                               uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t h = shape.hash(elements[i]), g = shape.mix(h);
    uint8_t* block = filter + size_t{32} * shape.block(h);
    for (uint32_t j = 0; j < shape.hashes; ++j) {
      const uint32_t bit = g * shape.salt[j] >> 27;
      block[4 * j + bit / 8] |= static_cast<uint8_t>(1u << (bit % 8));
    }
  }
}

}  // namespace dr
