// Inputs of codecs that read a base: what changes and how goes with what was there, as an optimizer's steps have it.
#pragma once

#include <cstring>

#include "tool/plugin_test/samples.hpp"

namespace dr::cases {

inline uint64_t word_of(std::span<const uint8_t> list, unsigned size, uint64_t i) {
  uint64_t w = 0;
  std::memcpy(&w, list.data() + i * size, size);
  return w;
}
inline void put_word(std::span<uint8_t> list, unsigned size, uint64_t i, uint64_t w) {
  std::memcpy(list.data() + i * size, &w, size);
}

// Of values what they were: most a place or two away, some anything, some the same.
inline std::vector<input> with_old_values(std::vector<input> all, std::string_view purpose) {
  random_source random(purpose);
  for (input& in : all) {
    const unsigned size = word_size(in.dtype);
    in.base = in.elements;
    for (uint64_t i = 0; i < in.base.size() / size; ++i) {
      const uint64_t w = word_of(in.base, size, i), kind = random.below(16);
      put_word(in.base, size, i,
               kind < 9    ? w - 1
               : kind < 13 ? w + 1 + random.below(3)
               : kind < 15 ? random.below(UINT64_MAX)
                           : w);
    }
  }
  return all;
}
inline std::vector<input> changed_values(std::string_view purpose) {
  std::vector<input> all = all_values(purpose, false, {1, 3});
  for (input& in : all_words(purpose, {1, 3})) all.push_back(std::move(in));
  return with_old_values(std::move(all), purpose);
}

// A word of such a type with a magnitude of about 2^-exponent, of either sign.
inline uint64_t word_about(random_source& random, uint32_t dtype, uint64_t exponent) {
  const uint64_t any = random.below(UINT64_MAX), sign = any & 1;
  switch (dtype) {
    case DR_F64: return sign << 63 | (1023 - exponent) << 52 | any >> 12;
    case DR_F32:
    case DR_U32: return sign << 31 | (127 - exponent) << 23 | any >> 41;
    case DR_BF16: return sign << 15 | (127 - exponent) << 7 | any >> 57;
    case DR_F16: return sign << 15 | (15 - exponent) << 10 | any >> 54;
    case DR_U16: return any >> 49 >> exponent;
    default: return sign << 7 | any >> 57 >> exponent / 2;
  }
}

// Supports over bases of each type: as they come, and such that small words change more often.
inline std::vector<input> changed_supports(std::string_view purpose) {
  random_source random(purpose);
  std::vector<input> out;
  for (const uint32_t dtype : {DR_BF16, DR_F32, DR_F16, DR_F64, DR_U8, DR_U16, DR_U32}) {
    const unsigned size = word_size(dtype);
    const auto with_base = [&](input in, auto&& exponent) {
      in.name += ", dtype " + std::to_string(dtype);
      in.dtype = dtype;
      in.base.resize(in.universe * size);
      uint64_t next = 0;
      for (uint64_t i = 0; i < in.universe; ++i) {
        const bool changes = next < in.count && element(in.elements, 4, next) == i;
        next += changes;
        put_word(in.base, size, i, word_about(random, dtype, exponent(changes)));
      }
      out.push_back(std::move(in));
    };
    for (input& in : supports(purpose, dtype == DR_BF16 ? 70000 : 1100))
      with_base(std::move(in), [&](bool) { return random.below(12); });
    // A step shows where a word is small: of these most change, of the others few do.
    for (const auto& [universe, count] : {std::pair<uint64_t, uint64_t>{1000, 63},
                                          {1000, 64},
                                          {20000, 200},
                                          {40000, 2500},
                                          {66000, 20000},
                                          {66000, 60000}})
      with_base(support("small ones", universe, random.subset(universe, count)), [&](bool changes) {
        return changes == (random.below(8) != 0) ? 8 + random.below(4) : random.below(8);
      });
  }
  return out;
}

// The inputs, and each once more with a history: what changes has often changed of late, and goes on.
inline std::vector<input> with_histories(std::vector<input> all, std::string_view purpose) {
  random_source random(purpose);
  const size_t n = all.size();
  for (size_t k = 0; k < n; ++k) {
    input in = all[k];
    in.name += ", with a history";
    const unsigned size = word_size(in.dtype);
    const bool is_index = in.elements.size() == 4 * in.count && in.base.size() == in.universe * size && in.width == 1;
    in.history.resize(in.base.size() / size);
    uint64_t next = 0;
    for (uint64_t i = 0; i < in.history.size(); ++i) {
      const bool changes = is_index ? next < in.count && element(in.elements, 4, next) == i
                                    : word_of(in.base, size, i) != word_of(in.elements, size, i);
      next += is_index && changes;
      const uint64_t any = random.below(256);
      in.history[i] = static_cast<uint8_t>(changes && any % 4 ? (1 + any % 3) | (any & 0xe0) : any % 8 ? 0 : any);
    }
    all.push_back(std::move(in));
  }
  return all;
}

}  // namespace dr::cases
