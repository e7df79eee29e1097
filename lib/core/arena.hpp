// A bump allocator over one block of workspace. Without a block it only measures: the same code that lays a
// workspace out computes its size, so the two cannot disagree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace dr {

// The next multiple of `to`.
constexpr uint64_t round_up(uint64_t size, uint64_t to) { return (size / to + (size % to != 0)) * to; }

class arena {
 public:
  static constexpr size_t alignment = 64;

  arena() = default;  // measures
  arena(void* base, size_t size) : base_(static_cast<std::byte*>(base)), size_(size) {}

  // Memory for n objects, uninitialised; nullptr when measuring or full.
  template <class T>
  T* allocate(uint64_t n) {
    const size_t begin = used_;
    constexpr uint64_t top = std::numeric_limits<size_t>::max() / 2;
    if (n > top / sizeof(T) || n * sizeof(T) + alignment > top - used_) {
      used_ = top;
      return nullptr;
    }
    used_ = (used_ + static_cast<size_t>(n) * sizeof(T) + alignment - 1) / alignment * alignment;
    return base_ && used_ <= size_ ? reinterpret_cast<T*>(base_ + begin) : nullptr;
  }

  size_t used() const { return used_; }
  bool measures() const { return base_ == nullptr; }
  bool fits() const { return used_ <= size_; }

 private:
  std::byte* base_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

}  // namespace dr
