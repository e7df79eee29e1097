#include <random>
#include <vector>

#include "codecs/value/planes/planes_kernel.hpp"
#include "levels.hpp"

namespace dr {
namespace {

template <class Word>
void compare_words() {
  using bits = typename Word::bits;
  std::mt19937_64 random(sizeof(bits));
  std::vector<uint64_t> sizes{1000};
  for (uint64_t n = 0; n <= 130; ++n) sizes.push_back(n);
  for (const uint64_t n : sizes) {
    std::vector<bits> words(n);
    for (bits& w : words) w = static_cast<bits>(random());
    // past: planes that go past the caches, from addresses that are `off` apart from aligned ones.
    const auto split = [&](cpu_level level, uint32_t past, uint64_t off) {
      std::vector<std::vector<uint8_t>> planes(Word::size, std::vector<uint8_t>(n + 65, 0xee));
      planes_target<Word> to;
      to.past = past;
      for (unsigned p = 0; p < Word::size; ++p) to.planes[p] = planes[p].data() + off * (p + 1) % 64;
      planes_split<Word>.at(level)(words.data(), n, to);
      fence_streams();
      std::vector<std::vector<uint8_t>> found;
      for (unsigned p = 0; p < Word::size; ++p) found.emplace_back(to.planes[p], to.planes[p] + n + 1);
      return found;
    };
    const auto expected = split(cpu_level::scalar, 0, 0);
    const uint8_t* from[8];
    for (unsigned p = 0; p < Word::size; ++p) from[p] = expected[p].data();
    each_fast_level([&](cpu_level level) {
      CAPTURE(n);
      CHECK(split(level, 0, 0) == expected);
      CHECK(split(level, 1, 3) == expected);
      CHECK(split(level, (1u << Word::size) - 1, 0) == expected);
      CHECK(split(level, (1u << Word::size) - 2, 5) == expected);
      for (const bool past : {false, true})
        for (const uint64_t off : {0u, 1u, 7u}) {
          std::vector<bits> joined(n + off + 1, 77);
          planes_join<Word>.at(level)(from, n, joined.data() + off, past);
          fence_streams();
          CHECK(joined[n + off] == 77);
          CHECK(std::vector<bits>(joined.data() + off, joined.data() + off + n) == words);
        }
    });
  }
}

template <class Bits>
std::vector<uint8_t> encoded(const std::vector<Bits>& words, bool past, cpu_level level) {
  using Word = planes_word<Bits, true>;
  std::vector<std::byte> scratch(planes_scratch::encode_size(words.size(), Word::size));
  std::vector<uint8_t> out(words.size() * Word::size + Word::size);
  const auto room = planes_scratch::at(scratch.data(), words.size(), Word::size);
  out.resize(
      static_cast<size_t>(planes_encode<Word>(words.data(), words.size(), room, out.data(), past, level) - out.data()));
  return out;
}

}  // namespace

TEST_CASE("planes: every level splits and joins words as scalar does") {
  compare_words<planes_word<uint8_t, false>>();
  compare_words<planes_word<uint16_t, false>>();
  compare_words<planes_word<uint16_t, true>>();
  compare_words<planes_word<uint32_t, false>>();
  compare_words<planes_word<uint32_t, true>>();
  compare_words<planes_word<uint64_t, true>>();
}

TEST_CASE("planes: the sign is the lowest bit, and the exponent of bf16 and f32 a byte") {
  const uint16_t words[] = {0x3f80, 0xbf80, 0x4000, 0x8000};
  uint8_t low[4], high[4];
  planes_split_scalar<planes_word<uint16_t, true>>(words, 4, {{low, high}});
  CHECK(std::vector<uint8_t>(high, high + 4) == std::vector<uint8_t>{0x7f, 0x7f, 0x80, 0x00});
  CHECK(std::vector<uint8_t>(low, low + 4) == std::vector<uint8_t>{0, 1, 0, 1});
}

TEST_CASE("planes: every level finds the range of bytes that there are, and lowers them") {
  std::mt19937 random(5);
  for (uint64_t n = 1; n <= 300; ++n)
    for (const unsigned kind : {0u, 1u, 2u, 3u}) {
      std::vector<uint8_t> bytes(n);
      for (uint8_t& b : bytes)
        b = static_cast<uint8_t>(kind == 0   ? random()
                                 : kind == 1 ? 100 + random() % 20
                                 : kind == 2 ? 0
                                             : 255 * (random() % 2));
      planes_range expected{255, 255, 0};
      for (const uint8_t b : bytes) {
        expected.least = std::min(expected.least, b);
        if (b) expected.above_zero = std::min(expected.above_zero, b);
        expected.largest = std::max(expected.largest, b);
      }
      const auto by = static_cast<uint8_t>(random());
      std::vector<uint8_t> lowered = bytes;
      for (uint8_t& b : lowered) b = static_cast<uint8_t>(b > by ? b - by : 0);
      for (const cpu_level level : cpu_levels) {
        if (level > cpu_detected()) continue;
        const planes_range found = planes_range_of.at(level)(bytes.data(), n);
        CHECK(found.least == expected.least);
        CHECK(found.above_zero == expected.above_zero);
        CHECK(found.largest == expected.largest);
        std::vector<uint8_t> here = bytes;
        planes_lower.at(level)(here.data(), n, by);
        CHECK(here == lowered);
      }
    }
}

TEST_CASE("planes: every level writes the same blocks, and each reads them") {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (const uint64_t n : {1u, 63u, 64u, 2047u, 2048u, 40000u, 65535u, 65536u, 65700u, 262144u})
    for (const unsigned kind : {0u, 1u, 2u}) {
      std::vector<uint32_t> words(n);
      for (uint32_t& w : words) {
        const float x = 0.02f * normal(random);
        w = kind == 1 && random() % 2 ? 0
            : kind == 2               ? static_cast<uint32_t>(random() >> random() % 32)
                                      : std::bit_cast<uint32_t>(x);
        if (n > 100000) w &= 0xffff0000;
      }
      const auto expected = encoded(words, false, cpu_level::scalar);
      each_fast_level([&](cpu_level level) {
        for (const bool past : {false, true}) CHECK(encoded(words, past, level) == expected);
      });
      std::vector<std::byte> scratch(planes_scratch::decode_size(n, 4));
      for (const cpu_level level : cpu_levels) {
        if (level > cpu_detected()) continue;
        CAPTURE(n);
        CAPTURE(kind);
        const std::vector<uint8_t> tight(expected);
        std::vector<uint32_t> found(n);
        const uint8_t* const end = tight.data() + tight.size();
        for (const bool past : {false, true}) {
          std::fill(found.begin(), found.end(), 0);
          CHECK(planes_decode<planes_word<uint32_t, true>>(
              tight.data(), end, end, end, n, planes_scratch::at(scratch.data(), n, 4), found.data(), past, level));
          CHECK(found == words);
        }
      }
    }
}

}  // namespace dr
