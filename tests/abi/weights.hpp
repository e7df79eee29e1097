// Weights of any type that a patch takes, and what a step of training makes of them.
#pragma once

#include <algorithm>

#include "client.hpp"

namespace abi {

using client::bytes;

struct word_kind {
  dr_dtype dtype;
  size_t size;
  const char* name;
};
inline constexpr word_kind word_kinds[] = {{DR_F32, 4, "f32"}, {DR_F16, 2, "f16"}, {DR_BF16, 2, "bf16"},
                                           {DR_F64, 8, "f64"}, {DR_U8, 1, "u8"},   {DR_U16, 2, "u16"},
                                           {DR_U32, 4, "u32"}};

// Rows of `width` words, as bytes.
struct weights {
  word_kind kind;
  uint32_t width;
  bytes data;

  uint64_t words() const { return data.size() / kind.size; }
  uint64_t rows() const { return words() / width; }
  uint64_t word(uint64_t i) const {
    uint64_t w = 0;
    std::memcpy(&w, &data[i * kind.size], kind.size);
    return w;
  }
  void set(uint64_t i, uint64_t w) { std::memcpy(&data[i * kind.size], &w, kind.size); }
  std::vector<uint64_t> sums() const {
    std::vector<uint64_t> out((data.size() + 4095) / 4096);
    REQUIRE(dr_base_sums(data.data(), data.size(), out.data(), out.size(), nullptr) == DR_OK);
    return out;
  }
  dr_tensor_out out(std::vector<uint64_t>* sums = nullptr) {
    dr_tensor_out o{};
    o.struct_size = sizeof o;
    o.dtype = kind.dtype;
    o.universe = rows();
    o.width = width;
    o.values = data.data();
    o.sums = sums ? sums->data() : nullptr;
    return o;
  }
};

// Normal weights of a scale of 0.02, in the bits of a type; of raw words bits by chance.
inline weights some_weights(word_kind kind, uint64_t rows, uint32_t width = 1, uint64_t seed = 1) {
  client::rng random{seed};
  weights w{kind, width, bytes(rows * width * kind.size)};
  for (uint64_t i = 0; i < w.words(); ++i) {
    const double x = 0.02 * (random.uniform() + random.uniform() + random.uniform() + random.uniform() - 2);
    const auto single = static_cast<float>(x);
    uint32_t of_single;
    std::memcpy(&of_single, &single, 4);
    uint64_t bits = random.next();
    if (kind.dtype == DR_F64) std::memcpy(&bits, &x, 8);
    if (kind.dtype == DR_F32) bits = of_single;
    if (kind.dtype == DR_BF16) bits = of_single >> 16;
    if (kind.dtype == DR_F16)  // (cut off; too small for f16: 0)
      bits =
          of_single >> 16 >> 15 << 15 | ((of_single >> 23 & 255) < 113 ? 0 : (of_single >> 13 & 0x3ffff) - (112 << 10));
    w.set(i, bits);
  }
  return w;
}

// Every word changes with the chance `share`, mostly by one or two places, seldom to anything.
inline weights changed(const weights& base, double share, uint64_t seed = 2) {
  client::rng random{seed};
  weights now = base;
  for (uint64_t i = 0; i < now.words(); ++i) {
    if (random.uniform() >= share) continue;
    const uint64_t w = base.word(i), any = random.next();
    now.set(i, any % 32 == 0 ? any >> 8 : any & 64 ? w + 1 + (any >> 8 & 1) : w - 1);
  }
  return now;
}
inline weights one_changed(const weights& base) {
  weights now = base;
  if (now.words()) now.set(now.words() / 2, now.word(now.words() / 2) ^ 3);
  return now;
}

// The rows that differ, and how the new ones are.
struct word_pairs {
  std::vector<uint64_t> indices;
  bytes values;
  bool operator==(const word_pairs&) const = default;
};
inline word_pairs difference(const weights& base, const weights& now) {
  word_pairs out;
  const size_t row = base.width * base.kind.size;
  for (uint64_t i = 0; i < base.rows(); ++i) {
    if (std::memcmp(&base.data[i * row], &now.data[i * row], row) == 0) continue;
    out.indices.push_back(i);
    out.values.insert(out.values.end(), &now.data[i * row], &now.data[i * row] + row);
  }
  return out;
}

inline dr_tensor patch_of(const weights& base, const weights& now, std::vector<uint64_t>* sums = nullptr) {
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = now.kind.dtype;
  t.universe = now.rows();
  t.width = now.width;
  t.values = now.data.data();
  t.base = base.data.data();
  t.sums = sums ? sums->data() : nullptr;
  return t;
}

inline dr_decode_options applying() {
  dr_decode_options o{};
  o.struct_size = sizeof o;
  o.flags = DR_DECODE_APPLY;
  return o;
}

inline dr_status apply(client::context& c, const bytes& frame, std::vector<dr_tensor_out> outs,
                       dr_decode_options options = applying()) {
  const bytes exact(frame);  // so that a sanitizer sees a byte read behind it
  return dr_decode(c.handle, nullptr, exact.data(), exact.size(), &options, outs.data(), sizeof(dr_tensor_out),
                   outs.size());
}
inline void applied(client::context& c, const bytes& frame, weights& to, std::vector<uint64_t>* sums = nullptr) {
  const dr_status s = apply(c, frame, {to.out(sums)});
  INFO(c.error());
  REQUIRE(s == DR_OK);
}

// The pairs that a patch of a base gives to a sparse output, whose memory is just enough.
inline word_pairs pairs_of(client::context& c, const bytes& frame, const weights& base,
                           std::vector<uint64_t>* sums = nullptr) {
  const uint64_t support = client::inspect(frame).support;
  word_pairs got{std::vector<uint64_t>(support), bytes(support * base.width * base.kind.size)};
  dr_tensor_out o{};
  o.struct_size = sizeof o;
  o.dtype = base.kind.dtype;
  o.index_dtype = DR_U64;
  o.universe = base.rows();
  o.width = base.width;
  o.values = got.values.data();
  o.indices = got.indices.data();
  o.capacity = support;
  o.base = base.data.data();
  o.sums = sums ? sums->data() : nullptr;
  const dr_decode_options options = applying();
  const dr_status s = dr_decode(c.handle, nullptr, frame.data(), frame.size(), &options, &o, sizeof o, 1);
  INFO(c.error());
  REQUIRE(s == DR_OK);
  CHECK(o.count == support);
  return got;
}

}  // namespace abi
