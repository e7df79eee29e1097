// Lengths of the runs of a bitmap (SPEC.md).
#pragma once

#include "primitive/bits.hpp"
#include "primitive/packing.hpp"

namespace dr {

enum rle_code : uint32_t { rle_packed, rle_runs8, rle_runs16, rle_runs32, rle_gaps8, rle_gaps16, rle_gaps32 };
inline constexpr const char* rle_codes = "packed|runs8|runs16|runs32|gaps8|gaps16|gaps32";

// Bytes of a length in the codes that are not packed; the largest number of that many bytes is the escape.
constexpr unsigned rle_bytes(uint32_t code) { return 1u << (code - 1) % 3; }
constexpr uint64_t rle_escape(uint32_t code) { return low_mask(8 * rle_bytes(code)); }
constexpr bool rle_tells_gaps(uint32_t code) { return code >= rle_gaps8; }

// Runs of ones are at most the indices, and the elements between them: so many lengths of two for each.
constexpr uint64_t rle_bound(uint32_t code, uint64_t universe, uint64_t count_max) {
  const uint64_t runs = count_max < universe / 2 + 1 ? count_max : universe / 2 + 1;
  if (code == rle_packed) return 1 + packed_size(2 * runs, bit_width(universe));
  const uint64_t lengths = rle_tells_gaps(code) ? count_max : 2 * runs;
  return rle_bytes(code) * (lengths + universe / rle_escape(code));
}

// Calls length(l) for zeros, ones, zeros, … up to the last one, or in the codes of gaps for the zeros before a one.
template <class F>
void rle_lengths(const uint32_t* x, uint64_t n, uint32_t code, F&& length) {
  uint64_t next = 0;
  for (uint64_t i = 0; i < n;) {
    uint64_t end = i + 1;
    if (!rle_tells_gaps(code))
      while (end < n && x[end] == x[end - 1] + 1) ++end;
    length(x[i] - next);
    if (!rle_tells_gaps(code)) length(end - i);
    next = uint64_t{x[end - 1]} + 1;
    i = end;
  }
}

struct rle_shape {
  uint64_t size;
  unsigned bits;  // packed: per length
};
inline rle_shape rle_measure(const uint32_t* x, uint64_t n, uint32_t code) {
  if (code == rle_packed) {
    // Runs of ones, and the bits of all runs. (Usually an index is a run; this loop has no branch.)
    uint32_t runs = 1, all = x[0];
    for (uint64_t i = 1; i < n; ++i) {
      const uint32_t zeros = x[i] - x[i - 1] - 1;
      runs += zeros != 0;
      all |= zeros;
    }
    uint64_t longest = 1;
    for (uint64_t i = 1, ones = 1; runs != n && i < n; ++i) {
      ones = x[i] - x[i - 1] == 1 ? ones + 1 : 1;
      longest = longest > ones ? longest : ones;
    }
    const unsigned bits = bit_width(all | longest);
    return {1 + packed_size(2 * uint64_t{runs}, bits), bits};
  }
  uint64_t units = 0;
  rle_lengths(x, n, code, [&](uint64_t l) { units += 1 + l / rle_escape(code); });
  return {rle_bytes(code) * units, 0};
}

//   x [n] strictly ascending     out: rle_bound bytes. Returns bytes written.
inline uint64_t rle_encode(const uint32_t* x, uint64_t n, uint32_t code, uint8_t* out) {
  if (code == rle_packed) {
    const rle_shape shape = rle_measure(x, n, code);
    *out = static_cast<uint8_t>(shape.bits);
    bit_writer bits(out + 1);
    rle_lengths(x, n, code, [&](uint64_t l) { bits.put(l, shape.bits); });
    bits.finish();
    return shape.size;
  }
  const unsigned bytes = rle_bytes(code);
  const uint64_t escape = rle_escape(code);
  uint8_t* at = out;
  rle_lengths(x, n, code, [&](uint64_t l) {
    for (; l >= escape; l -= escape, at += bytes) store_bytes(at, escape, bytes);
    store_bytes(at, l, bytes);
    at += bytes;
  });
  return static_cast<uint64_t>(at - out);
}

// Reads lengths one by one; `take` returns false at the end of the payload.
class rle_reader {
 public:
  rle_reader(const uint8_t* in, uint64_t size, uint32_t code)
      : in_(in), size_(size), code_(code), bits_(code == rle_packed ? in[0] : 0), reader_(in + 1, 8 * (size - 1)) {}

  bool take(uint64_t& length) {
    length = 0;
    if (code_ == rle_packed) {
      if (at_ + bits_ > 8 * (size_ - 1)) return false;
      at_ += bits_;
      length = reader_.get(bits_);
      all_ |= length;
      return true;
    }
    const unsigned bytes = rle_bytes(code_);
    for (uint64_t unit = rle_escape(code_); unit == rle_escape(code_); length += unit, at_ += bytes) {
      if (size_ - at_ < bytes) return false;
      unit = load_bytes(in_ + at_, bytes);
    }
    return true;
  }
  // All is used; packed, as few bits as the longest run needs.
  bool done() const {
    if (code_ != rle_packed) return at_ == size_;
    return ceil_div(at_, 8) == size_ - 1 && padding_is_zero(in_ + 1, at_) && bit_width(all_) == bits_;
  }
  bool sound() const { return bits_ <= 32; }
  uint64_t byte() const { return code_ == rle_packed ? 1 + at_ / 8 : at_; }

 private:
  const uint8_t* in_;
  uint64_t size_;
  uint32_t code_;
  unsigned bits_;
  bit_reader reader_;
  uint64_t at_ = 0, all_ = 0;  // bits of packed, bytes of others
};

// Returns false and sets *where (a byte of the payload) if it is corrupt.
inline bool rle_decode(const uint8_t* in, uint64_t size, uint64_t n, uint64_t universe, uint32_t code, uint32_t* x,
                       uint64_t* where) {
  *where = 0;
  if (size == 0) return false;
  rle_reader reader(in, size, code);
  if (!reader.sound()) return false;
  uint64_t next = 0;
  for (uint64_t i = 0; i < n;) {
    *where = reader.byte();
    uint64_t zeros, ones = 1;
    if (!reader.take(zeros) || zeros >= universe - next) return false;  // next <= universe
    if (!rle_tells_gaps(code)) {
      if ((i && zeros == 0) || !reader.take(ones) || ones == 0) return false;
    }
    next += zeros;
    if (ones > universe - next || ones > n - i) return false;
    for (const uint64_t end = i + ones; i < end; ++i) x[i] = static_cast<uint32_t>(next++);
  }
  *where = reader.byte();
  return reader.done();
}

}  // namespace dr
