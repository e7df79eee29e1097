// What fuzz targets share: an input read as a list of small decisions, memory of an exact size, a way to say that something is wrong.
#pragma once

#include <deepreduce/deepreduce.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace fuzz {

using bytes = std::vector<uint8_t>;

[[noreturn]] inline void wrong(const char* what, const char* sentence = "") {
  std::fprintf(stderr, "wrong: %s %s\n", what, sentence);
  std::abort();
}

// One of so many threads, made when it is first asked for; 0 and 1: none are started.
inline dr_context* context(uint32_t threads = 0) {
  const auto made_of = [](uint32_t n) {
    dr_context_options options{};
    options.struct_size = sizeof options;
    options.threads = n;
    dr_context* made = nullptr;
    if (dr_context_create(&options, &made, nullptr)) wrong("no context");
    return made;
  };
  static dr_context* const alone = made_of(0);
  if (threads < 2) return alone;
  static dr_context* const several = made_of(threads);
  return several;
}

// Decisions, from the front of an input; zeros behind its end.
class script {
 public:
  script(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  bool empty() const { return at_ == end_; }
  uint8_t byte() { return empty() ? 0 : *at_++; }
  uint64_t number(unsigned size) {
    uint64_t x = 0;
    for (unsigned i = 0; i < size; ++i) x |= uint64_t{byte()} << 8 * i;
    return x;
  }
  // At most `most`; one byte where that is enough, else two or four.
  uint64_t up_to(uint64_t most) {
    const uint64_t x = number(most < 256 ? 1 : most < 65536 ? 2 : 4);
    return most >= UINT32_MAX ? x : x % (most + 1);
  }
  bytes take(size_t size) {
    const size_t n = std::min(size, static_cast<size_t>(end_ - at_));
    at_ += n;
    return {at_ - n, at_};
  }
  bytes rest() { return take(static_cast<size_t>(end_ - at_)); }

 private:
  const uint8_t *at_, *end_;
};

// Memory that ends where it ends, so that a sanitizer sees the first byte behind it. `skew`: bytes before it, for odd addresses.
class block {
 public:
  explicit block(size_t size, uint8_t fill = 0xcd, size_t skew = 0)
      : all_(static_cast<uint8_t*>(operator new (size + skew, std::align_val_t{64}))), size_(size), skew_(skew) {
    std::memset(all_, fill, size + skew);
  }
  explicit block(const bytes& from, size_t skew = 0) : block(from.size(), 0, skew) {
    if (!from.empty()) std::memcpy(data(), from.data(), from.size());
  }
  ~block() { operator delete (all_, std::align_val_t{64}); }
  block(const block&) = delete;
  block& operator=(const block&) = delete;

  uint8_t* data() const { return all_ + skew_; }
  size_t size() const { return size_; }
  bytes copy(size_t n) const { return {data(), data() + n}; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }

 private:
  uint8_t* all_;
  size_t size_, skew_;
};

}  // namespace fuzz
