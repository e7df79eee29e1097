// value=dynamic_tree (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/value/dynamic_tree/dynamic_tree_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = dynamic_tree_head + job.count_max * job.width;
  return true;
}

void encode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    dynamic_tree_encode<T>.best()(job_in<typename T::bits>(job), n, job_out<uint8_t>(job));
  });
  *job.out_size = dynamic_tree_head + n;
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  const auto* const in = job_in<uint8_t>(job);
  const auto scale = load<uint32_t>(in);
  if (scale >= f32_type::infinity) {
    fault(job, DR_E_CORRUPT, 0, scale, "dynamic_tree: the scale is negative or not finite");
    return;
  }
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    dynamic_tree_decode<T>.best()(in + dynamic_tree_head, n, f32_type::to_f32(scale), job_out<typename T::bits>(job));
  });
  *job.out_size = n * value_size(job.dtype);
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec dynamic_tree_codec =
    make_codec("dynamic_tree", "8 bits of the largest magnitude: sign, decade, fraction (8-bit dynamic tree)", 15,
               DR_ROLE_VALUE, DR_FIXED_SIZE | DR_NEEDS_FINITE, &operations, {.dtypes = all_value_dtypes});

}  // namespace dr
