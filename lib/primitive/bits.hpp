// Little-endian loads and stores, bit strings (low bit of a byte first), and integer logarithms.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/host_device.hpp"

namespace dr {

static_assert(std::endian::native == std::endian::little, "big-endian hosts are not supported");

template <class T>
T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// An integer of `bytes` bytes, at most 8.
inline uint64_t load_bytes(const uint8_t* from, unsigned bytes) {
  uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  return value;
}
inline void store_bytes(uint8_t* to, uint64_t value, unsigned bytes) { std::memcpy(to, &value, bytes); }

// <bit>, for devices too. There std::bit_width, bit_floor and popcount of 64 bits and std::countr_zero of any are
// silently wrong: libstdc++ uses builtins (clzl, ctz, popcountl) that nvcc 13 has for the host only, and
// --expt-relaxed-constexpr lets them through, as constants. nvcc documents no behaviour for the others: a device has
// its own.
#if defined(__CUDA_ARCH__)
#define DR_ON_DEVICE(...) \
  if (!std::is_constant_evaluated()) return static_cast<unsigned>(__VA_ARGS__)
#else
#define DR_ON_DEVICE(...) (void)0
#endif
DR_HD constexpr unsigned bit_width(uint64_t x) {
  DR_ON_DEVICE(64 - __clzll(static_cast<long long>(x)));
  return x ? 64 - static_cast<unsigned>(__builtin_clzll(x)) : 0;
}
DR_HD constexpr uint64_t bit_floor(uint64_t x) { return x ? uint64_t{1} << (bit_width(x) - 1) : 0; }
DR_HD constexpr uint64_t bit_ceil(uint64_t x) { return x <= 1 ? 1 : uint64_t{1} << bit_width(x - 1); }
DR_HD constexpr unsigned countr_zero(uint32_t x) {
  DR_ON_DEVICE(__clz(static_cast<int>(__brev(x))));
  return x ? 31 - static_cast<unsigned>(__builtin_clz(x & (0 - x))) : 32;
}
DR_HD constexpr unsigned popcount(uint32_t x) {
  DR_ON_DEVICE(__popc(x));
  return static_cast<unsigned>(__builtin_popcount(x));
}
#undef DR_ON_DEVICE
DR_HD constexpr unsigned countr_zero(uint64_t x) {
  const auto low = static_cast<uint32_t>(x);
  return low ? countr_zero(low) : 32 + countr_zero(static_cast<uint32_t>(x >> 32));
}
DR_HD constexpr unsigned popcount(uint64_t x) {
  return popcount(static_cast<uint32_t>(x)) + popcount(static_cast<uint32_t>(x >> 32));
}

DR_HD constexpr uint64_t ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
constexpr uint64_t saturated_product(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }
constexpr uint64_t saturated_sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
DR_HD constexpr unsigned ceil_log2(uint64_t x) { return x <= 1 ? 0 : bit_width(x - 1); }
DR_HD constexpr unsigned bytes_for(uint64_t maximum) {  // bytes that hold 0 … maximum
  return maximum == 0 ? 0 : (bit_width(maximum) + 7) / 8;
}
DR_HD constexpr uint64_t low_mask(unsigned bits) { return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; }

// An upper bound of 65536 * log2(a / b), a >= b > 0, by less than 0.1 * 65536. log2 is concave, so the chord between
// powers of two lies below it, by at most 0.0861 (at 1/ln 2 - 1): 5643/65536 is just above that.
DR_HD constexpr uint64_t log2_q16_above(uint64_t a, uint64_t b) {
  const uint64_t x = (a << 16) / b + 1;  // a < 2^48
  const unsigned e = bit_width(x) - 1;
  const uint64_t fraction = e >= 16 ? (x - (uint64_t{1} << e)) >> (e - 16) : (x - (uint64_t{1} << e)) << (16 - e);
  return ((uint64_t{e} - 16) << 16) + fraction + 1 + 5643;
}

// LEB128: 7 bits a byte, low first. Returns the end.
DR_HD inline uint8_t* put_varint(uint8_t* out, uint64_t x) {
  for (; x >= 0x80; x >>= 7) *out++ = static_cast<uint8_t>(x | 0x80);
  *out++ = static_cast<uint8_t>(x);
  return out;
}
// Returns the end, or nullptr: cut off, beyond 64 bits, or with a superfluous group.
DR_HD inline const uint8_t* get_varint(const uint8_t* in, const uint8_t* end, uint64_t& x) {
  x = 0;
  for (unsigned shift = 0; shift < 70 && in < end; shift += 7) {
    const uint64_t byte = *in++;
    if (shift == 63 && byte > 1) return nullptr;
    x |= (byte & 0x7f) << shift;
    if (byte < 0x80) return byte != 0 || shift == 0 ? in : nullptr;
  }
  return nullptr;
}

class bit_writer {
 public:
  explicit bit_writer(uint8_t* out) : out_(out) {}

  void put(uint64_t value, unsigned bits) {  // value < 2^bits, bits <= 32
    word_ |= value << fill_;
    fill_ += bits;
    while (fill_ >= 8) {
      *out_++ = static_cast<uint8_t>(word_);
      word_ >>= 8;
      fill_ -= 8;
    }
  }
  void put_unary(uint64_t zeros) {  // zeros, then a one
    for (; zeros >= 32; zeros -= 32) put(0, 32);
    put(uint64_t{1} << zeros, static_cast<unsigned>(zeros) + 1);
  }
  uint8_t* finish() {  // pads to a byte
    if (fill_) *out_++ = static_cast<uint8_t>(word_);
    word_ = fill_ = 0;
    return out_;
  }

 private:
  uint8_t* out_;
  uint64_t word_ = 0;
  unsigned fill_ = 0;
};

// Like bit_writer, but stores whole words: 8 bytes past the output must be writable.
struct bit_appender {
  uint8_t* out;
  uint64_t word = 0;
  unsigned fill = 0;  // < 8

  void put(uint64_t value, unsigned bits) {  // value < 2^bits, bits <= 56
    word |= value << fill;
    fill += bits;
    store(out, word);
    out += fill / 8;
    word >>= fill & ~7u;
    fill &= 7;
  }
  void put_unary(uint64_t zeros) {
    for (; zeros >= 48; zeros -= 48) put(0, 48);
    put(uint64_t{1} << zeros, static_cast<unsigned>(zeros) + 1);
  }
  uint8_t* finish() {
    if (fill) *out++ = static_cast<uint8_t>(word);
    word = fill = 0;
    return out;
  }
};

// Appends bits at any position, by stores of words.
class word_writer {
 public:
  explicit word_writer(uint8_t* out) : out_(out) {}

  // bits < 2^length, length <= 64. Stores up to 8 bytes; later calls overwrite those beyond the end.
  void put(uint64_t bits, unsigned length) {
    const uint64_t joined = word_ | bits << fill_, carry = bits >> 1 >> (63 - fill_);
    store(out_, joined);
    const unsigned total = fill_ + length;
    out_ += total / 64 * 8;
    word_ = total >= 64 ? carry : joined;
    fill_ = total % 64;
  }
  void put_unary(uint64_t zeros) {
    for (; zeros >= 63; zeros -= 63) put(0, 63);
    put(uint64_t{1} << zeros, static_cast<unsigned>(zeros) + 1);
  }
  uint8_t* finish() {  // pads to a byte
    store(out_, word_);
    return out_ + ceil_div(fill_, 8);
  }

 private:
  uint8_t* out_;
  uint64_t word_ = 0;
  unsigned fill_ = 0;
};

// Reads a bit string of known length; the caller has checked that it lies in the payload.
class bit_reader {
 public:
  bit_reader(const uint8_t* in, uint64_t bits) : in_(in), bits_(bits) {}

  uint64_t get(unsigned bits) {  // bits <= 32; past the end reads zeros
    while (fill_ < bits) {
      word_ |= static_cast<uint64_t>(8 * next_ < bits_ ? in_[next_] : 0) << fill_;
      ++next_;
      fill_ += 8;
    }
    const uint64_t value = word_ & low_mask(bits);
    word_ >>= bits;
    fill_ -= bits;
    return value;
  }

 private:
  const uint8_t* in_;
  uint64_t bits_, next_ = 0, word_ = 0;
  unsigned fill_ = 0;
};

// Four words that a GPU loads at once if they are aligned.
struct alignas(16) four_words {
  uint32_t of[4];
};
DR_HD inline bool aligned_to_four(const void* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(four_words) == 0; }
// from[i … i+3]; words from n on are not read and count as 0. i is a multiple of 4.
DR_HD inline four_words load_four(const uint32_t* from, uint64_t i, uint64_t n) {
  four_words x{};
  if (i + 4 <= n && aligned_to_four(from)) return *reinterpret_cast<const four_words*>(from + i);
  for (unsigned j = 0; j < 4; ++j)
    if (i + j < n) x.of[j] = from[i + j];
  return x;
}
DR_HD inline void store_four(uint32_t* to, uint64_t i, uint64_t n, const four_words& x) {
  if (i + 4 <= n && aligned_to_four(to)) {
    *reinterpret_cast<four_words*>(to + i) = x;
    return;
  }
  for (unsigned j = 0; j < 4; ++j)
    if (i + j < n) to[i + j] = x.of[j];
}
// The 32 bits that begin at bit `shift` < 32 of two words.
DR_HD constexpr uint32_t funnel(uint32_t low, uint32_t high, unsigned shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> shift);
}
// Lanes copy a string of bytes to words; behind it comes what else its last word has. `from` is in words of which only those
// are read that have a byte of it, a lane's all at once.
DR_HD inline void load_string(const uint8_t* from, uint32_t size, uint32_t* to, unsigned lane, unsigned lanes) {
  const auto ahead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % 4);
  const auto* const words = reinterpret_cast<const uint32_t*>(from - ahead);
  const uint32_t n = (ahead + size + 3) / 4;
#pragma unroll 1
  for (uint32_t i = 4 * lane; 4 * i < size; i += 4 * lanes) {
    uint32_t x[5];
#pragma unroll
    for (unsigned j = 0; j < 5; ++j) x[j] = i + j < n ? words[i + j] : 0;
    four_words four;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) four.of[j] = funnel(x[j], x[j + 1], 8 * ahead);
    *reinterpret_cast<four_words*>(to + i) = four;
  }
}
DR_HD constexpr uint32_t load_u16(const uint8_t* at) { return at[0] | uint32_t{at[1]} << 8; }
// Up to 32 bits of a bit string in words. Reads the following word, too.
DR_HD inline uint32_t bits_at(const uint32_t* words, uint32_t bit, unsigned bits) {
  const uint32_t* const from = words + bit / 32;
  return funnel(from[0], from[1], bit % 32) & static_cast<uint32_t>(low_mask(bits));
}

// Whether the last byte of a string of `bits` bits is padded with zeros.
DR_HD inline bool padding_is_zero(const uint8_t* in, uint64_t bits) {
  return bits % 8 == 0 || in[bits / 8] >> (bits % 8) == 0;
}

}  // namespace dr
