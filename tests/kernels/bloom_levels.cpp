// index=bloom: filters of any size and hash count, parts that begin and end anywhere, and p2 on top.
#include <algorithm>
#include <random>

#include "codecs/index/bloom/bloom_policy_kernel.hpp"
#include "levels.hpp"

namespace dr {
namespace {

// 0, a guard, behind `n` numbers: what a level may write is bloom_slack more.
struct numbers {
  std::vector<uint32_t> held;
  explicit numbers(size_t n) : held(n + bloom_slack + 1, 0x5a5a5a5a) {}
  uint32_t* data() { return held.data(); }
  bool intact() const { return held.back() == 0x5a5a5a5a; }
};

template <class Shape>
void compare_levels(const Shape& shape, std::mt19937_64& random, uint64_t fill) {
  // Unaligned, as payloads are; and ends where the memory does.
  std::vector<uint8_t> held(shape.size() + 1);
  uint8_t* const filter = held.data() + 1;
  for (uint32_t i = 0; i < shape.size(); ++i)
    filter[i] = static_cast<uint8_t>(fill == 0 ? random() & random() : fill == 1 ? random() : fill == 2 ? 0xff : 0);
  for (const uint32_t n : {0u, 1u, 7u, 8u, 9u, 15u, 16u, 17u, 100u, 4095u, 4096u}) {
    const uint32_t first = random() % 3 == 0 ? 0xffffffff - n : static_cast<uint32_t>(random());
    std::vector<uint32_t> want;
    for (uint32_t i = 0; i < n; ++i)
      if (bloom_contains(shape, filter, first + i)) want.push_back(first + i);
    std::vector<uint32_t> elements(n);
    for (uint32_t& e : elements) e = static_cast<uint32_t>(random());
    std::vector<uint8_t> inserted(held);
    for (const uint32_t e : elements)
      for (uint32_t j = 0; j < shape.hashes; ++j)
        inserted[1 + shape.bit(e, j) / 8] |= static_cast<uint8_t>(1u << (shape.bit(e, j) % 8));
    const auto check = [&](cpu_level level) {
      CAPTURE(n);
      CAPTURE(first);
      numbers found(n), bits(n);
      const uint32_t many = bloom_ask_table(shape).at(level)(shape, filter, first, n, found.data());
      CHECK(found.intact());
      CHECK(std::equal(found.data(), found.data() + many, want.begin(), want.end()));
      for (uint32_t j = 0; j < shape.hashes; ++j) {
        bloom_bits_at<Shape>.at(level)(shape, elements.data(), n, j, bits.data());
        for (uint32_t i = 0; i < n; ++i)
          if (bits.data()[i] != shape.bit(elements[i], j)) FAIL_CHECK("element " << elements[i] << ", hash " << j);
        CHECK(bits.intact());
      }
      std::vector<uint8_t> made(held);
      bloom_insert(shape, level, made.data() + 1, elements.data(), n);
      CHECK((made == inserted));
    };
    check(cpu_level::scalar);
    each_fast_level(check);
  }
}

}  // namespace

TEST_CASE("bloom: every level hashes, asks and inserts as one element after the other") {
  std::mt19937_64 random(1);
  // Divisors near the ends of their range, powers of two, and any.
  for (const uint32_t m : {32u, 64u, 96u, 4096u, 5312u, 65536u, 1u << 20, 3'333'344u})
    for (const uint32_t hashes : {1u, 2u, 7u, 10u, 64u})
      compare_levels(bloom_shape{divisor::of(m), hashes, static_cast<uint32_t>(random())}, random, hashes % 4);
  for (const uint32_t blocks : {1u, 2u, 3u, 23u, 4096u})
    for (uint64_t fill = 0; fill < 4; ++fill)
      compare_levels(split_block_shape{blocks, static_cast<uint32_t>(random())}, random, fill);
}

TEST_CASE("bloom: bits of the largest filters are the remainders") {
  std::mt19937_64 random(2);
  for (const uint32_t m : {0xffffffe0u, 0x80000000u, 0x7fffffe0u, 0x80000020u, 0xaaaaaaa0u}) {
    const bloom_shape shape{divisor::of(m), 3, static_cast<uint32_t>(random())};
    std::vector<uint32_t> elements(1000);
    for (uint32_t& e : elements) e = static_cast<uint32_t>(random());
    each_fast_level([&](cpu_level level) {
      numbers bits(1000);
      bloom_bits_at<bloom_shape>.at(level)(shape, elements.data(), 1000, 2, bits.data());
      for (size_t i = 0; i < 1000; ++i) CHECK(bits.data()[i] == murmur3_32(elements[i], shape.seed + 2) % m);
    });
  }
}

TEST_CASE("bloom: p2 scores are every level's") {
  std::mt19937_64 random(3);
  const bloom_shape shape{divisor::of(5312), 9, 77};
  std::vector<uint32_t> positives;
  for (uint32_t i = 0; i < 900; ++i) positives.push_back(40 * i + static_cast<uint32_t>(random() % 40));
  const auto scores_at = [&](cpu_level level) {
    std::vector<uint16_t> sizes(5312);
    std::vector<uint32_t> highest(5312), scores(900), work(2700);
    bloom_scores(shape, level, positives.data(), 900, {sizes.data(), highest.data()}, scores.data(), work.data());
    return scores;
  };
  const auto want = scores_at(cpu_level::scalar);
  CHECK(std::count(want.begin(), want.end(), uint32_t{1} << 31) > 10);
  each_fast_level([&](cpu_level level) { CHECK((scores_at(level) == want)); });
}

}  // namespace dr
