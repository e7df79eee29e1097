// The jobs of a call as kernels see them: 80 bytes a job, so that 400 fit into a kernel argument, without a copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deepreduce/codec.h"
#include "primitive/atomics.hpp"
#include "primitive/block.hpp"

namespace dr {

// Decode: a section of a frame, in device memory.
struct frame_section {
  uint64_t size;
  const uint8_t* at;  // in memory that is aligned to 16 bytes and ends with a word; of a value section aligned to 4
};

struct tile_job {
  const void* in;  // NULL: in_size is the size of a frame_section, which has the address
  void* out;
  const uint64_t* count;
  union {
    const uint64_t* in_size;  // decode
    uint64_t key;             // encode: private_key, or its address (keys_at)
  };
  uint64_t* out_size;
  void* tell;
  uint64_t* tell_count;
  dr_fault* fault;
  union {
    uint32_t universe;  // index
    uint32_t width;     // value
  };
  uint32_t count_max;
  uint32_t first_tile;  // of the launch
  uint32_t extra;       // a codec's own: an offset in its scratch, a capacity
};
static_assert(sizeof(tile_job) == 80);

// A launch's arguments have one of two sizes. (The CPU does not gain by it, and each is compiled.)
inline constexpr size_t jobs_many = 400;
#if defined(DR_EMULATED_ONLY)
inline constexpr size_t jobs_few = jobs_many;
#else
inline constexpr size_t jobs_few = 40;
#endif

// A flag of dr_exec.reserved: the keys of its jobs are addresses of keys in device memory, for a step that only the
// device knows. Kernels that draw ask drawn_key.
inline constexpr uint32_t keys_at = 1;
DR_HD inline uint64_t drawn_key(const tile_job& j, uint32_t flags) {
  return flags & keys_at ? *reinterpret_cast<const uint64_t*>(j.key) : j.key;
}

DR_HD inline const uint8_t* input_of(const tile_job& j) {
  const void* const in = j.in ? j.in : reinterpret_cast<const frame_section*>(j.in_size)->at;
  return static_cast<const uint8_t*>(in);
}

// Arguments of a kernel over jobs. Common: the shared part, at most 512 bytes.
template <class Common, size_t N>
struct tile_args {
  static_assert(sizeof(Common) <= 512);
  Common common;
  uint32_t jobs, tiles;
  tile_job job[N];
};

// For kernels whose jobs share nothing.
struct no_common {};

// The job that a tile belongs to: the last whose first tile is not after it.
template <class Args>
DR_HD const auto& job_of_tile(const Args& a, uint32_t tile) {
  uint32_t low = 0, high = a.jobs;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (a.job[middle].first_tile <= tile)
      low = middle;
    else
      high = middle;
  }
  return a.job[low];
}

// Elements of a job. A count in device memory is never trusted beyond its bound.
DR_HD inline uint64_t bounded_count(const tile_job& j) {
  const uint64_t count = j.count ? *j.count : j.count_max;
  return count < j.count_max ? count : j.count_max;
}
// The same, or 0 if the job has a fault. (A kernel that runs beside another one, which may raise it, lets one lane ask.)
DR_HD inline uint64_t live_count(const tile_job& j) {
  const dr_status code = j.fault->code;  // both loads are issued at once
  const uint64_t count = bounded_count(j);
  return code != DR_OK ? 0 : count;
}

// Sets the fault unless there is one. `message` stays NULL: device memory has no texts.
DR_HD inline void raise(dr_fault* fault, dr_status code, uint32_t stream, uint64_t where, uint64_t what) {
  if (atomic_cas(reinterpret_cast<uint32_t*>(&fault->code), 0u, static_cast<uint32_t>(code)) != 0) return;
  fault->stream = stream;
  fault->where = where;
  fault->what = what;
}

// On the host: the part of a job that kernels need.
inline tile_job make_tile_job(const dr_job& j) {
  tile_job t{};
  t.in = j.in;
  t.out = j.out;
  t.count = j.count;
  t.out_size = j.out_size;
  t.tell = j.tell;
  t.tell_count = j.tell_count;
  t.fault = j.fault;
  t.count_max = static_cast<uint32_t>(j.count_max);
  return t;
}

// Launches K<tile_args<Common, N>> over jobs, 400 at a time. fill(i, job) completes job i and returns its tiles.
template <template <class> class K, class Common, class Fill>
dr_status launch_jobs(const dr_exec& exec, const dr_job* jobs, size_t n, const Common& common, Fill&& fill) {
  const auto some = [&]<size_t N>(size_t begin, size_t end, std::integral_constant<size_t, N>) -> dr_status {
    tile_args<Common, N> args;
    args.common = common;
    args.jobs = static_cast<uint32_t>(end - begin);
    uint64_t tiles = 0;
    for (size_t i = begin; i < end; ++i) {
      tile_job& t = args.job[i - begin];
      t = make_tile_job(*dr_job_at(jobs, i));
      t.first_tile = static_cast<uint32_t>(tiles);
      tiles += fill(i, t);
      if (tiles > 0x7fffffff) return DR_E_UNSUPPORTED;
    }
    args.tiles = static_cast<uint32_t>(tiles);
    return launch<K<tile_args<Common, N>>>(exec, tiles, args);
  };
  for (size_t begin = 0; begin < n; begin += jobs_many) {
    const size_t end = n - begin < jobs_many ? n : begin + jobs_many;
    const dr_status s = n <= jobs_few ? some(begin, end, std::integral_constant<size_t, jobs_few>{})
                                      : some(begin, end, std::integral_constant<size_t, jobs_many>{});
    if (s) return s;
  }
  return DR_OK;
}

}  // namespace dr
