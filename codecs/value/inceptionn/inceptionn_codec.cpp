// value=inceptionn (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/value/inceptionn/inceptionn_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {
    param_real("error", "below it values become 0; with classes=bound it is the bound of the absolute error", 0x1p-127,
               0.5, 0x1p-10),
    param_choice("classes", "bound: the error follows from the unit; exponent: the paper's, up to 2^-7 if that is more",
                 "bound|exponent", 0)};
constexpr dr_field fields[] = {wire_field("fraction", 0, inceptionn_by_exponent, 9)};

double error_of(const dr_params& p) { return param_value(p, 0).number; }
dr_status resolve(const dr_params* params, const dr_job*, uint64_t* fields, dr_fault*) {
  const bool by_exponent = param_value(*params, 1).number != 0;
  fields[0] = by_exponent ? inceptionn_by_exponent : inceptionn_fraction(error_of(*params));
  return DR_OK;
}
uint32_t fraction_of(const dr_params& p) { return static_cast<uint32_t>(p.fields[0]); }

// All raw: two bits are the tag of a value.
bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = job.count_max * job.width;
  need.payload = inceptionn_tags_size(n) + n * value_size(job.dtype);
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const in = job_in<typename T::bits>(job);
    const uint64_t n = job_count(job) * job.width;
    const uint32_t size = value_size(job.dtype);
    auto* const out = job_out<uint8_t>(job);
    if (fraction_of(p) == inceptionn_by_exponent)
      *job.out_size = inceptionn_encode_by_exponent<T>(in, n, inceptionn_rule::by_exponent(error_of(p), size), out);
    else
      *job.out_size = inceptionn_encode<T>.best()(in, n, inceptionn_rule(fraction_of(p), size), out);
  });
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const inceptionn_verdict v = inceptionn_decode<T>.best()(
        job_in<uint8_t>(job), job_in_size(job), n, inceptionn_units(fraction_of(p)), job_out<typename T::bits>(job));
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
