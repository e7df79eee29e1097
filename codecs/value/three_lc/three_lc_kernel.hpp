// Ternary values, five a byte, runs of zero bytes shortened (3LC, Lim et al. 2019; layout: SPEC.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codecs/family/ternary/ternary_digits.hpp"
#include "primitive/bits.hpp"
#include "primitive/value_type.hpp"

namespace dr {

inline constexpr uint8_t three_lc_run = ternary_byte_max + 1;         // and above: two and more bytes of zeros
inline constexpr uint32_t three_lc_run_max = 2 + 255 - three_lc_run;  // 14

// The smallest magnitude above zero that is at least `limit`.
template <class T>
uint32_t three_lc_least(double limit) {
  const typename T::bits near = T::from_f64(limit);
  return std::max<uint32_t>(1, near + (double{T::to_f32(near)} < limit));
}

// The digits of n values: 1 below the least magnitude, else 0 or 2 by the sign.
template <class T>
DR_EVERYWHERE void three_lc_digits_with(const typename T::bits* values, size_t n, uint32_t least, uint8_t* digits) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t reached = (values[i] & T::magnitude_mask) >= least, below = values[i] > T::magnitude_mask;
    digits[i] = static_cast<uint8_t>(1 + reached - 2 * (reached & below));
  }
}

template <class T>
void three_lc_digits_scalar(const typename T::bits* values, size_t n, uint32_t least, uint8_t* digits) {
  three_lc_digits_with<T>(values, n, least, digits);
}
template <class T>
void three_lc_digits_avx2(const typename T::bits* values, size_t n, uint32_t least, uint8_t* digits);
template <class T>
void three_lc_digits_avx512(const typename T::bits* values, size_t n, uint32_t least, uint8_t* digits);

template <class T>
inline constexpr cpu_table<decltype(&three_lc_digits_scalar<T>)> three_lc_digits{
    three_lc_digits_scalar<T>, on_x86(three_lc_digits_avx2<T>), on_x86(three_lc_digits_avx512<T>)};

// Bytes of digits become bytes of the payload; runs go on from one call to the next.
class three_lc_writer {
 public:
  explicit three_lc_writer(uint8_t* out) : out_(out) {}

  void put(const uint8_t* bytes, size_t n) {
    for (size_t i = 0; i < n; ++i)
      if (bytes[i] != ternary_zeros) {
        flush();
        *out_++ = bytes[i];
      } else if (++zeros_ == three_lc_run_max) {
        flush();
      }
  }
  uint8_t* finish() {
    flush();
    return out_;
  }

 private:
  void flush() {
    if (zeros_) *out_++ = static_cast<uint8_t>(zeros_ == 1 ? ternary_zeros : three_lc_run + zeros_ - 2);
    zeros_ = 0;
  }

  uint8_t* out_;
  uint32_t zeros_ = 0;  // bytes that wait
};

// The inverse: a given number of bytes of digits, none of them above 242.
class three_lc_reader {
 public:
  three_lc_reader(const uint8_t* in, uint64_t size) : in_(in), end_(in + size) {}

  // How many there were.
  size_t take(size_t n, uint8_t* bytes) {
    size_t i = 0;
    while (i < n) {
      if (zeros_) {
        const auto some = static_cast<size_t>(std::min<uint64_t>(zeros_, n - i));
        std::fill_n(bytes + i, some, ternary_zeros);
        i += some;
        zeros_ -= static_cast<uint32_t>(some);
        continue;
      }
      if (in_ == end_) break;
      const uint8_t read = *in_++;  // read once: the byte that was looked at is the one used
      if (read < three_lc_run)
        bytes[i++] = read;
      else
        zeros_ = read - three_lc_run + 2u;
    }
    return i;
  }
  bool at_end() const { return in_ == end_ && zeros_ == 0; }

 private:
  const uint8_t *in_, *end_;
  uint32_t zeros_ = 0;  // bytes of a run that are left
};

}  // namespace dr
