// value=log_quant: the host's side of its CUDA operations.
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/log_quant/log_quant_decode_tile.hpp"
#include "codecs/value/log_quant/log_quant_encode_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

uint64_t values_max(const dr_job& job) { return job.count_max * job.width; }
uint64_t encode_scratch(const dr_job& job) { return log_quant_scratch::size(values_max(job)); }
uint64_t decode_scratch(const dr_job& job) { return log_quant_source::size_of(values_max(job)); }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (log_quant_codec.cpu->need(&p, &job, 1, &need)) return false;
  need.encode_scratch = encode_scratch(job);
  need.decode_scratch = decode_scratch(job);
  return true;
}

template <template <class> class K, class Fill>
dr_status launch(const dr_exec& exec, const log_quant_common& common, const dr_job* jobs, size_t n,
                 uint64_t (*scratch)(const dr_job&), Fill&& fill) {
  uint64_t at = 0;  // 64 bytes each
  return launch_jobs<K>(exec, jobs, n, common, [&](size_t i, tile_job& t) {
    const dr_job& job = *dr_job_at(jobs, i);
    t.width = job.width;
    t.extra = static_cast<uint32_t>(at);
    at += ceil_div(scratch(job), 64);
    return fill(job, t);
  });
}

uint64_t tiles(const dr_job& job) { return std::max<uint64_t>(1, level_blocks(values_max(job))); }

dr_status encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  const log_quant_common common{static_cast<std::byte*>(exec->scratch), dr_job_at(jobs, 0)->dtype,
                                static_cast<uint32_t>(param_value(*p, 0).number),
                                static_cast<uint32_t>(param_value(*p, 1).number)};
  const auto fill = [](const dr_job& job, tile_job& t) {
    t.key = job.out_capacity;
    return tiles(job);
  };
  dr_status s = launch<log_quant_range>(*exec, common, jobs, n, encode_scratch, fill);
  if (s == DR_OK) s = launch<log_quant_levels>(*exec, common, jobs, n, encode_scratch, fill);
  if (s == DR_OK) s = launch<log_quant_code>(*exec, common, jobs, n, encode_scratch, fill);
  return s;
}

dr_status decode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  const log_quant_common common{static_cast<std::byte*>(exec->scratch), dr_job_at(jobs, 0)->dtype, 0, 0};
  for (size_t i = 0; i < n; ++i)
    if (!dr_job_at(jobs, i)->in_size) return DR_E_UNSUPPORTED;  // a size depends on data, so it is in device memory
  const dr_status s =
      launch<log_quant_open>(*exec, common, jobs, n, decode_scratch, [](const dr_job& job, tile_job& t) {
        t.in_size = job.in_size;
        return uint64_t{1};
      });
  if (s) return s;
  return launch<log_quant_decode>(*exec, common, jobs, n, decode_scratch, [](const dr_job& job, tile_job& t) {
    t.in_size = job.in_size;
    return tiles(job);
  });
}

}  // namespace

constinit const dr_ops log_quant_cuda = cuda_ops<need>(encode, decode, 3, 2);

}  // namespace dr
