// Where a call runs, and the device memory that a context lends to calls without a workspace of their own.
#pragma once

#include "core/error.hpp"
#include "cuda/device.hpp"
#include "pipeline/device_decode.hpp"
#include "pipeline/device_encode.hpp"

namespace dr {

struct target {
  device* where = nullptr;  // nullptr: the CPU
  void* stream = nullptr;
  bool allows_host = false;
};

// The error of a device's call, with its reason.
inline dr_status check_device(dr_status status, device& where, dr_error& error) {
  return status ? fail(error, status, "device: %s", where.reason()) : DR_OK;
}

// One block, which grows and stays. Calls use it one after the other.
class device_memory {
 public:
  device_memory() = default;
  ~device_memory() { drop(); }
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;

  // Runs f(memory, size), which enqueues on the target's stream. Later loans wait for its work on whatever stream they
  // are. They wait for an event: the stream may be gone by then, and its handle another's.
  template <class F>
  dr_status lend(const target& t, uint64_t size, dr_error& error, F&& f) {
    if (const dr_status s = reserve(t, size, error)) return s;
    struct loan {
      device_memory& memory;
      void* stream;
      ~loan() { memory.finish(stream); }
    } const until_the_end{*this, t.stream};
    return f(memory_, size_);
  }
  // Waits for the work that uses the memory, and releases all.
  dr_status trim(dr_error& error);

  device_encode_scratch encoding;
  device_decode_scratch decoding;

 private:
  dr_status reserve(const target& t, uint64_t size, dr_error& error);
  void finish(void* stream);
  void drop();

  device* where_ = nullptr;
  void* event_ = nullptr;  // the end of the work enqueued so far
  void* memory_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace dr
