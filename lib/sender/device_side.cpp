#include <cstring>

#include "sender/device_unit.hpp"

namespace dr {

device_side::~device_side() {
  device& at = *where_.where;
  if (done_) (void)at.wait_event(done_);
  for (void* const event : events_) at.drop_event(event);
  if (memory_) at.release(memory_);
  if (host_) at.release_host(host_);
}

void* device_side::make_event() {
  events_.reserve(events_.size() + 1);
  void* const event = where_.where->make_event();
  if (event) events_.push_back(event);
  return event;
}

dr_status device_side::allocate(uint64_t mirrored, uint64_t size) {
  device& at = *where_.where;
  mirrored_ = mirrored;
  done_ = make_event();
  memory_ = static_cast<std::byte*>(at.allocate(size));
  host_ = static_cast<std::byte*>(at.allocate_host(mirrored));
  if (!done_ || !memory_ || !host_)
    return fail(c_.error, DR_E_MEMORY, "sender: cannot allocate %llu bytes on the device, %llu of the host",
                static_cast<unsigned long long>(size), static_cast<unsigned long long>(mirrored));
  size_ = size;
  stream_ = where_.stream;
  std::memset(host_, 0, mirrored);
  return DR_OK;
}

dr_status device_side::start(uint64_t cleared) {
  device& at = *where_.where;
  // Loads the kernels: a launch must not.
  for (const dr_kernel* const k :
       {&kernel<seal_slots>, &kernel<settle_slots>, &kernel<open_returns>, &kernel<collect_gates>, &kernel<seal_sums>,
        &kernel<return_states<jobs_few>>, &kernel<return_states<jobs_many>>, &kernel<set_counts>,
        &kernel<finish_outputs<jobs_few>>, &kernel<finish_outputs<jobs_many>>})
    at.load(*k);
  dr_status s = at.clear(where_.stream, memory_, cleared);
  if (!s) s = at.copy(where_.stream, memory_, host_, mirrored_);
  if (!s) s = at.wait(where_.stream);
  return launched(s);
}

dr_status device_side::begin() {
  // cudaStreamPerThread is another stream in another thread.
  void* const per_thread = reinterpret_cast<void*>(uintptr_t{2});
  if (where_.stream != stream_ || stream_ == per_thread)
    if (const dr_status s = launched(where_.where->follow(where_.stream, done_))) return s;
  stream_ = where_.stream;
  open_ = true;
  return DR_OK;
}

dr_status device_side::end() {
  open_ = false;
  return launched(where_.where->record(done_, where_.stream));
}

dr_status device_side::wait_for(void* event) {
  if (where_.where->is_done(event)) return DR_OK;
  ++waits_;
  return launched(where_.where->wait_event(event));
}

dr_status device_side::copy_now(void* to, const void* from, uint64_t size) {
  if (const dr_status s = begin()) return s;
  ++waits_;
  dr_status s = where_.where->copy(where_.stream, to, from, size);
  if (!s) s = where_.where->wait(where_.stream);
  return launched(s);
}

}  // namespace dr
