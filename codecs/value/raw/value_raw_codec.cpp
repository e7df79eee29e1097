// value=raw: the values themselves (SPEC.md).
#include <cstring>

#include "codecs/builtin.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

uint64_t size(const dr_job& job, uint64_t count) { return count * job.width * value_size(job.dtype); }

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = size(job, job.count_max);
  return true;
}

void copy(const dr_params&, const dr_job& job, std::byte*) {
  *job.out_size = size(job, job_count(job));
  if (*job.out_size) std::memcpy(job.out, job.in, *job.out_size);
}

constexpr dr_ops cpu = cpu_ops<need, copy, copy>();

}  // namespace

constinit const dr_codec value_raw_codec =
    make_codec("raw", "the values, bit for bit", 1, DR_ROLE_VALUE, DR_EXACT | DR_LINEAR | DR_FIXED_SIZE | DR_TOTAL,
               &cpu, {.dtypes = all_word_dtypes, .cuda = &value_raw_cuda});
constinit const codec_notes value_raw_notes = {.codec = &value_raw_codec, .tries = tried_once, .copies = true};

}  // namespace dr
