// index=elias_fano (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/index/elias_fano/elias_fano_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = job.count_max && job.count_max <= job.universe ? elias_fano_bound(job.universe, job.count_max) : 0;
  need.tell = job.count_max;
  return true;
}

uint64_t cost(const dr_params&, const dr_job& job) {
  const uint64_t n = job_count(job);
  return elias_fano_size(job.universe, n, job_in<uint32_t>(job)[n - 1]);
}

void encode(const dr_params&, const dr_job& job, std::byte*) {
  *job.out_size = elias_fano_encode(job_in<uint32_t>(job), job_count(job), job.universe, cpu(), job_out<uint8_t>(job));
  tell_same(job);
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job);
  uint64_t where = 0;
  if (elias_fano_decode(job_in<uint8_t>(job), job_in_size(job), n, job.universe, cpu(), job_out<uint32_t>(job), &where))
    *job.out_size = 4 * n;
  else
    fault(job, DR_E_CORRUPT, where, n, "elias_fano: payload does not decode to that many ascending indices");
}

constexpr dr_ops ops = cpu_ops<need, encode, decode, cost>();

}  // namespace

constinit const dr_codec elias_fano_codec =
    make_codec("elias_fano", "low bits as they are, high bits in unary: half a bit above the entropy of a uniform set",
               7, DR_ROLE_INDEX, DR_EXACT | DR_TOTAL, &ops, {.forms = list_form});

}  // namespace dr
