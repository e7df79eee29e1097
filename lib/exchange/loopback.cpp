#include "exchange/loopback.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "exchange/rank_exchange.hpp"
#include "primitive/rng.hpp"

namespace dr {
namespace {

// (There is a list per pair of ranks.)
constexpr uint32_t loopback_ranks_max = 4096;

// The time between two looks at a device.
constexpr uint64_t poll_ns = 1000;

// Turns that a message may add: its own, those of two ranks, and one more for the sender.
constexpr size_t turns_of_one = 4;

// Before anything changes, so that what follows cannot fail.
template <class T>
void make_room(std::vector<T>& list, size_t more) {
  if (list.capacity() - list.size() < more) list.reserve(std::max(list.size() + more, 2 * list.size()));
}

// No exception passes the four functions of a transport.
template <class F>
dr_status answered(F&& f) noexcept {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return DR_E_MEMORY;
  }
}

}  // namespace

dr_status loopback::create(const dr_loopback_options& o, dr_error& error) {
  if (o.ranks == 0 || o.ranks > loopback_ranks_max)
    return fail(error, DR_E_ARGUMENT, "loopback: %u ranks, not in 1 … %u", o.ranks, loopback_ranks_max);
  if (o.flags & ~DR_LOOPBACK_ALIKE)
    return fail(error, DR_E_UNSUPPORTED, "loopback: flags 0x%x, only DR_LOOPBACK_ALIKE is known", o.flags);
  if (!(o.bytes_per_second >= 0))
    return fail(error, DR_E_ARGUMENT, "loopback: bytes_per_second is %g", o.bytes_per_second);
  options_ = o;
  const uint32_t present = alike() ? 1 : o.ranks;
  ranks_.resize(present);
  for (uint32_t i = 0; i < present; ++i) ranks_[i].of = this, ranks_[i].number = i;
  waiting_.resize(size_t{present} * o.ranks);
  return DR_OK;
}

dr_transport loopback::transport(uint32_t rank) {
  dr_transport t{};
  t.struct_size = sizeof t;
  t.user = &ranks_[rank];
  t.ranks = options_.ranks;
  t.rank = rank;
  t.send = [](void* user, uint32_t peer, uint32_t tag, const void* bytes, size_t size, uint64_t* request) {
    const port& p = *static_cast<port*>(user);
    return answered([&] { return p.of->send(p.number, peer, tag, bytes, size, *request); });
  };
  t.recv = [](void* user, uint32_t peer, uint32_t tag, void* bytes, size_t capacity, uint64_t* request) {
    const port& p = *static_cast<port*>(user);
    return answered([&] { return p.of->recv(p.number, peer, tag, bytes, capacity, *request); });
  };
  t.test = [](void* user, uint64_t request, size_t* size) {
    const port& p = *static_cast<port*>(user);
    return p.of->test(p.number, request, *size);
  };
  t.cancel = [](void* user, uint64_t request) {
    return answered([&] { return static_cast<port*>(user)->of->cancel(request); });
  };
  t.now = [](void* user) { return static_cast<port*>(user)->clock; };
  t.spend = [](void* user, uint32_t step, uint64_t elements, uint64_t bytes) {
    port& p = *static_cast<port*>(user);
    const dr_loopback_options& o = p.of->options_;
    if (o.cost) p.clock += o.cost(o.cost_user, p.number, step, elements, bytes);
  };
  return t;
}

uint32_t loopback::new_request() {
  if (free_.empty()) {
    make_room(requests_, 1);
    free_.reserve(requests_.capacity());
    requests_.emplace_back();
    return static_cast<uint32_t>(requests_.size() - 1);
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  return number;
}

void loopback::free(uint32_t number) { free_.push_back(number); }

void loopback::push(const turn& t) {
  turns_.push_back(t);
  turns_.back().order = mix64(options_.seed + ++turn_count_);
  std::push_heap(turns_.begin(), turns_.end(), std::greater<>());
}

void loopback::wake(uint32_t rank, uint64_t time) {
  if (time >= ranks_[rank].wake_at) return;
  ranks_[rank].wake_at = time;
  push({time, 0, rank, nobody});
}

// The tag of the same message on the rank so many places before. Tag 0 is a verdict's. Where ranges have owners,
// tags count ranges, and range k · ranks + o is rank o's (program.cpp).
uint32_t loopback::turned(uint32_t tag, uint32_t places) const {
  const uint32_t n = options_.ranks, of_program = tag % model_->tags;
  if (!of_program || !model_->owned) return tag;
  const uint32_t owner = (of_program - 1) % n;
  return tag - owner + (owner + n - places) % n;
}

// With ALIKE only a running exchange can send: its program defines which ranks the peers stand for.
bool loopback::reaches(uint32_t peer, uint32_t own) const {
  return peer != own && peer < options_.ranks && (!alike() || model_ != nullptr);
}

dr_status loopback::send(uint32_t from, uint32_t to, uint32_t tag, const void* bytes, size_t size, uint64_t& number) {
  const uint32_t sender = from;
  if (!reaches(to, from)) return DR_E_ARGUMENT;
  if (alike()) {  // what another sends to this rank instead
    tag = turned(tag, to);
    from = options_.ranks - to, to = 0;
  }
  const message_fate fate = faults ? faults->fate_of(from, to, tag, size) : message_fate{};
  make_room(waiting(from, to), size_t{1} + fate.doubled);
  make_room(turns_, turns_of_one + fate.doubled);
  port& out = ranks_[sender];
  const double rate = options_.bytes_per_second;
  const uint64_t begins = std::max(out.clock, out.out_free);
  const uint64_t duration =
      options_.takes ? std::min<uint64_t>(options_.takes(options_.takes_user, sender, begins, size), 1ull << 60)
      : rate > 0     ? static_cast<uint64_t>(std::min(1e9 * static_cast<double>(size) / rate, 0x1p60))
                     : 0;
  out.out_free = begins + duration;
  for (int copy = 0; copy <= fate.doubled; ++copy) {
    const uint32_t n = new_request();
    request& r = requests_[n];
    r.rank = sender, r.from = from, r.to = to, r.tag = tag, r.size = size, r.sends = true, r.status = DR_OK;
    r.bytes = static_cast<std::byte*>(const_cast<void*>(bytes));  // (sent from, never written)
    r.duration = duration, r.over = UINT64_MAX, r.partner = nobody, r.landed = r.gone = false, r.fate = fate;
    if (!copy) {
      number = n;
    } else {  // its request has ended
      r.rank = nobody;
      r.copy.assign(r.bytes, r.bytes ? r.bytes + size : r.bytes);
      r.bytes = r.copy.data();
    }
    if (fate.dropped) {
      r.over = out.out_free;
      continue;
    }
    waiting(from, to).push_back(n);
    push({begins + options_.latency_ns + fate.delay_ns, 0, nobody, n});
    match(from, to);  // one by one: an open receive gets the first, whose request is tested
  }
  return DR_OK;
}

dr_status loopback::recv(uint32_t to, uint32_t from, uint32_t tag, void* bytes, size_t room, uint64_t& number) {
  if (from == to || from >= options_.ranks) return DR_E_ARGUMENT;
  make_room(waiting(from, to), 1);
  make_room(turns_, turns_of_one);
  const uint32_t n = new_request();
  request& r = requests_[n];
  r.rank = r.to = to, r.from = from, r.tag = tag, r.size = room, r.sends = false, r.status = DR_OK;
  r.partner = nobody;
  r.bytes = static_cast<std::byte*>(bytes);
  r.posted = ranks_[to].clock;
  r.over = UINT64_MAX;
  number = n;
  waiting(from, to).push_back(n);
  match(from, to);
  return DR_OK;
}

// Sends meet receives of equal tags, the oldest first.
void loopback::match(uint32_t from, uint32_t to) {
  std::vector<uint32_t>& list = waiting(from, to);
  if (list.size() < 2) return;
  const uint32_t last = list.back();  // only the newest can have found a partner
  for (size_t i = 0; i + 1 < list.size(); ++i) {
    const request &a = requests_[list[i]], &b = requests_[last];
    if (a.sends == b.sends || a.tag != b.tag) continue;
    const uint32_t message = a.sends ? list[i] : last, receive = a.sends ? last : list[i];
    requests_[message].partner = receive;
    requests_[receive].partner = message;
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
    list.pop_back();
    if (requests_[message].landed) deliver(message);
    return;
  }
}

// The first byte arrives; the receiver's port reads one message after the other.
void loopback::arrive(uint32_t message, uint64_t time) {
  request& r = requests_[message];
  if (r.gone && r.rank == nobody) return free(message);
  port& in = ranks_[r.to];
  in.in_free = std::max(in.in_free, time) + r.duration;
  r.posted = in.in_free;
  r.landed = true;
  if (r.gone) {
    r.over = r.posted;
    wake(r.rank, r.over);
  } else if (r.partner != nobody) {
    deliver(message);
  }
}

void loopback::deliver(uint32_t message) {
  request &from = requests_[message], &to = requests_[from.partner];
  const size_t size = std::min<uint64_t>(from.size, from.fate.cut_to);
  from.over = from.posted;
  to.over = std::max(from.posted, to.posted);
  wake(to.rank, to.over);
  if (size > to.size) {
    to.status = DR_E_CAPACITY;
  } else {
    if (to.bytes && from.bytes && size) std::memcpy(to.bytes, from.bytes, size);
    if (to.bytes && from.fate.flipped_bit < 8 * size)
      to.bytes[from.fate.flipped_bit / 8] ^= std::byte(1 << from.fate.flipped_bit % 8);
    to.size = size;
  }
  if (from.rank == nobody)
    free(message);
  else
    wake(from.rank, from.over);
}

dr_status loopback::test(uint32_t rank, uint64_t number, size_t& size) {
  request& r = requests_[number];
  if (r.over > ranks_[rank].clock) {
    ranks_[rank].next = std::min(ranks_[rank].next, r.over);
    return DR_PENDING;
  }
  size = r.size;
  const dr_status status = r.status;
  free(static_cast<uint32_t>(number));
  return status;
}

dr_status loopback::cancel(uint64_t number) {
  const uint32_t n = static_cast<uint32_t>(number);
  request& r = requests_[n];
  std::vector<uint32_t>& list = waiting(r.from, r.to);
  if (r.over != UINT64_MAX) {  // it had ended before the cancel
    free(n);
    return DR_OK;
  }
  if (r.partner == nobody)
    std::erase(list, n);
  else if (r.sends)
    list.push_back(r.partner), requests_[r.partner].partner = nobody;
  else
    requests_[r.partner].gone = true, requests_[r.partner].partner = nobody;
  if (!r.sends || r.landed) {
    free(n);
  } else {  // until it lands
    r.gone = true;
    r.rank = nobody;
  }
  return DR_OK;
}

void loopback::run(std::span<exchange* const> exchanges, std::span<dr_status> statuses) {
  size_t left = 0;
  make_room(turns_, exchanges.size());
  struct running {
    const program*& model;
    ~running() { model = nullptr; }
  } const running{model_};
  if (alike() && exchanges[0]) model_ = &exchanges[0]->steps();
  for (uint32_t i = 0; i < exchanges.size(); ++i) {
    if (!exchanges[i] || !exchanges[i]->busy())
      continue;  // (the outcome of one that ended in a run that ran out of memory is still unreported)
    ranks_[i].ended = DR_PENDING;
    ++left;
    ranks_[i].wake_at = UINT64_MAX;
    wake(i, ranks_[i].clock);
  }
  while (left) {
    make_room(turns_, turns_of_one);
    std::pop_heap(turns_.begin(), turns_.end(), std::greater<>());
    const turn t = turns_.back();
    turns_.pop_back();
    if (t.message != nobody) {
      arrive(t.message, t.time);
      continue;
    }
    port& p = ranks_[t.rank];
    if (t.time != p.wake_at || p.ended != DR_PENDING) continue;
    p.wake_at = UINT64_MAX;
    if (t.time < p.clock) {  // it is busy, or sleeps: until then messages come
      wake(t.rank, p.clock);
      continue;
    }
    p.clock = t.time;
    if (faults && !faults->lives(t.rank, p.clock)) {
      p.ended = DR_E_PEER;
      --left;
      continue;
    }
    if (p.clock > t.time) {
      wake(t.rank, p.clock);
      continue;
    }
    p.next = UINT64_MAX;
    exchange& x = *exchanges[t.rank];
    p.ended = x.advance();
    if (p.ended != DR_PENDING)
      --left;
    else
      wake(t.rank, x.waits() ? std::min(p.next, x.gives_up_at()) : p.clock + (x.polls() ? poll_ns : 0));
  }
  for (uint32_t i = 0; i < exchanges.size(); ++i) statuses[i] = std::exchange(ranks_[i].ended, DR_OK);
}

}  // namespace dr
