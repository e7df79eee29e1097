// value=lloyd: the host's side of its CUDA operations.
#include "codecs/builtin.hpp"
#include "codecs/family/levels/level_launch.hpp"
#include "codecs/value/lloyd/lloyd_decode_tile.hpp"
#include "codecs/value/lloyd/lloyd_encode_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

uint64_t encode_scratch(const dr_job& job) { return lloyd_scratch::size(values_max(job)); }
uint64_t decode_scratch(const dr_job& job) { return table_values_source::size_of(values_max(job)); }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (lloyd_codec.cpu->need(&p, &job, 1, &need)) return false;
  need.encode_scratch = encode_scratch(job);
  need.decode_scratch = decode_scratch(job);
  return true;
}

dr_status encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  lloyd_common common{static_cast<std::byte*>(exec->scratch), param_value(*p, 1).number,
                      static_cast<uint32_t>(param_value(*p, 0).number), 0, dr_job_at(jobs, 0)->dtype};
  dr_status s = DR_OK;
  const auto next = [&]<template <class> class K>(lloyd_launch launch) {
    if (s) return;
    common.launch = launch;
    s = launch_levels<K>(*exec, common, jobs, n, encode_scratch, [](const dr_job& job, tile_job& t) {
      t.key = job.out_capacity;
      return level_tiles(job);
    });
  };
  bool sampled = false;  // a job may be
  for (size_t i = 0; i < n; ++i) sampled |= values_max(*dr_job_at(jobs, i)) > lloyd_all;
  next.template operator()<lloyd_range>(lloyd_ranges);
  if (sampled) next.template operator()<lloyd_sample>(lloyd_samples);
  next.template operator()<lloyd_find>(lloyd_finds);
  next.template operator()<lloyd_quantise>(lloyd_quantises);
  if (sampled) {
    next.template operator()<lloyd_find>(lloyd_finds_again);
    next.template operator()<lloyd_quantise>(lloyd_quantises_again);
  }
  next.template operator()<lloyd_code>(lloyd_codes);
  return s;
}

dr_status decode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  const lloyd_common common{static_cast<std::byte*>(exec->scratch), 0, 0, 0, dr_job_at(jobs, 0)->dtype};
  return launch_level_decode<lloyd_open, lloyd_decode>(*exec, common, jobs, n, decode_scratch);
}

}  // namespace

constinit const dr_ops lloyd_cuda = cuda_ops<need>(encode, decode, lloyd_launches, 2);

}  // namespace dr
