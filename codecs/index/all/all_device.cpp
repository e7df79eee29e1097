// index=all: the host's side of its CUDA operations.
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/index/all/all_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 0;
  need.tell = job.universe;
  need.tell_suffices = 1;
  set_rule(need, fixed_rate(0));
  return true;
}

// room: elements of the support. Without a support one block writes the size.
uint64_t fill(const dr_job& job, uint64_t room, bool lists, tile_job& t) {
  t.universe = static_cast<uint32_t>(job.universe);
  t.extra = static_cast<uint32_t>(std::min<uint64_t>(room, 0xffffffff));
  return std::max<uint64_t>(1, lists && job.universe <= room ? ceil_div(job.universe, all_tile) : 0);
}

dr_status encode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  return launch_jobs<all_encode>(*exec, jobs, n, all_common{}, [&](size_t i, tile_job& t) {
    const dr_job& job = *dr_job_at(jobs, i);
    return fill(job, job.tell_capacity, job.tell != nullptr, t);
  });
}

dr_status decode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  return launch_jobs<all_decode>(*exec, jobs, n, all_common{}, [&](size_t i, tile_job& t) {
    const dr_job& job = *dr_job_at(jobs, i);
    return fill(job, job.out_capacity / 4, true, t);
  });
}

}  // namespace

constinit const dr_ops all_cuda = cuda_ops<need>(encode, decode, 1, 1);

}  // namespace dr
