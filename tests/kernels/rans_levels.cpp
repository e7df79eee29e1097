#include <algorithm>
#include <random>
#include <vector>

#include "codecs/family/rans/rans.hpp"
#include "levels.hpp"

namespace dr {
namespace {

// Symbols below `end` of geometric frequencies, or of as good as equal ones.
std::vector<uint8_t> symbols_below(uint64_t n, unsigned end, bool skewed, std::mt19937_64& random) {
  std::vector<uint8_t> out(n);
  for (uint8_t& s : out)
    s = static_cast<uint8_t>(
        skewed ? std::min<unsigned>(end - 1, static_cast<unsigned>(__builtin_ctzll(random() | 1ull << 63)))
               : random() % end);
  return out;
}

struct coder {
  std::vector<rans_code> codes;
  std::vector<rans_lookup> lookups;

  coder(const std::vector<uint8_t>& symbols, const std::vector<uint8_t>& of, unsigned tables) : codes(tables) {
    for (unsigned t = 0; t < tables; ++t) {
      uint32_t counts[256] = {};
      for (size_t i = 0; i < symbols.size(); ++i)
        if (of.empty() || of[i] == t) ++counts[symbols[i]];
      if (std::all_of(counts, counts + 256, [](uint32_t c) { return c == 0; })) counts[0] = 1;
      rans_table table;
      table.fit(counts, 256);
      codes[t].set(table);
      lookups.emplace_back(table);
    }
  }
};

// `count` strings that share their memory: of n symbols, the last one of `last`.
struct strings {
  std::vector<uint64_t> sizes;
  std::vector<uint8_t> bytes;
  std::vector<size_t> ends;

  strings(const coder& c, const std::vector<uint8_t>& symbols, const std::vector<uint8_t>& of,
          const std::vector<uint64_t>& lengths, cpu_level level) {
    const auto count = static_cast<unsigned>(lengths.size());
    std::vector<std::vector<uint8_t>> rooms;
    rans_output out[rans_strings_max];
    uint64_t first = 0;
    for (unsigned k = 0; k < count; ++k) {
      rooms.emplace_back(rans_bound(lengths[k]));
      out[k] = {symbols.data() + first,
                of.empty() ? nullptr : of.data() + first,
                lengths[k],
                rooms[k].data() + rooms[k].size(),
                {}};
      first += lengths[k];
    }
    for (unsigned k = 0; k < count; k += 4) rans_put_strings(&c.codes[k / 4], out + k, count < 4 ? count : 4, level);
    for (unsigned k = 0; k < count; ++k) {
      bytes.insert(bytes.end(), out[k].at, rooms[k].data() + rooms[k].size());
      ends.push_back(bytes.size());
    }
  }
};

// The strings lie at the end of their memory.
bool decode(const coder& c, const std::vector<uint8_t>& bytes, const std::vector<size_t>& ends,
            const std::vector<uint64_t>& lengths, const std::vector<uint8_t>& of, cpu_level level,
            std::vector<uint8_t>& symbols) {
  const std::vector<uint8_t> tight(bytes);
  rans_input in[rans_strings_max];
  uint64_t first = 0;
  size_t begin = 0;
  for (unsigned k = 0; k < lengths.size(); ++k) {
    in[k] = {tight.data() + begin, tight.data() + ends[k], of.empty() ? nullptr : of.data() + first,
             lengths[k],           symbols.data() + first, {}};
    begin = ends[k];
    first += lengths[k];
  }
  return rans_get_strings(c.lookups.data(), in, static_cast<unsigned>(lengths.size()), tight.data() + tight.size(),
                          level);
}

}  // namespace

TEST_CASE("rans: every level writes the bytes of scalar, and reads them") {
  std::mt19937_64 random(1);
  for (const unsigned end : {1u, 2u, 22u, 32u, 33u, 256u})
    for (const bool skewed : {false, true})
      for (const unsigned tables : {1u, 5u})
        for (const std::vector<uint64_t>& lengths : {std::vector<uint64_t>{1},
                                                     {2047},
                                                     {2048},
                                                     {2049},
                                                     {5003},
                                                     {4096, 4096, 4096, 4096},
                                                     {4096, 4096, 4096, 2050},
                                                     {4096, 4096, 4096, 17},
                                                     {2048, 5000, 2063, 4000},
                                                     {4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096},
                                                     {2048, 5000, 2063, 17, 17, 2049, 4013, 3049}}) {
          uint64_t n = 0;
          for (const uint64_t l : lengths) n += l;
          const auto symbols = symbols_below(n, end, skewed, random);
          std::vector<uint8_t> of(tables > 1 ? n : 0);
          for (uint8_t& t : of) t = static_cast<uint8_t>(random() % tables);
          // Of eight strings the last four have a table of their own.
          if (lengths.size() == 8 && tables != 1) continue;
          std::vector<uint8_t> half(lengths.size() == 8 ? n : 0);
          if (!half.empty()) std::fill(half.end() - static_cast<ptrdiff_t>(n / 2), half.end(), 1);
          const coder c = half.empty() ? coder(symbols, of, tables) : coder(symbols, half, 2);
          const strings expected(c, symbols, of, lengths, cpu_level::scalar);
          std::vector<uint8_t> found(n);
          CHECK(decode(c, expected.bytes, expected.ends, lengths, of, cpu_level::scalar, found));
          REQUIRE(found == symbols);
          each_fast_level([&](cpu_level level) {
            CAPTURE(end);
            CAPTURE(n);
            const strings made(c, symbols, of, lengths, level);
            CHECK(made.bytes == expected.bytes);
            CHECK(made.ends == expected.ends);
            std::fill(found.begin(), found.end(), uint8_t{0});
            CHECK(decode(c, expected.bytes, expected.ends, lengths, of, level, found));
            CHECK(found == symbols);
          });
        }
}

TEST_CASE("rans: a division by every frequency is exact, at the ends of what a state may be") {
  // A table of f and the rest: states next to multiples of f, the largest state, and random ones, as a string of them
  // would meet by chance only.
  std::mt19937_64 random(2);
  for (uint32_t f = 1; f <= rans_total; ++f) {
    const uint64_t end = uint64_t{f} << 20;
    const uint64_t reciprocal = ((uint64_t{1} << 44) + f - 1) / f;
    const auto check = [&](uint64_t x) {
      if (x < end && x <= UINT32_MAX) REQUIRE((x * reciprocal >> 44) == x / f);
    };
    for (int k = 0; k < 40; ++k) {
      const uint64_t multiple = random() % (end / f) * f;
      check(multiple);
      check(multiple + f - 1);
      check(random() % end);
    }
    check(end - 1);
    check(end - f);
  }
}

TEST_CASE("rans: every level refuses what scalar refuses, or decodes it to the same") {
  std::mt19937_64 random(3);
  const std::vector<uint64_t> lengths{2600, 2600, 2600, 2300};
  const auto symbols = symbols_below(10100, 20, true, random);
  const coder c(symbols, {}, 1);
  const strings made(c, symbols, {}, lengths, cpu_level::scalar);
  int refused = 0;
  for (int k = 0; k < 600; ++k) {
    std::vector<uint8_t> bytes = made.bytes;
    std::vector<size_t> ends = made.ends;
    if (k % 3) bytes[random() % bytes.size()] ^= static_cast<uint8_t>(1u << random() % 8);
    if (k % 3 != 1) ends[random() % 3] -= random() % 9;
    if (k % 5 == 0) {
      bytes.resize(bytes.size() - random() % 300);
      ends[3] = bytes.size();
    }
    std::vector<uint8_t> expected(symbols.size());
    const bool sound = decode(c, bytes, ends, lengths, {}, cpu_level::scalar, expected);
    refused += !sound;
    each_fast_level([&](cpu_level level) {
      std::vector<uint8_t> found(symbols.size());
      CHECK(decode(c, bytes, ends, lengths, {}, level, found) == sound);
      if (sound) CHECK(found == expected);
    });
  }
  CHECK(refused > 300);
}

}  // namespace dr
