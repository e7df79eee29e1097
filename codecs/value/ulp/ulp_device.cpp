// value=ulp: the host's side of its CUDA operations.
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/ulp/ulp_decode_tile.hpp"
#include "codecs/value/ulp/ulp_encode_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

uint64_t words_max(const dr_job& job) { return job.count_max * job.width; }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (!is_value_type(job.dtype) || ulp_codec.cpu->need(&p, &job, 1, &need)) return false;
  need.encode_scratch = ulp_encode_state::size(words_max(job));
  need.decode_scratch = ulp_decode_state::size(words_max(job));
  return true;
}

// Launches K over jobs, each with its part of the scratch. tiles_of(job): its blocks.
template <template <class> class K, class Tiles>
dr_status launch_ulp(const dr_exec& exec, const dr_job* jobs, size_t n, uint64_t (*scratch)(uint64_t),
                     Tiles&& tiles_of) {
  const ulp_common common{static_cast<std::byte*>(exec.scratch), dr_job_at(jobs, 0)->dtype};
  uint64_t at = 0;
  return launch_jobs<K>(exec, jobs, n, common, [&](size_t i, tile_job& t) {
    const dr_job& job = *dr_job_at(jobs, i);
    t.in_size = job.in_size;
    t.tell = const_cast<void*>(job.base);
    t.width = job.width;
    t.extra = static_cast<uint32_t>(at);
    at += ceil_div(scratch(words_max(job)), 64);
    return tiles_of(job);
  });
}

uint64_t tiles(const dr_job& job) { return std::max<uint64_t>(1, ulp_encode_state::tiles(words_max(job))); }
uint64_t one(const dr_job&) { return 1; }

dr_status encode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  constexpr auto scratch = ulp_encode_state::size;
  dr_status s = launch_ulp<ulp_symbols>(*exec, jobs, n, scratch, tiles);
  if (s == DR_OK) s = launch_ulp<ulp_count>(*exec, jobs, n, scratch, tiles);
  if (s == DR_OK) s = launch_ulp<ulp_chain>(*exec, jobs, n, scratch, one);
  if (s == DR_OK) s = launch_ulp<ulp_pack>(*exec, jobs, n, scratch, tiles);
  if (s == DR_OK) s = launch_ulp<ulp_apart>(*exec, jobs, n, scratch, tiles);
  return s;
}

dr_status decode(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (!dr_job_at(jobs, i)->in_size) return DR_E_UNSUPPORTED;  // a size depends on data, so it is in device memory
  constexpr auto scratch = ulp_decode_state::size;
  dr_status s = launch_ulp<ulp_open>(*exec, jobs, n, scratch, one);
  if (s == DR_OK) s = launch_ulp<ulp_values>(*exec, jobs, n, scratch, tiles);
  return s;
}

}  // namespace

constinit const dr_ops ulp_cuda = cuda_ops<need>(encode, decode, 5, 2);

}  // namespace dr
