// Where a test of the GPU runs: on a CUDA device (DR_ON_CUDA), or on one that the CPU plays. One source of tests, and of benchmarks, for both:
// what can be proved without a device is, and what is left for a device is the device.
#pragma once

#if defined(DR_ON_CUDA)
#include "cuda/place_cuda.cuh"
#else
#include "cuda/place_emulated.hpp"
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace place {

// DR_TEST_EXACT=1: no guards and no poison, so that compute-sanitizer's memcheck and initcheck see every byte themselves.
inline bool exact_memory() {
  static const bool exact = [] {
    const char* const e = std::getenv("DR_TEST_EXACT");
    return e && *e == '1';
  }();
  return exact;
}

// Memory of the place, poisoned, between two guards. `shift` bytes off an alignment of 256.
class buffer {
 public:
  static constexpr uint8_t poison = 0xa5, guard = 0x5a;
  static constexpr size_t guard_size = 256;

  buffer() = default;
  explicit buffer(size_t size, size_t shift = 0) : size_(size), shift_(shift) {
    const size_t around = exact_memory() ? 0 : guard_size;
    base_ = allocate(size + shift + 2 * around);
    at_ = static_cast<uint8_t*>(base_) + around + shift;
    if (exact_memory()) return;
    fill(base_, guard, around + shift);
    fill(at_, poison, size);
    fill(at_ + size, guard, around);
  }
  buffer(buffer&& b) noexcept { *this = std::move(b); }
  buffer& operator=(buffer&& b) noexcept {
    std::swap(base_, b.base_);
    std::swap(at_, b.at_);
    std::swap(size_, b.size_);
    std::swap(shift_, b.shift_);
    return *this;
  }
  ~buffer() {
    if (base_) release(base_);
  }

  uint8_t* at() const { return at_; }
  size_t size() const { return size_; }
  void put_bytes(const void* from, size_t size) { put(at_, from, size); }
  std::vector<uint8_t> bytes(size_t size) const {
    std::vector<uint8_t> out(size);
    get(out.data(), at_, size);
    return out;
  }
  std::vector<uint8_t> bytes() const { return bytes(size_); }
  void poison_again() {
    if (!exact_memory()) fill(at_, poison, size_);
  }
  // Nobody wrote in front of it or behind it.
  bool intact() const {
    if (!base_ || exact_memory()) return true;
    uint8_t seen[2 * guard_size];
    const size_t front = guard_size + shift_;
    get(seen, base_, std::min(front, sizeof seen));
    if (std::any_of(seen, seen + std::min(front, sizeof seen), [](uint8_t b) { return b != guard; })) return false;
    get(seen, at_ + size_, guard_size);
    return std::all_of(seen, seen + guard_size, [](uint8_t b) { return b == guard; });
  }

 private:
  void* base_ = nullptr;
  uint8_t* at_ = nullptr;
  size_t size_ = 0, shift_ = 0;
};

// Makes memory a result that says nothing yet: poison, behind its size.
inline void start_result(const buffer& at) {
  const size_t size = sizeof(dr_result);
  fill(at.at(), buffer::poison, size);
  put(at.at(), &size, sizeof size);
}

}  // namespace place
