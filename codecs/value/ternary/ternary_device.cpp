// value=ternary: the host's side of its CUDA operations.
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/ternary/ternary_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

uint64_t values_max(const dr_job& job) { return job.count_max * job.width; }
uint64_t encode_scratch(const dr_job& job) { return ternary_scratch::size(values_max(job)); }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (ternary_codec.cpu->need(&p, &job, 1, &need)) return false;
  need.encode_scratch = encode_scratch(job);
  dr_size_rule rule = fixed_rate(0);
  rule.bucket = ternary_group;
  rule.row_values = job.width;
  rule.bucket_bytes = 1;
  rule.beside = 4;  // the scale
  set_rule(need, rule);
  return true;
}

// values: of a block of lanes
template <template <class> class K, class Fill>
dr_status launch(const dr_exec& exec, const ternary_common& common, const dr_job* jobs, size_t n, uint32_t values,
                 Fill&& fill) {
  uint64_t at = 0;  // 64 bytes each
  return launch_jobs<K>(exec, jobs, n, common, [&](size_t i, tile_job& t) {
    const dr_job& job = *dr_job_at(jobs, i);
    t.width = job.width;
    t.extra = static_cast<uint32_t>(at);
    at += ceil_div(encode_scratch(job), 64);
    fill(job, t);
    return std::max<uint64_t>(1, ceil_div(values_max(job), values));
  });
}

dr_status encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  const ternary_common common{static_cast<std::byte*>(exec->scratch), param_value(*p, 0).number,
                              dr_job_at(jobs, 0)->dtype, exec->reserved};
  const auto fill = [](const dr_job& job, tile_job& t) { t.key = job.private_key; };
  dr_status s = launch<ternary_survey>(*exec, common, jobs, n, ternary_sum_values, fill);
  if (s == DR_OK && common.clip > 0) s = launch<ternary_measure>(*exec, common, jobs, n, ternary_sum_values, fill);
  return s ? s : launch<ternary_encode>(*exec, common, jobs, n, ternary_values, fill);
}

dr_status decode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  const ternary_common common{nullptr, 0, dr_job_at(jobs, 0)->dtype, 0};
  return launch<ternary_decode>(*exec, common, jobs, n, ternary_values,
                                [](const dr_job& job, tile_job& t) { t.in_size = job.in_size; });
}

}  // namespace

constinit const dr_ops ternary_cuda = cuda_ops<need>(encode, decode, 3, 1);

}  // namespace dr
