// index=delta_bitpack (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/index/delta_bitpack/delta_bitpack_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = delta_bitpack_bound(job.universe, job.count_max);
  need.tell = job.count_max;
  return true;
}

uint64_t cost(const dr_params&, const dr_job& job) {
  return delta_bitpack_size(job_in<uint32_t>(job), job_count(job), cpu());
}

void encode(const dr_params&, const dr_job& job, std::byte*) {
  *job.out_size = delta_bitpack_encode(job_in<uint32_t>(job), job_count(job), cpu(), job_out<uint8_t>(job));
  tell_same(job);
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job);
  uint64_t where = 0;
  if (delta_bitpack_decode(job_in<uint8_t>(job), job_in_size(job), n, job.universe, cpu(), job_out<uint32_t>(job),
                           &where))
    *job.out_size = 4 * n;
  else
    fault(job, DR_E_CORRUPT, where, n, "delta_bitpack: invalid block");
}

constexpr dr_ops ops = cpu_ops<need, encode, decode, cost>();

}  // namespace

constinit const dr_codec delta_bitpack_codec = make_codec(
    "delta_bitpack", "gaps in blocks of 128, as wide as the widest (BP128): fast, about 1.5 bits above the entropy", 9,
    DR_ROLE_INDEX, DR_EXACT | DR_TOTAL, &ops, {.forms = list_form});

}  // namespace dr
