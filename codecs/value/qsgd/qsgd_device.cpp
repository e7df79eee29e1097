// value=qsgd: the host's side of its CUDA operations.
#include <algorithm>
#include <numeric>

#include "codecs/builtin.hpp"
#include "codecs/value/qsgd/qsgd_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (qsgd_codec.cpu->need(&p, &job, 1, &need)) return false;
  dr_size_rule rule = fixed_rate(uint64_t{qsgd_code_bits(p.fields[0])} * job.width);
  rule.bucket = static_cast<uint32_t>(p.fields[1]);  // one norm per bucket
  rule.row_values = job.width;
  set_rule(need, rule);
  return true;
}

qsgd_common common(const dr_params& p, const dr_job& job) {
  const auto levels = static_cast<uint32_t>(p.fields[0]), bucket = static_cast<uint32_t>(p.fields[1]);
  const uint32_t bits = qsgd_code_bits(levels);
  return {job.dtype, levels, qsgd_decode_step, divisor::of(bucket), divisor::of(bits), 0, 1.0 / levels};
}

// Values of as many buckets as fit a chunk and end with a word of codes; if none do, of the fewest that end so: at most
// 32.
uint32_t encode_tile(const qsgd_common& c) {
  const uint32_t least = c.bucket.value * (32 / std::gcd(32u, c.bucket.value * c.code_bits.value));
  return least * std::max(1u, qsgd_chunk / least);
}

uint64_t tiles(const qsgd_common& c, const dr_job& job) {
  return std::max<uint64_t>(1, ceil_div(job.count_max * job.width, c.tile));
}

dr_status encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  qsgd_common c = common(*p, *dr_job_at(jobs, 0));
  c.tile = encode_tile(c);
  c.flags = exec->reserved;
  return launch_jobs<qsgd_encode>(*exec, jobs, n, c, [&](size_t i, tile_job& t) {
    t.key = dr_job_at(jobs, i)->private_key;
    t.width = dr_job_at(jobs, i)->width;
    return tiles(c, *dr_job_at(jobs, i));
  });
}

dr_status decode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  qsgd_common c = common(*p, *dr_job_at(jobs, 0));
  uint64_t values = 0;
  for (size_t i = 0; i < n; ++i) values += dr_job_at(jobs, i)->count_max * dr_job_at(jobs, i)->width;
  if (values > 1 << 20) c.tile = 4 * qsgd_decode_step;
  return launch_jobs<qsgd_decode>(*exec, jobs, n, c, [&](size_t i, tile_job& t) {
    t.in_size = dr_job_at(jobs, i)->in_size;
    t.width = dr_job_at(jobs, i)->width;
    return tiles(c, *dr_job_at(jobs, i));
  });
}

}  // namespace

constinit const dr_ops qsgd_cuda = cuda_ops<need>(encode, decode, 1, 1);

}  // namespace dr
