// What a context keeps of a device: memory that calls without a workspace of their own use, one after the other.
#pragma once

#include "core/error.hpp"
#include "cuda/device.hpp"
#include "pipeline/device_decode.hpp"
#include "pipeline/device_encode.hpp"

namespace dr {

// Where a call runs: nowhere but here, or on a device.
struct target {
  device* where = nullptr;
  void* stream = nullptr;
  bool allows_host = false;
};

class device_memory {
 public:
  device_memory() = default;
  ~device_memory() { drop(); }
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;

  // Grows and stays. Calls on another stream wait for those before them, because they share it.
  dr_status reserve(const target& t, uint64_t size, dr_error& error) {
    if (where_ && (where_ != t.where || stream_ != t.stream))
      if (const dr_status s = where_->wait(stream_)) return fail(error, s, "device: %s", where_->reason());
    stream_ = t.stream;
    if (where_ == t.where && size <= size_) return DR_OK;
    drop();
    memory_ = t.where->allocate(size);
    if (!memory_)
      return fail(error, DR_E_MEMORY, "device: no %llu bytes to be had", static_cast<unsigned long long>(size));
    where_ = t.where;
    size_ = size;
    return DR_OK;
  }
  // Gives all back, once what still works with it has ended.
  dr_status trim(dr_error& error) {
    if (where_)
      if (const dr_status s = where_->wait(stream_)) return fail(error, s, "device: %s", where_->reason());
    drop();
    encoding = device_encode_scratch();
    decoding = device_decode_scratch();
    return DR_OK;
  }
  void* at() const { return memory_; }
  uint64_t size() const { return size_; }

  device_encode_scratch encoding;
  device_decode_scratch decoding;

 private:
  void drop() {
    if (memory_) where_->release(memory_);
    memory_ = nullptr;
    where_ = nullptr;
    size_ = 0;
  }
  device* where_ = nullptr;
  void* stream_ = nullptr;
  void* memory_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace dr
