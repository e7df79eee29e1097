// Prepared batches and the memory that they want.
#pragma once

#include <array>
#include <cstdlib>

#include "client.hpp"

namespace abi {

struct batch {
  dr_batch* handle = nullptr;
  ~batch() { dr_batch_destroy(handle); }
};

struct aligned_bytes {
  uint8_t* data;
  explicit aligned_bytes(size_t size) : data(static_cast<uint8_t*>(std::aligned_alloc(64, (size + 127) / 64 * 64))) {}
  ~aligned_bytes() { std::free(data); }
  aligned_bytes(const aligned_bytes&) = delete;
  aligned_bytes& operator=(const aligned_bytes&) = delete;
};

inline dr_batch_info describe(const batch& b) {
  dr_batch_info info{};
  info.struct_size = sizeof info;
  REQUIRE(dr_batch_describe(b.handle, &info, nullptr) == DR_OK);
  return info;
}

}  // namespace abi
