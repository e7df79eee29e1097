// Runs a stream's codecs over the rows that share them, one call per codec.
#pragma once

#include <cstdint>

#include "core/arena.hpp"
#include "core/error.hpp"
#include "core/pool.hpp"
#include "core/stage_list.hpp"

namespace dr {

// The scratch that suffices for all codecs of a call, and the workers.
struct stage_runner {
  void* scratch = nullptr;
  uint64_t scratch_size = 0;  // a worker
  pool* workers = nullptr;

  dr_exec exec() const {
    const auto parallel = [](void* p, size_t n, void (*f)(void*, size_t, size_t), void* arg) {
      static_cast<pool*>(p)->run(n, f, arg);
    };
    return {sizeof(dr_exec), scratch, scratch_size, nullptr, workers->workers(), 0, workers, parallel};
  }
};

// A stream of a row between its codecs: two buffers alternate if bytes stages follow.
struct stream_slot {
  list_need need;
  uint8_t* buffer[2] = {nullptr, nullptr};
  uint64_t sizes[2] = {0, 0};
  const uint8_t* data = nullptr;  // the payload
  uint64_t size = 0;

  // Memory to encode, or to decode the bytes stages, by `need`; the caller has the memory for the last output of decode.
  void lay_out(arena& memory, const stage_list& list, bool decodes) {
    const uint32_t buffers = decodes ? list.count - (list.count > 0) : list.count;
    for (uint32_t b = 0; b < 2; ++b) buffer[b] = b < buffers ? memory.allocate<uint8_t>(need.largest()) : nullptr;
    data = nullptr;
    size = 0;
  }
};

// The jobs of one call: of the first codec, and n more for the bytes stages after it.
struct job_list {
  dr_job* jobs = nullptr;
  dr_job* bytes = nullptr;
  stream_slot** slots = nullptr;
  size_t n = 0;

  static job_list lay_out(arena& memory, size_t n) {
    return {memory.allocate<dr_job>(n), memory.allocate<dr_job>(n), memory.allocate<stream_slot*>(n), 0};
  }
  void add(const dr_job& job, stream_slot& slot) {
    jobs[n] = job;
    slots[n++] = &slot;
  }
};

// A codec that broke its contract: it returned a status, or wrote another number of bytes than its `need` says.
struct broken_contract {
  const dr_codec* codec = nullptr;
  dr_status status = DR_OK;
  uint64_t wrote = 0, need = 0;
  bool fixed = false;  // exactly `need`
};
// doing: "encoding" or "decoding"
dr_status fail(dr_error& error, const broken_contract& broken, const char* doing);

// Encodes: jobs[i] describes the elements of a row (in, count, tell, fault, keys); slots[i]->data is then the payload.
// Faults of the data are in the jobs; INTERNAL, and `broken`, if a codec breaks its contract.
dr_status encode_chain(const stage_list& list, const stage_runner& run, const job_list& rows, broken_contract& broken);

// Decodes slots[i]->data to jobs[i].out. A size other than out_capacity bytes is a CORRUPT fault of the job; INTERNAL as
// above.
dr_status decode_chain(const stage_list& list, const stage_runner& run, const job_list& rows, broken_contract& broken);

}  // namespace dr
