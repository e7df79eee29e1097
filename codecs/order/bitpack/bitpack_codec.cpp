// order=bitpack (SPEC.md).
#include "codecs/builtin.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/bits.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = ceil_div(job.count_max * ceil_log2(job.count_max), 8);
  return true;
}

void encode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job);
  const unsigned bits = ceil_log2(n);
  bit_writer out(job_out<uint8_t>(job));
  for (uint64_t i = 0; i < n; ++i) out.put(job_in<uint32_t>(job)[i], bits);
  *job.out_size = static_cast<uint64_t>(out.finish() - job_out<uint8_t>(job));
}

// The pipeline validates the permutation, for any order codec.
void decode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job);
  const unsigned bits = ceil_log2(n);
  bit_reader in(job_in<uint8_t>(job), n * bits);
  for (uint64_t i = 0; i < n; ++i) job_out<uint32_t>(job)[i] = static_cast<uint32_t>(in.get(bits));
  if (!padding_is_zero(job_in<uint8_t>(job), n * bits)) {
    fault(job, DR_E_CORRUPT, job_in_size(job), 0, "bitpack: padding is not zero");
    return;
  }
  *job.out_size = 4 * n;
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec bitpack_codec =
    make_codec("bitpack", "positions, in as many bits as the largest needs", 1, DR_ROLE_ORDER,
               DR_EXACT | DR_FIXED_SIZE | DR_TOTAL, &cpu, {.cuda = &bitpack_cuda});

}  // namespace dr
