// value=half: the host's side of its CUDA operations.
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/half/half_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (half_codec.cpu->need(&p, &job, 1, &need)) return false;
  set_rule(need, fixed_rate(uint64_t{16} * job.width));
  return true;
}

template <template <class> class K>
dr_status convert(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n, bool decodes) {
  const half_common common{dr_job_at(jobs, 0)->dtype, static_cast<uint32_t>(p->fields[0])};
  return launch_jobs<K>(*exec, jobs, n, common, [&](size_t i, tile_job& t) {
    const dr_job& job = *dr_job_at(jobs, i);
    t.width = job.width;
    if (decodes) t.in_size = job.in_size;
    return std::max<uint64_t>(1, ceil_div(job.count_max * job.width, half_values));
  });
}
dr_status encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  return convert<half_encode>(exec, p, jobs, n, false);
}
dr_status decode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  return convert<half_decode>(exec, p, jobs, n, true);
}

}  // namespace

constinit const dr_ops half_cuda = cuda_ops<need>(encode, decode, 1, 1);

}  // namespace dr
