// index=delta_varint (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/index/delta_varint/delta_varint_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = delta_varint_bound(job.universe, job.count_max);
  need.tell = job.count_max;
  return true;
}

uint64_t cost(const dr_params&, const dr_job& job) { return delta_varint_size(job_in<uint32_t>(job), job_count(job)); }

void encode(const dr_params&, const dr_job& job, std::byte*) {
  *job.out_size = delta_varint_encode(job_in<uint32_t>(job), job_count(job), job_out<uint8_t>(job));
  tell_same(job);
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job);
  uint64_t where = 0;
  if (delta_varint_decode(job_in<uint8_t>(job), job_in_size(job), n, job.universe, job_out<uint32_t>(job), &where))
    *job.out_size = 4 * n;
  else
    fault(job, DR_E_CORRUPT, where, n, "delta_varint: malformed gap, or index not below the universe");
}

constexpr dr_ops ops = cpu_ops<need, encode, decode, cost>();

}  // namespace

constinit const dr_codec delta_varint_codec =
    make_codec("delta_varint", "gaps in bytes of seven bits (VByte)", 8, DR_ROLE_INDEX, DR_EXACT | DR_TOTAL, &ops,
               {.forms = list_form});

}  // namespace dr
