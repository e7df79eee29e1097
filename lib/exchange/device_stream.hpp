// What a rank's exchange has on a device: a stream, memory there and pinned memory of the host, and the end of what it
// enqueued.
#pragma once

#include "api/context.hpp"

namespace dr {

class device_stream {
 public:
  device_stream(context& c, const target& where) : c_(c), where_(where) {}
  ~device_stream();
  device_stream(const device_stream&) = delete;
  device_stream& operator=(const device_stream&) = delete;

  // Memory of the device, of which the first `cleared` bytes become 0, and of the host. Waits. MEMORY.
  dr_status allocate(uint64_t size, uint64_t cleared, uint64_t host_size);
  std::byte* memory() const { return memory_; }
  std::byte* host() const { return host_; }
  // The host's memory is never released: a transport still uses it.
  void leave_host() { host_ = nullptr; }
  // Nothing is waited for: a collective of which a rank is gone still uses the memory. A later `allocate` releases it when
  // the mark is passed; if there is none behind the collective, nothing ever does.
  void leave(bool marked);
  bool is_done() const { return where_.where->is_done(end_); }  // up to the mark

  const target& where() const { return where_; }
  device_queue queue() const { return {where_.where, nullptr, where_.stream}; }
  // Enqueue.
  dr_status copy(void* to, const void* from, uint64_t size);
  dr_status clear(void* to, uint64_t size);
  dr_status mark();  // the end of what was enqueued
  // DR_OK: all before the mark is done. DR_PENDING: not yet. DEVICE. Never waits.
  dr_status poll();
  // Copies, and waits.
  dr_status copy_now(void* to, const void* from, uint64_t size);

 private:
  dr_status checked(dr_status s) const { return check_device(s, *where_.where, c_.error); }

  context& c_;
  target where_;
  std::byte *memory_ = nullptr, *host_ = nullptr;
  void *end_ = nullptr, *probe_ = nullptr;  // events
  uint64_t polls_ = 0;                      // of a mark
};

}  // namespace dr
