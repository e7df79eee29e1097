// Levels of quantised numbers, in blocks of 4096 whose code selects the form:
//   0            the codec's own way, uncompressed
//   2·M, M > 0   split Golomb with divisor M (split_levels.hpp)
//   2·z + 1      runs: z units fall on n levels; each says, by split Golomb, how many levels on from the one before it
//   falls. For
//                levels with a mean so small that a bit per level is too much.
// A lone block has its code as a varint, several have a table of codes u16 and body sizes u16.
// (Layout: codecs/value/uniform_quant/SPEC.md.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/family/levels/split_levels.hpp"

namespace dr {

// ---- Runs ------------------------------------------------------------------------------------------------

// A bit per nonzero level among eight below 128, or four below 2^15.
inline unsigned levels_above_0(const uint8_t* levels) {
  const uint64_t above = (load<uint64_t>(levels) + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101;
  return above * 0x0102040810204080 >> 56;  // lowest bits side by side: no two of the product's bits meet
}
inline unsigned levels_above_0(const uint16_t* levels) {
  const uint64_t above = (load<uint64_t>(reinterpret_cast<const uint8_t*>(levels)) + 0x7fff7fff7fff7fff) >> 15;
  return (above & 0x0001000100010001) * 0x0001000200040008 >> 48 & 15;
}

// The levels' sum is `units`, 1 <= units <= n / 2. levels: zeros up to a multiple of 64. out: as split_levels_encode.
// Returns the end.
template <class Level>
uint8_t* runs_encode(const Level* levels, size_t n, size_t units, uint8_t* out) {
  constexpr size_t together = 8 / sizeof(Level);
  uint16_t gaps[level_block + level_slack];
  size_t found = 0, at = 0;
  for (size_t i = 0; i < n; i += 64) {
    uint64_t some = 0;
    for (size_t j = 0; j < 64; j += together) some |= uint64_t{levels_above_0(levels + i + j)} << j;
    for (; some; some &= some - 1) {
      const size_t here = i + countr_zero(some);
      gaps[found++] = static_cast<uint16_t>(here - at);
      at = here;
      for (unsigned more = levels[here]; more > 1; --more) gaps[found++] = 0;
    }
  }
  std::memset(gaps + units, 0, 2 * level_slack);
  return split_levels_encode.best()(gaps, units, runs_code(n, units), out);
}

// As split_levels_decode.
inline bool runs_decode(const uint8_t* body, size_t size, size_t n, size_t units, uint16_t* levels) {
  std::memset(levels, 0, 2 * n);
  if (units == 0) return size == 0;
  if (units > n) return false;
  uint16_t gaps[level_block + level_slack];
  if (!split_levels_decode.best()(body, size, units, runs_code(n, units), gaps)) return false;
  size_t at = 0;
  for (size_t i = 0; i < units; ++i) {
    at += gaps[i];
    if (at >= n) return false;
    ++levels[at];
  }
  return true;
}

// ---- Writing ---------------------------------------------------------------------------------------------

// Blocks in their order; entries at `table`, bodies after it.
class level_writer {
 public:
  level_writer(uint8_t* table, uint64_t n)
      : entry_(table), body_(n > level_block ? table + level_table_bound(n) : table), several_(n > level_block) {}

  // n levels of sum `sum`: makes the body that put() then writes. Returns its bytes. levels: level_slack zeros after them.
  size_t make(const uint16_t* levels, size_t n, uint64_t sum) {
    if (make_runs(levels, n, sum)) return size_;
    const uint32_t divisor = level_divisor(sum, n);
    code_ = 2 * divisor;
    size_ = sized(split_levels_encode.best()(levels, n, level_code::of(divisor), made_));
    return size_;
  }
  // Runs, if they are not longer.
  template <class Level>
  bool make_runs(const Level* levels, size_t n, uint64_t sum) {
    if (2 * sum >= n) return false;  // below, M is 1, and so the body has n + sum bits
    code_ = static_cast<uint32_t>(2 * sum + 1);
    size_ = sum ? sized(runs_encode(levels, n, sum, made_)) : 0;
    return size_ <= (n + sum) / 8;
  }
  void put() { put(code_, made_, size_); }
  void put(uint32_t code, const void* body, size_t size) {
    if (several_) {
      store(entry_, static_cast<uint16_t>(code));
      store(entry_ + 2, static_cast<uint16_t>(size));
      entry_ += 4;
    } else {
      body_ = put_varint(body_, code);
    }
    std::memcpy(body_, body, size);
    body_ += size;
  }
  uint8_t* end() const { return body_; }

 private:
  size_t sized(const uint8_t* end) const { return static_cast<size_t>(end - made_); }

  uint8_t *entry_, *body_;
  bool several_;
  uint32_t code_ = 0;
  size_t size_ = 0;
  alignas(64) uint8_t made_[level_body_max + level_slack];
};

// ---- Reading ---------------------------------------------------------------------------------------------

// Decodes blocks with n levels in order; the payload ends at `end`, and nothing after it is read.
class level_reader {
 public:
  level_reader(const uint8_t* table, const uint8_t* end, uint64_t n)
      : entry_(table), body_(table), end_(end), several_(n > level_block) {
    if (several_) {
      good_ = static_cast<uint64_t>(end - table) >= level_table_bound(n);
      if (good_) body_ += level_table_bound(n);
    }
  }

  // The next block's code and body. False if they are not in the payload.
  bool next() {
    if (!good_) return false;
    uint64_t code = several_ ? load<uint16_t>(entry_) : 0;
    if (!several_ && !(body_ = get_varint(entry_, end_, code))) return good_ = false;
    const auto rest = static_cast<size_t>(end_ - body_);
    size_ = several_ ? load<uint16_t>(entry_ + 2) : rest;
    entry_ += several_ ? 4 : 0;
    if (size_ > rest || size_ > level_body_max || code > level_code_max) return good_ = false;
    code_ = static_cast<uint32_t>(code);
    from_ = body_;
    body_ += size_;
    return true;
  }
  uint32_t code() const { return code_; }
  const uint8_t* body() const { return from_; }
  size_t size() const { return size_; }
  bool at_end() const { return good_ && body_ == end_; }
  const uint8_t* entry() const { return entry_; }

  // Of a block that is not raw. levels: room for n + level_slack.
  bool levels(size_t n, uint16_t* levels) {
    if (code_ == raw_block) return false;
    std::memcpy(padded_, from_, size_);
    std::memset(padded_ + size_, 0, level_slack);
    if (code_ % 2) return runs_decode(padded_, size_, n, code_ / 2, levels);
    return split_levels_decode.best()(padded_, size_, n, level_code::of(code_ / 2), levels);
  }

 private:
  const uint8_t *entry_, *body_, *end_, *from_ = nullptr;
  bool several_, good_ = true;
  uint32_t code_ = 0;
  size_t size_ = 0;
  alignas(64) uint8_t padded_[level_body_max + level_slack];
};

}  // namespace dr
