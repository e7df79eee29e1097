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

  // f(at, size), which enqueues on the target's stream, has the memory to itself: it grows, stays, and what comes later waits for what came
  // before, whatever the stream. That is known by an event, because a stream may be gone before the next call, and its handle another's.
  template <class F>
  dr_status lend(const target& t, uint64_t size, dr_error& error, F&& f) {
    if (const dr_status s = reserve(t, size, error)) return s;
    struct loan {
      device_memory& memory;
      void* stream;
      ~loan() {
        device& where = *memory.where_;
        // (Without an event to wait for, now.)
        if (where.record(memory.event_, stream)) (void)where.wait(stream);
      }
    } const until_the_end{*this, t.stream};
    return f(memory_, size_);
  }
  // Gives all back, once what still works with it has ended.
  dr_status trim(dr_error& error) {
    if (event_)
      if (const dr_status s = where_->wait_event(event_)) return fail(error, s, "device: %s", where_->reason());
    drop();
    encoding = device_encode_scratch();
    decoding = device_decode_scratch();
    return DR_OK;
  }

  device_encode_scratch encoding;
  device_decode_scratch decoding;

 private:
  dr_status reserve(const target& t, uint64_t size, dr_error& error) {
    if (where_ == t.where && size <= size_) {
      const dr_status s = where_->follow(t.stream, event_);
      return s ? fail(error, s, "device: %s", where_->reason()) : DR_OK;
    }
    drop();
    memory_ = t.where->allocate(size);
    event_ = memory_ ? t.where->make_event() : nullptr;
    where_ = t.where;
    size_ = size;
    if (event_) return DR_OK;
    drop();
    return fail(error, DR_E_MEMORY, "device: no %llu bytes to be had", static_cast<unsigned long long>(size));
  }
  void drop() {
    if (event_) {
      (void)where_->wait_event(event_);
      where_->drop_event(event_);
    }
    if (memory_) where_->release(memory_);
    event_ = memory_ = nullptr;
    where_ = nullptr;
    size_ = 0;
  }
  device* where_ = nullptr;
  void* event_ = nullptr;  // the end of what was enqueued
  void* memory_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace dr
