// value=raw: the host's side of its CUDA operations.
#include "codecs/builtin.hpp"
#include "codecs/value/raw/value_raw_tile.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = job.count_max * job.width * value_size(job.dtype);
  set_rule(need, fixed_rate(8ull * job.width * value_size(job.dtype)));
  return true;
}

dr_status copy(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  const value_raw_common common{value_size(dr_job_at(jobs, 0)->dtype)};
  return launch_jobs<value_raw_copy>(*exec, jobs, n, common, [&](size_t i, tile_job& t) {
    t.width = dr_job_at(jobs, i)->width;
    return ceil_div(dr_job_at(jobs, i)->count_max * dr_job_at(jobs, i)->width * common.value_size, value_raw_tile);
  });
}

}  // namespace

constinit const dr_ops value_raw_cuda = cuda_ops<need>(copy, copy, 1, 1);

}  // namespace dr
