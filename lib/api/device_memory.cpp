#include "api/device_memory.hpp"

#include <cinttypes>

namespace dr {

dr_status device_memory::trim(dr_error& error) {
  if (event_)
    if (const dr_status s = check_device(where_->wait_event(event_), *where_, error)) return s;
  drop();
  encoding = device_encode_scratch();
  decoding = device_decode_scratch();
  return DR_OK;
}

dr_status device_memory::reserve(const target& t, uint64_t size, dr_error& error) {
  if (where_ == t.where && size <= size_) return check_device(where_->follow(t.stream, event_), *where_, error);
  drop();
  where_ = t.where;  // before anything that may throw: drop() releases it
  memory_ = where_->allocate(size);
  event_ = memory_ ? where_->make_event() : nullptr;
  size_ = size;
  if (event_) return DR_OK;
  drop();
  return fail(error, DR_E_MEMORY, "device: cannot allocate %" PRIu64 " bytes", size);
}

void device_memory::finish(void* stream) {
  // Without an event, the work ends here.
  if (where_->record(event_, stream)) (void)where_->wait(stream);
}

void device_memory::drop() {
  if (event_) {
    (void)where_->wait_event(event_);
    where_->drop_event(event_);
  }
  if (memory_) where_->release(memory_);
  event_ = memory_ = nullptr;
  where_ = nullptr;
  size_ = 0;
}

}  // namespace dr
