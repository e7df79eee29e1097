// The elements of a tensor: own memory, or a part of a file. Copies share the memory until one is written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

namespace dr::compare {

class tensor_bytes {
 public:
  tensor_bytes() = default;

  // Zeros; untouched pages cost no memory. Throws std::bad_alloc.
  explicit tensor_bytes(uint64_t size) : size_(size) {
    void* const memory = std::calloc(std::max<size_t>(size, 1), 1);
    if (memory == nullptr) throw std::bad_alloc();
    owner_.reset(memory, std::free);
    data_ = own_ = static_cast<std::byte*>(memory);
  }

  // Read-only `bytes`, which `owner` keeps alive.
  tensor_bytes(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : owner_(std::move(owner)), data_(bytes.data()), size_(bytes.size()) {}

  static tensor_bytes copy_of(std::span<const std::byte> bytes) {
    tensor_bytes copy(bytes.size());
    if (!bytes.empty()) std::memcpy(copy.own_, bytes.data(), bytes.size());
    return copy;
  }

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const std::byte* begin() const { return data_; }
  const std::byte* end() const { return data_ + size_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }

  // A private copy of the bytes, for writing.
  std::span<std::byte> writable() {
    if (own_ == nullptr || owner_.use_count() > 1) *this = copy_of(*this);
    return {own_, size_};
  }

  // Appends `next` without a copy if it follows directly in the same memory; else returns false.
  bool extend(const tensor_bytes& next) {
    if (owner_ != next.owner_ || end() != next.begin()) return false;
    size_ += next.size_;
    return true;
  }

  bool operator==(const tensor_bytes& other) const { return std::ranges::equal(*this, other); }

 private:
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  std::byte* own_ = nullptr;  // data_, if it may be written to
  size_t size_ = 0;
};

}  // namespace dr::compare
