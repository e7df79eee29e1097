// value=inceptionn (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/value/inceptionn/inceptionn_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {
    param_real("error", "bound of the absolute error; below it values become 0", 0x1p-127, 0.5, 0x1p-10)};
constexpr dr_field fields[] = {wire_field("fraction", 0, inceptionn_fraction_most, 9)};

dr_status resolve(const dr_params* params, const dr_job*, uint64_t* fields, dr_fault*) {
  fields[0] = inceptionn_fraction(param_value(*params, 0).number);
  return DR_OK;
}
inceptionn_rule rule_of(const dr_params& p, const dr_job& job) {
  return inceptionn_rule(static_cast<uint32_t>(p.fields[0]), value_size(job.dtype));
}

// All raw: two bits are the tag of a value.
bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = job.count_max * job.width;
  need.payload = inceptionn_tags_size(n) + n * value_size(job.dtype);
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    *job.out_size = inceptionn_encode<T>.best()(job_in<typename T::bits>(job), job_count(job) * job.width,
                                                rule_of(p, job), job_out<uint8_t>(job));
  });
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const inceptionn_verdict v = inceptionn_decode<T>.best()(job_in<uint8_t>(job), job_in_size(job), n,
                                                             rule_of(p, job).unit, job_out<typename T::bits>(job));
    if (v.what) {
      fault(job, DR_E_CORRUPT, v.where, v.found, v.what);
      return;
    }
    *job.out_size = n * value_size(job.dtype);
  });
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>(resolve);

}  // namespace

constinit const dr_codec inceptionn_codec =
    make_codec("inceptionn", "0, 8, 16 or 32 bits a value, by an absolute error (INCEPTIONN)", 16, DR_ROLE_VALUE,
               DR_NEEDS_FINITE, &operations, {.dtypes = all_value_dtypes, .params = params, .fields = fields});

}  // namespace dr
