// order=bitpack: the host's side of its CUDA operations.
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/order/bitpack/bitpack_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = ceil_div(job.count_max * ceil_log2(job.count_max), 8);
  set_rule(need, {sizeof(dr_size_rule), 0, 0, 8, 0, 0, 1, 0, 0, 0});  // ceil_log2 of the count, per element
  return true;
}

dr_status encode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  return launch_jobs<bitpack_encode>(*exec, jobs, n, bitpack_common{}, [&](size_t, tile_job& t) {
    const uint64_t words = ceil_div(uint64_t{t.count_max} * ceil_log2(t.count_max), 32);
    return std::max<uint64_t>(1, ceil_div(words, bitpack_tile));
  });
}

dr_status decode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  return launch_jobs<bitpack_decode>(*exec, jobs, n, bitpack_common{}, [&](size_t i, tile_job& t) {
    t.count_max = static_cast<uint32_t>(std::min(dr_job_at(jobs, i)->count_max, dr_job_at(jobs, i)->out_capacity / 4));
    return std::max<uint64_t>(1, ceil_div(t.count_max, bitpack_tile));
  });
}

}  // namespace

constinit const dr_ops bitpack_cuda = cuda_ops<need>(encode, decode, 1, 1);

}  // namespace dr
