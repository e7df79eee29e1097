// Structs as a client of another version has them: cut short or longer than ours, with canaries around.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace abi {

inline constexpr uint8_t canary = 0xa5;

// n structs of `size` bytes, `stride` apart, in memory whose every other byte is a canary. Fields that we do not know are zero.
template <class T>
class structs {
 public:
  structs(std::vector<T> from, size_t size, size_t stride)
      : size_(size), stride_(stride), n_(from.size()), memory_(from.size() * stride + 64, canary) {
    for (size_t i = 0; i < n_; ++i) {
      std::memset(at(i), 0, size);
      std::memcpy(at(i), &from[i], std::min(size, sizeof(T)));
      std::memcpy(at(i), &size, sizeof size);
    }
  }
  structs(const T& from, size_t size) : structs(std::vector<T>{from}, size, (size + 15) / 8 * 8) {}

  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  size_t stride() const { return stride_; }
  // What the client sees of struct i.
  T read(size_t i = 0) const {
    T t{};
    std::memcpy(&t, memory_.data() + i * stride_, std::min(size_, sizeof(T)));
    return t;
  }
  // Nobody wrote between the structs, behind the last, or into what of a newer struct we do not know.
  bool intact() const {
    for (size_t b = 0; b < memory_.size(); ++b) {
      const size_t at = b % stride_;
      const bool theirs = b / stride_ < n_ && at < size_;
      if (at >= std::min(size_, sizeof(T)) || !theirs)
        if (memory_[b] != (theirs ? 0 : canary)) return false;
    }
    for (size_t i = 0; i < n_; ++i)
      if (read(i).struct_size != size_) return false;
    return true;
  }

 private:
  uint8_t* at(size_t i) { return memory_.data() + i * stride_; }
  size_t size_, stride_, n_;
  std::vector<uint8_t> memory_;
};

}  // namespace abi
