// value=qsgd (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/value/qsgd/qsgd_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr double levels_max = 32767, bucket_max = 1 << 20;
constexpr dr_param params[] = {param_int("levels", "quantisation levels of a magnitude", 1, levels_max, 127),
                               param_int("bucket", "values that share a norm", 1, bucket_max, 512)};
constexpr dr_field fields[] = {{"levels", 1, static_cast<uint64_t>(levels_max), 127},
                               {"bucket", 1, static_cast<uint64_t>(bucket_max), 512}};

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
    const auto* values = job_in<typename T::bits>(job);
    auto* out = job_out<uint8_t>(job);
    bit_writer codes(out + l.norms_size);
    for (uint64_t b = 0; b < l.buckets; ++b) {
      const uint64_t begin = b * l.bucket, length = b + 1 < l.buckets ? l.bucket : l.n - begin;
      const float norm = qsgd_norm<T>(values + begin, length);
      store(out + 4 * b, norm);
      for (uint64_t i = begin; i < begin + length; ++i)
        codes.put(qsgd_code(T::to_f32(values[i]), norm, l.levels, draw(job.private_key, i)), l.code_bits);
    }
    codes.finish();
  });
  *job.out_size = l.size;
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const qsgd_layout l = layout(p, job, job_count(job));
  const auto* in = job_in<uint8_t>(job);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    auto* out = job_out<typename T::bits>(job);
    bit_reader codes(in + l.norms_size, l.n * l.code_bits);
    for (uint64_t b = 0; b < l.buckets; ++b) {
      const uint64_t begin = b * l.bucket, length = b + 1 < l.buckets ? l.bucket : l.n - begin;
      const auto norm_bits = load<uint32_t>(in + 4 * b);
      if (norm_bits >= f32_type::infinity) {
        fault(job, DR_E_CORRUPT, 4 * b, norm_bits, "qsgd: a norm is negative or not finite");
        return;
      }
      const float norm = std::bit_cast<float>(norm_bits);
      for (uint64_t i = begin; i < begin + length; ++i) {
        const auto code = static_cast<uint32_t>(codes.get(l.code_bits));
        if (code >> 1 > l.levels) {
          fault(job, DR_E_CORRUPT, i, code >> 1, "qsgd: a level is above the highest");
          return;
        }
        out[i] = T::from_f64(qsgd_value(code, norm, l.levels));
      }
    }
    if (!padding_is_zero(in + l.norms_size, l.n * l.code_bits)) {
      fault(job, DR_E_CORRUPT, l.size, 0, "qsgd: padding is not zero");
      return;
    }
    *job.out_size = l.n * value_size(job.dtype);
  });
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode>(fields_are_params<2>);

}  // namespace

constinit const dr_codec qsgd_codec =
    make_codec("qsgd", "stochastic uniform levels of a bucket's norm; unbiased", 2, DR_ROLE_VALUE,
               DR_FIXED_SIZE | DR_NEEDS_FINITE | DR_PRIVATE_RANDOM, &cpu,
               {.dtypes = all_value_dtypes, .params = params, .fields = fields, .cuda = &qsgd_cuda});

}  // namespace dr
