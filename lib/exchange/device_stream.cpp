#include "exchange/device_stream.hpp"

#include <bit>
#include <cinttypes>
#include <mutex>
#include <new>
#include <vector>

namespace dr {

device_stream::~device_stream() {
  device& at = *where_.where;
  if (end_) {
    if (memory_) (void)at.record(end_, where_.stream);  // copies of frames may be behind the last mark
    (void)at.wait_event(end_);
    at.drop_event(end_);
  }
  if (probe_) at.drop_event(probe_);
  if (memory_) at.release(memory_);
  if (host_) at.release_host(host_);
}

namespace {

struct left_memory {
  device* where;
  void* end;  // nullptr: it is never done
  std::byte *memory, *host;
};
struct left_memories {
  std::mutex turn;
  std::vector<left_memory> list;
};
left_memories& left() {
  static auto& all = *new left_memories;  // (to the end of the process: its memory is not lost)
  return all;
}

void release_left() {
  const std::lock_guard<std::mutex> mine(left().turn);
  std::erase_if(left().list, [](const left_memory& l) {
    if (!l.end || !l.where->is_done(l.end)) return false;
    l.where->drop_event(l.end);
    l.where->release(l.memory);
    if (l.host) l.where->release_host(l.host);
    return true;
  });
}

}  // namespace

void device_stream::leave(bool marked) {
  if (!marked && end_) where_.where->drop_event(end_);
  try {
    const std::lock_guard<std::mutex> mine(left().turn);
    left().list.push_back({where_.where, marked ? end_ : nullptr, memory_, host_});
  } catch (const std::bad_alloc&) {  // nobody releases it
  }
  end_ = nullptr;
  memory_ = host_ = nullptr;
}

dr_status device_stream::allocate(uint64_t size, uint64_t cleared, uint64_t host_size) {
  release_left();
  device& at = *where_.where;
  end_ = at.make_event();
  probe_ = at.make_event();
  memory_ = static_cast<std::byte*>(at.allocate(size));
  host_ = static_cast<std::byte*>(at.allocate_host(host_size));
  if (!end_ || !probe_ || !memory_ || !host_)
    return fail(c_.error, DR_E_MEMORY,
                "exchange: cannot allocate %" PRIu64 " bytes on the device, %" PRIu64 " of the host", size, host_size);
  if (const dr_status s = checked(at.clear(where_.stream, memory_, cleared))) return s;
  return checked(at.wait(where_.stream));
}

dr_status device_stream::copy(void* to, const void* from, uint64_t size) {
  return size ? checked(where_.where->copy(where_.stream, to, from, size)) : dr_status{DR_OK};
}

dr_status device_stream::clear(void* to, uint64_t size) {
  return size ? checked(where_.where->clear(where_.stream, to, size)) : dr_status{DR_OK};
}

dr_status device_stream::mark() {
  polls_ = 0;
  return checked(where_.where->record(end_, where_.stream));
}

dr_status device_stream::poll() {
  // Of a device that has failed no event is ever done; recording another reports it. Seldom, because it enqueues.
  constexpr uint64_t first_probe = 1024;
  if (where_.where->is_done(end_)) return DR_OK;
  if (++polls_ >= first_probe && std::has_single_bit(polls_))
    if (const dr_status s = checked(where_.where->record(probe_, where_.stream))) return s;
  return DR_PENDING;
}

dr_status device_stream::copy_now(void* to, const void* from, uint64_t size) {
  if (const dr_status s = copy(to, from, size)) return s;
  return checked(where_.where->wait(where_.stream));
}

}  // namespace dr
