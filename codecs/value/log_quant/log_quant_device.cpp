// value=log_quant: the host's side of its CUDA operations.
#include "codecs/builtin.hpp"
#include "codecs/family/levels/level_launch.hpp"
#include "codecs/value/log_quant/log_quant_decode_tile.hpp"
#include "codecs/value/log_quant/log_quant_encode_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

uint64_t encode_scratch(const dr_job& job) { return log_quant_scratch::size(values_max(job)); }
uint64_t decode_scratch(const dr_job& job) { return table_values_source::size_of(values_max(job)); }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (log_quant_codec.cpu->need(&p, &job, 1, &need)) return false;
  need.encode_scratch = encode_scratch(job);
  need.decode_scratch = decode_scratch(job);
  return true;
}

dr_status encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  const log_quant_common common{static_cast<std::byte*>(exec->scratch), dr_job_at(jobs, 0)->dtype,
                                static_cast<uint32_t>(param_value(*p, 0).number),
                                static_cast<uint32_t>(param_value(*p, 1).number)};
  const auto fill = [](const dr_job& job, tile_job& t) {
    t.key = job.out_capacity;
    return level_tiles(job);
  };
  dr_status s = launch_levels<log_quant_range>(*exec, common, jobs, n, encode_scratch, fill);
  if (s == DR_OK) s = launch_levels<log_quant_levels>(*exec, common, jobs, n, encode_scratch, fill);
  if (s == DR_OK) s = launch_levels<log_quant_code>(*exec, common, jobs, n, encode_scratch, fill);
  return s;
}

dr_status decode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  const log_quant_common common{static_cast<std::byte*>(exec->scratch), dr_job_at(jobs, 0)->dtype, 0, 0};
  return launch_level_decode<log_quant_open, log_quant_decode>(*exec, common, jobs, n, decode_scratch);
}

}  // namespace

constinit const dr_ops log_quant_cuda = cuda_ops<need>(encode, decode, 3, 2);

}  // namespace dr
