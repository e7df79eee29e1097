// One large payload of blocks coded by all workers, for index codecs whose blocks do not depend on one another. A
// payload has
//   blocks()                             part    blocks that are coded together, from a multiple of part on
//   put(x, first, last, entries, body)   writes blocks and their entries of the table; returns the bodies' end
//   get(in, size, first, last, x, where) reads them; false, and *where, if they are corrupt
// and begins with a table of entry_size bytes a block.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>

#include "deepreduce/codec.hpp"
#include "primitive/bits.hpp"

namespace dr {

// scratch: for each worker, the bodies of a part. Returns bytes written.
template <class Payload>
size_t encode_parts(const Payload& all, const uint32_t* x, uint8_t* out, std::byte* scratch, const dr_exec& exec) {
  struct shared {
    const Payload& all;
    const uint32_t* x;
    uint8_t* table;
    std::byte* scratch;
    uint64_t scratch_size, begun;
    uint64_t size[256];  // of the bodies of a slot

    uint8_t* slot(size_t i) const { return reinterpret_cast<uint8_t*>(scratch + i * scratch_size); }
  } now{all, x, out, scratch, exec.scratch_size, 0, {}};
  const auto one = [](void* arg, size_t i, size_t) {
    auto& s = *static_cast<shared*>(arg);
    const uint64_t first = s.begun + i * Payload::part, last = std::min(first + Payload::part, s.all.blocks());
    s.size[i] = static_cast<uint64_t>(s.all.put(s.x, first, last, s.table + Payload::entry_size * first, s.slot(i)) -
                                      s.slot(i));
  };
  uint8_t* body = out + Payload::entry_size * all.blocks();
  const uint64_t slots = std::min<uint64_t>(exec.workers, std::size(now.size));
  for (; now.begun < all.blocks(); now.begun += slots * Payload::part) {
    const uint64_t n = std::min(slots, ceil_div(all.blocks() - now.begun, Payload::part));
    exec.parallel(exec.pool, n, one, &now);
    for (uint64_t i = 0; i < n; body += now.size[i++]) std::memcpy(body, now.slot(i), now.size[i]);
  }
  return static_cast<size_t>(body - out);
}

// If the payload is corrupt: false, and the first place at fault, which is the one that a single worker would find.
template <class Payload>
bool decode_parts(const Payload& all, const dr_job& job, uint64_t* where, const dr_exec& exec) {
  struct decoding {
    const Payload& all;
    const dr_job& job;
    uint64_t part;  // blocks; each part adds up the sizes of all bodies before it, so there are few
    std::atomic<uint64_t> first_bad{~uint64_t{0}};

    bool get(uint64_t i, uint64_t* at) const {
      return all.get(job_in<uint8_t>(job), job_in_size(job), i * part, std::min((i + 1) * part, all.blocks()),
                     job_out<uint32_t>(job), at);
    }
  } now{all, job, std::max(Payload::part, ceil_div(all.blocks(), 16 * uint64_t{exec.workers}))};
  const auto one = [](void* arg, size_t i, size_t) {
    auto& s = *static_cast<decoding*>(arg);
    uint64_t at, first = s.first_bad.load(std::memory_order_relaxed);
    if (s.get(i, &at)) return;
    while (i < first && !s.first_bad.compare_exchange_weak(first, i, std::memory_order_relaxed)) {
    }
  };
  exec.parallel(exec.pool, ceil_div(all.blocks(), now.part), one, &now);
  const uint64_t bad = now.first_bad;
  return bad == ~uint64_t{0} || now.get(bad, where);  // again, to find the place
}

}  // namespace dr
