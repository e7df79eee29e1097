// value=qsgd (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/value/qsgd/qsgd_payload_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr double levels_max = 32767, bucket_max = 1 << 20;
constexpr dr_param params[] = {param_int("levels", "quantisation levels of a magnitude", 1, levels_max, 127),
                               param_int("bucket", "values that share a norm", 1, bucket_max, 512)};
constexpr dr_field fields[] = {wire_field("levels", 1, static_cast<uint64_t>(levels_max), 127),
                               wire_field("bucket", 1, static_cast<uint64_t>(bucket_max), 512)};

qsgd_layout layout(const dr_params& p, const dr_job& job, uint64_t count) {
  return {p.fields[0], p.fields[1], count * job.width};
}

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  need.payload = layout(p, job, job.count_max).size;
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  const qsgd_layout l = layout(p, job, job_count(job));
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    qsgd_encode_at<T>.best()(job_in<typename T::bits>(job), l, job.private_key, job_out<uint8_t>(job));
  });
  *job.out_size = l.size;
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const qsgd_layout l = layout(p, job, job_count(job));
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const qsgd_verdict v = qsgd_decode_at<T>.best()(job_in<uint8_t>(job), l, job_out<typename T::bits>(job));
    if (v.what) {
      fault(job, DR_E_CORRUPT, v.where, v.found, v.what);
      return;
    }
    *job.out_size = l.n * value_size(job.dtype);
  });
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>(fields_are_params<2>);

}  // namespace

constinit const dr_codec qsgd_codec =
    make_codec("qsgd", "stochastic uniform levels of a bucket's norm; unbiased", 2, DR_ROLE_VALUE,
               DR_FIXED_SIZE | DR_NEEDS_FINITE | DR_PRIVATE_RANDOM, &operations,
               {.dtypes = all_value_dtypes, .params = params, .fields = fields, .cuda = &qsgd_cuda});
constinit const codec_notes qsgd_notes = {.codec = &qsgd_codec, .reads_frames = true};

}  // namespace dr
