// Launches kernels over their own descriptors (in place of dr_job), with as many as fit in an argument per launch.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cuda/device.hpp"

namespace dr {

// tiles_of(job): its number of tiles. set(args): sets the arguments that all jobs share.
template <template <size_t> class K, class Job, class Tiles, class Set>
dr_status launch_own(device_queue& queue, std::vector<Job>& jobs, Tiles&& tiles_of, Set&& set) {
  const dr_exec exec = queue.exec();
  const auto some = [&]<size_t N>(size_t begin, size_t end, std::integral_constant<size_t, N>) -> dr_status {
    typename K<N>::args args;
    set(args);
    uint64_t tiles = 0;
    for (size_t i = begin; i < end; ++i) {
      jobs[i].first_tile = static_cast<uint32_t>(tiles);
      tiles += tiles_of(jobs[i]);
      args.job[i - begin] = jobs[i];
    }
    args.jobs = static_cast<uint32_t>(end - begin);
    args.tiles = static_cast<uint32_t>(tiles);
    return launch<K<N>>(exec, tiles, args);
  };
  for (size_t begin = 0; begin < jobs.size(); begin += jobs_many) {
    const size_t end = std::min(jobs.size(), begin + jobs_many);
    const dr_status s = jobs.size() <= jobs_few ? some(begin, end, std::integral_constant<size_t, jobs_few>{})
                                                : some(begin, end, std::integral_constant<size_t, jobs_many>{});
    if (s) return s;
  }
  return DR_OK;
}
template <template <size_t> class K, class Job, class Tiles>
dr_status launch_own(device_queue& queue, std::vector<Job>& jobs, Tiles&& tiles_of) {
  return launch_own<K>(queue, jobs, tiles_of, [](auto&) {});
}

}  // namespace dr
