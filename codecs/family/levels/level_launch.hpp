// The host's side of CUDA operations whose kernels work on blocks of levels.
#pragma once

#include <algorithm>

#include "codecs/family/levels/level_code.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

inline uint64_t values_max(const dr_job& job) { return job.count_max * job.width; }
inline uint64_t level_tiles(const dr_job& job) { return std::max<uint64_t>(1, level_blocks(values_max(job))); }

// Launches K over jobs, each with its part of the scratch, whose place is in units of 64 bytes. fill(job, t) returns the
// job's number of tiles.
template <template <class> class K, class Common, class Fill>
dr_status launch_levels(const dr_exec& exec, const Common& common, const dr_job* jobs, size_t n,
                        uint64_t (*scratch)(const dr_job&), Fill&& fill) {
  uint64_t at = 0;
  return launch_jobs<K>(exec, jobs, n, common, [&](size_t i, tile_job& t) {
    const dr_job& job = *dr_job_at(jobs, i);
    t.width = job.width;
    t.extra = static_cast<uint32_t>(at);
    at += ceil_div(scratch(job), 64);
    return fill(job, t);
  });
}

// Decodes: one block of lanes opens a payload, then one each decodes a block of its levels.
template <template <class> class Open, template <class> class Decode, class Common>
dr_status launch_level_decode(const dr_exec& exec, const Common& common, const dr_job* jobs, size_t n,
                              uint64_t (*scratch)(const dr_job&)) {
  for (size_t i = 0; i < n; ++i)
    if (!dr_job_at(jobs, i)->in_size) return DR_E_UNSUPPORTED;  // a size depends on data, so it is in device memory
  const dr_status s = launch_levels<Open>(exec, common, jobs, n, scratch, [](const dr_job& job, tile_job& t) {
    t.in_size = job.in_size;
    return uint64_t{1};
  });
  if (s) return s;
  return launch_levels<Decode>(exec, common, jobs, n, scratch, [](const dr_job& job, tile_job& t) {
    t.in_size = job.in_size;
    return level_tiles(job);
  });
}

}  // namespace dr
