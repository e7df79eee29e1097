// value=sign: the host's side of its CUDA operations.
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/sign/sign_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

uint64_t values_max(const dr_job& job) { return job.count_max * job.width; }
uint64_t encode_scratch(const dr_params& p, const dr_job& job) {
  return p.fields[0] ? sign_scratch::size(values_max(job)) : 0;
}

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (sign_codec.cpu->need(&p, &job, 1, &need)) return false;
  need.encode_scratch = encode_scratch(p, job);
  dr_size_rule rule = fixed_rate(job.width);
  rule.beside = static_cast<uint32_t>(4 * p.fields[0]);
  set_rule(need, rule);
  return true;
}

template <template <class> class K, class Fill>
dr_status launch(const dr_exec& exec, const dr_params& p, const dr_job* jobs, size_t n, Fill&& fill) {
  const sign_common common{static_cast<std::byte*>(exec.scratch), dr_job_at(jobs, 0)->dtype,
                           static_cast<uint32_t>(p.fields[0]), static_cast<uint32_t>(p.fields[1])};
  return launch_jobs<K>(exec, jobs, n, common, [&](size_t i, tile_job& t) {
    const dr_job& job = *dr_job_at(jobs, i);
    t.width = job.width;
    fill(job, t);
    return std::max<uint64_t>(1, ceil_div(values_max(job), sign_values));
  });
}

dr_status encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  uint64_t at = 0;  // 64 bytes each
  return launch<sign_encode>(*exec, *p, jobs, n, [&](const dr_job& job, tile_job& t) {
    t.extra = static_cast<uint32_t>(at);
    at += ceil_div(encode_scratch(*p, job), 64);
  });
}
dr_status decode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  return launch<sign_decode>(*exec, *p, jobs, n, [](const dr_job& job, tile_job& t) { t.in_size = job.in_size; });
}

}  // namespace

constinit const dr_ops sign_cuda = cuda_ops<need>(encode, decode, 1, 1);

}  // namespace dr
