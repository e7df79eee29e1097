// index=chunks (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/index/chunks/chunks_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {param_int("size", "elements of a chunk", 1, chunk_elements_max, 4096)};
constexpr dr_field fields[] = {wire_field("size", 1, chunk_elements_max, 4096)};

chunk_shape shape_of(const dr_params& p, const dr_job& job) { return {job.universe, p.fields[0]}; }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (job.universe > UINT32_MAX) return false;
  need.payload = index_chunks_bound(shape_of(p, job), job.count_max);
  need.tell = job.count_max;
  return true;
}

uint64_t cost(const dr_params& p, const dr_job& job) {
  return index_chunks_size(job_in<uint32_t>(job), job_count(job), shape_of(p, job));
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  *job.out_size = index_chunks_encode(job_in<uint32_t>(job), job_count(job), shape_of(p, job), job_out<uint8_t>(job));
  tell_same(job);
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job);
  uint64_t where = 0;
  if (index_chunks_decode(job_in<uint8_t>(job), job_in_size(job), n, shape_of(p, job), job_out<uint32_t>(job), &where))
    *job.out_size = 4 * n;
  else
    fault(job, DR_E_CORRUPT, where, n, "chunks: payload does not decode to that many indices of its chunks");
}

constexpr dr_ops ops = cpu_ops<need, encode, decode, cost>(fields_are_params<1>);

}  // namespace

constinit const dr_codec index_chunks_codec = make_codec(
    "chunks", "gaps within chunks that have as many indices each: behind sparsify=chunks, 0.1 to 0.5 bits below golomb",
    17, DR_ROLE_INDEX, DR_EXACT | DR_TOTAL, &ops, {.forms = list_form, .params = params, .fields = fields});

}  // namespace dr
