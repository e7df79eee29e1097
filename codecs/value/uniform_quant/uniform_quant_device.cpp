// value=uniform_quant: the host's side of its CUDA operations.
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/uniform_quant/uniform_quant_decode_tile.hpp"
#include "codecs/value/uniform_quant/uniform_quant_encode_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

uint64_t values_max(const dr_job& job) { return job.count_max * job.width; }
uint64_t encode_scratch(const dr_job& job) { return uniform_quant_scratch::size(values_max(job)); }
uint64_t decode_scratch(const dr_job& job) { return uniform_quant_source::size_of(values_max(job)); }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (uniform_quant_codec.cpu->need(&p, &job, 1, &need)) return false;
  need.encode_scratch = encode_scratch(job);
  need.decode_scratch = decode_scratch(job);
  return true;
}

uint64_t tiles(const dr_job& job) { return std::max<uint64_t>(1, level_blocks(values_max(job))); }

// K over jobs, in the common's round; fill(job, t) returns a job's tiles.
template <template <class> class K, class Fill>
dr_status launch(const dr_exec& exec, const uniform_quant_common& common, const dr_job* jobs, size_t n,
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

dr_status encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  uniform_quant_common common{static_cast<std::byte*>(exec->scratch), param_value(*p, 0).number,
                              static_cast<uint32_t>(param_value(*p, 1).number), 0, dr_job_at(jobs, 0)->dtype};
  const auto next = [&]<template <class> class K>() {
    const dr_status s = launch<K>(*exec, common, jobs, n, encode_scratch, [](const dr_job& job, tile_job& t) {
      t.key = job.out_capacity;
      return tiles(job);
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
  for (size_t i = 0; i < n; ++i)
    if (!dr_job_at(jobs, i)->in_size) return DR_E_UNSUPPORTED;  // a size depends on data, so it is in device memory
  const auto with_tiles = [](uint64_t (*of)(const dr_job&)) {
    return [of](const dr_job& job, tile_job& t) {
      t.in_size = job.in_size;
      return of(job);
    };
  };
  const auto one = [](const dr_job&) { return uint64_t{1}; };
  const dr_status s = launch<uniform_quant_open>(*exec, common, jobs, n, decode_scratch, with_tiles(one));
  return s ? s : launch<uniform_quant_decode>(*exec, common, jobs, n, decode_scratch, with_tiles(tiles));
}

}  // namespace

constinit const dr_ops uniform_quant_cuda = cuda_ops<need>(encode, decode, uniform_quant_rounds, 2);

}  // namespace dr
