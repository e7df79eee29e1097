// value=uniform_quant: the host's side of its CUDA operations.
#include "codecs/builtin.hpp"
#include "codecs/family/levels/level_launch.hpp"
#include "codecs/value/uniform_quant/uniform_quant_decode_tile.hpp"
#include "codecs/value/uniform_quant/uniform_quant_encode_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

uint64_t encode_scratch(const dr_job& job) { return uniform_quant_scratch::size(values_max(job)); }
uint64_t decode_scratch(const dr_job& job) { return uniform_quant_source::size_of(values_max(job)); }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (uniform_quant_codec.cpu->need(&p, &job, 1, &need)) return false;
  need.encode_scratch = encode_scratch(job);
  need.decode_scratch = decode_scratch(job);
  return true;
}

dr_status encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  uniform_quant_common common{static_cast<std::byte*>(exec->scratch), param_value(*p, 0).number,
                              static_cast<uint32_t>(param_value(*p, 1).number), 0, dr_job_at(jobs, 0)->dtype};
  const auto next = [&]<template <class> class K>() {
    const dr_status s = launch_levels<K>(*exec, common, jobs, n, encode_scratch, [](const dr_job& job, tile_job& t) {
      t.key = job.out_capacity;
      return level_tiles(job);
    });
    ++common.round;
    return s;
  };
  dr_status s = next.template operator()<uniform_quant_range>();
  if (s == DR_OK) s = next.template operator()<uniform_quant_survey>();
  const uint32_t tries = common.bits ? 1 : uniform_quant_tries;
  for (uint32_t i = 0; i < tries && s == DR_OK; ++i) {
    s = next.template operator()<uniform_quant_try>();
    if (s == DR_OK && common.dtype != DR_F32) s = next.template operator()<uniform_quant_error_of_try>();
  }
  if (s == DR_OK) s = next.template operator()<uniform_quant_verdict>();
  if (s == DR_OK) s = next.template operator()<uniform_quant_code>();
  return s;
}

dr_status decode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  const uniform_quant_common common{static_cast<std::byte*>(exec->scratch), 0, 0, 0, dr_job_at(jobs, 0)->dtype};
  return launch_level_decode<uniform_quant_open, uniform_quant_decode>(*exec, common, jobs, n, decode_scratch);
}

}  // namespace

constinit const dr_ops uniform_quant_cuda = cuda_ops<need>(encode, decode, uniform_quant_rounds, 2);

}  // namespace dr
