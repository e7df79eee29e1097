// index=raw: the host's side of its CUDA operations.
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/index/raw/index_raw_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 4 * job.count_max;
  need.tell = job.count_max;
  set_rule(need, fixed_rate(32));
  return true;
}

uint64_t tiles(const tile_job& t) { return std::max<uint64_t>(1, ceil_div(t.count_max, index_raw_tile)); }

dr_status encode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  return launch_jobs<index_raw_encode>(*exec, jobs, n, index_raw_common{},
                                       [&](size_t, tile_job& t) { return tiles(t); });
}

dr_status decode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  return launch_jobs<index_raw_decode>(*exec, jobs, n, index_raw_common{}, [&](size_t i, tile_job& t) {
    t.universe = static_cast<uint32_t>(dr_job_at(jobs, i)->universe);
    t.count_max = static_cast<uint32_t>(std::min(dr_job_at(jobs, i)->count_max, dr_job_at(jobs, i)->out_capacity / 4));
    return tiles(t);
  });
}

}  // namespace

constinit const dr_ops index_raw_cuda = cuda_ops<need>(encode, decode, 1, 1);

}  // namespace dr
