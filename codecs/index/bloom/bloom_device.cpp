// index=bloom: the host's side of its CUDA operations.
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/index/bloom/bloom_tile.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

// Of a job whose filter, if it is built here, has this many bytes.
uint64_t scratch_size(const dr_job& job, uint64_t filter_size) {
  return bloom_scratch::filter_offset(job.universe) + (filter_size + 15) / 16 * 16;
}
// Of the largest filter that is built for a job.
uint64_t filter_size(const dr_job& job, uint64_t c) {
  return std::min(bloom_bits(job.count_max, c), bloom_bits_max(job.universe) / 32 * 32) / 8;
}

// leftmost and p0 of the standard layout have kernels; the others return UNSUPPORTED.
dr_status need(const dr_params* p, const dr_job* jobs, size_t n, dr_need* needs) {
  if (const dr_status s = bloom_codec.cpu->need(p, jobs, n, needs)) return s;
  if (bloom_policy_of(p->fields) > bloom_p0 || p->fields[bloom_field_layout] != bloom_standard) return DR_E_UNSUPPORTED;
  for (size_t i = 0; i < n; ++i) {
    dr_need_at(needs, i)->encode_scratch = scratch_size(*dr_job_at(jobs, i), dr_need_at(needs, i)->payload);
    dr_need_at(needs, i)->decode_scratch = scratch_size(*dr_job_at(jobs, i), 0);
    set_rule(*dr_need_at(needs, i), {sizeof(dr_size_rule), p->fields[bloom_field_c], 32, 32, 0, 0, 0, 0, 0, 0});
  }
  return DR_OK;
}

bloom_common common(const dr_exec& exec, const dr_params& p) {
  return {static_cast<uint8_t*>(exec.scratch), p.fields[bloom_field_policy], p.fields[bloom_field_c],
          static_cast<uint32_t>(p.fields[bloom_field_k]), static_cast<uint32_t>(p.fields[bloom_field_seed])};
}

// Where a job's scratch begins, in units of 64 bytes: asked for the jobs of a launch one after the other.
struct scratch_places {
  uint64_t next = 0;

  uint32_t take(uint64_t size) {
    const uint64_t own = next;
    next += ceil_div(size, 64);
    return static_cast<uint32_t>(own);
  }
};

dr_status encode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  const bloom_common c = common(*exec, *p);
  const auto fill = [&](scratch_places& places, size_t i, tile_job& t) {
    t.universe = static_cast<uint32_t>(dr_job_at(jobs, i)->universe);
    t.key = dr_job_at(jobs, i)->tell_capacity;
    t.extra = places.take(scratch_size(*dr_job_at(jobs, i), filter_size(*dr_job_at(jobs, i), c.c)));
  };
  scratch_places building, telling;
  const dr_status s = launch_jobs<bloom_build>(*exec, jobs, n, c, [&](size_t i, tile_job& t) {
    fill(building, i, t);
    return ceil_div(dr_job_at(jobs, i)->count_max, bloom_insert_tile);
  });
  if (s) return s;
  return launch_jobs<bloom_tell>(*exec, jobs, n, c, [&](size_t i, tile_job& t) {
    fill(telling, i, t);
    return bloom_tiles(dr_job_at(jobs, i)->universe);
  });
}

dr_status decode(const dr_exec* exec, const dr_params* p, const dr_job* jobs, size_t n) {
  scratch_places places;
  return launch_jobs<bloom_decode>(*exec, jobs, n, common(*exec, *p), [&](size_t i, tile_job& t) {
    t.universe = static_cast<uint32_t>(dr_job_at(jobs, i)->universe);
    t.in_size = dr_job_at(jobs, i)->in_size;
    t.tell = job_out<uint32_t>(*dr_job_at(jobs, i)) +
             dr_job_at(jobs, i)->out_capacity / 4;  // decode has no `tell`: it writes the support to `out`
    t.extra = places.take(scratch_size(*dr_job_at(jobs, i), 0));
    return bloom_tiles(dr_job_at(jobs, i)->universe);
  });
}

}  // namespace

constinit const dr_ops bloom_cuda = {sizeof(dr_ops), nullptr, need, nullptr, encode, decode, {2, 1}};

}  // namespace dr
