// value=natural (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/value/natural/natural_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {param_choice("rounding", "stochastic is unbiased, nearest has less error",
                                            "stochastic|nearest", natural_stochastic)};

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 1 + job.count_max * job.width;
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  const auto rounding = static_cast<natural_rounding>(param_value(p, 0).number);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    natural_encode<T>.best()(job_in<typename T::bits>(job), n, rounding, job.private_key, job_out<uint8_t>(job));
  });
  *job.out_size = 1 + n;
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  const auto* const in = job_in<uint8_t>(job);
  const uint32_t highest = in[0];
  if (highest < natural_highest_least) {
    fault(job, DR_E_CORRUPT, 0, highest, "natural: the highest power is below 104");
    return;
  }
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    natural_decode<T>.best()(in + 1, n, highest, job_out<typename T::bits>(job));
  });
  *job.out_size = n * value_size(job.dtype);
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec natural_codec = make_codec(
    "natural", "a sign and a power of two, 8 bits a value; unbiased (natural compression)", 14, DR_ROLE_VALUE,
    DR_FIXED_SIZE | DR_NEEDS_FINITE | DR_PRIVATE_RANDOM, &operations, {.dtypes = all_value_dtypes, .params = params});

}  // namespace dr
