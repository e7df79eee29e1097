#include "patch/base_check.hpp"

#include <algorithm>
#include <cstring>

#include "primitive/word.hpp"

namespace dr {
namespace {

// The inverse of mix64: multiplications by odd numbers and xor-shifts have inverses.
constexpr uint64_t unshift(uint64_t x, unsigned by) {
  uint64_t y = x;
  for (unsigned k = by; k < 64; k += by) y = x ^ y >> by;
  return y;
}
constexpr uint64_t inverse(uint64_t odd) {
  uint64_t x = odd;
  for (int i = 0; i < 6; ++i) x *= 2 - odd * x;  // (Newton: a step doubles the number of correct bits)
  return x;
}
constexpr uint64_t unmix64(uint64_t x) {
  x = unshift(x, 31) * inverse(0x94d049bb133111eb);
  x = unshift(x, 27) * inverse(0xbf58476d1ce4e5b9);
  return unshift(x, 30);
}
static_assert(unmix64(mix64(0x0123456789abcdef)) == 0x0123456789abcdef && unmix64(mix64(1)) == 1);

}  // namespace

void base_sums(const void* from, uint64_t bytes, uint64_t* sums) {
  const auto terms = check_terms.best();  // the sum of a chunk follows from its term
  const auto* at = static_cast<const uint8_t*>(from);
  for (; bytes >= base_chunk; bytes -= base_chunk, at += base_chunk) *sums++ = unmix64(terms(at, check_chunk_words, 0));
  if (!bytes) return;
  uint8_t rest[base_chunk] = {};
  std::memcpy(rest, at, bytes);
  *sums = unmix64(terms(rest, ceil_div(bytes, 4), 0));
}

uint64_t fold_sums(const uint64_t* sums, uint64_t chunks) {
  uint64_t all = 0;
  for (uint64_t c = 0; c < chunks; ++c) all += mix64(sums[c] + c * golden);
  return all;
}

namespace {

// The contribution of the word at byte `at` of the tensor to the sum of its chunk.
template <class Bits>
uint64_t moved(uint64_t at, Bits old, Bits now) {
  const uint64_t word = at % base_chunk / 4;
  if constexpr (sizeof(Bits) == 8)
    return ((now & 0xffffffff) - (old & 0xffffffff)) * check_table[word] +
           ((now >> 32) - (old >> 32)) * check_table[word + 1];
  else
    return (uint64_t{now} - uint64_t{old}) * (uint64_t{check_table[word]} << 8 * (at % 4));
}

template <class Bits>
void move(uint64_t* sums, uint32_t width, const uint32_t* positions, uint64_t n, const void* old, const void* now) {
  const auto *const a = static_cast<const Bits*>(old), *const b = static_cast<const Bits*>(now);
  if (width == 1 && positions && n) {
    uint64_t chunk = 0, sum = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t at = positions[i] * sizeof(Bits);
      if (at / base_chunk != chunk) {
        sums[chunk] += sum;
        chunk = at / base_chunk;
        sum = 0;
      }
      sum += moved(at, a[i], b[i]);
    }
    sums[chunk] += sum;
    return;
  }
  for (uint64_t i = 0; i < n; ++i)
    for (uint64_t w = 0; w < width; ++w) {
      const uint64_t k = i * width + w, at = ((positions ? positions[i] : i) * width + w) * sizeof(Bits);
      sums[at / base_chunk] += moved(at, a[k], b[k]);
    }
}

}  // namespace

void move_sums(uint64_t* sums, uint32_t size, uint32_t width, const uint32_t* positions, uint64_t n, const void* old,
               const void* now) {
  with_word(size, [&](auto bits) { move<decltype(bits)>(sums, width, positions, n, old, now); });
}

}  // namespace dr
