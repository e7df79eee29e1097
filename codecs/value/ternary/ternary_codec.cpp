// value=ternary (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/ternary/ternary_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {
    param_real("clip", "values are clipped to so many standard deviations first; 0: to none", 0, 1000, 2.5)};

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = ternary_size(job.count_max * job.width);
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  const double clip = param_value(p, 0).number;
  auto* const out = job_out<uint8_t>(job);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const values = job_in<typename T::bits>(job);
    uint32_t largest = 0;
    double squares = 0;
    if (clip > 0)
      squares = ternary_squares<T>.best()(values, n, largest);
    else
      largest = ternary_largest<T>.best()(values, n);
    const float scale = T::to_f32(ternary_scale<T>(largest, squares, n, clip));
    store(out, scale);
    constexpr uint64_t block = 2560;  // values: whole groups, and few enough for L1
    alignas(64) uint8_t digits[block + ternary_digits_slack];
    for (uint64_t first = 0; first < n; first += block) {
      const auto length = static_cast<size_t>(std::min(block, n - first));
      ternary_draw<T>.best()(values + first, length, scale, job.private_key, first, digits);
      const size_t groups = ceil_div(length, ternary_group);
      std::fill(digits + length, digits + groups * ternary_group, uint8_t{1});
      ternary_pack.best()(digits, groups, out + 4 + first / ternary_group);
    }
  });
  *job.out_size = ternary_size(n);
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width, groups = ceil_div(n, ternary_group);
  const auto* const in = job_in<uint8_t>(job);
  const auto sent = load<uint32_t>(in);
  if (sent >= f32_type::infinity) {
    fault(job, DR_E_CORRUPT, 0, sent, "ternary: the scale is negative or not finite");
    return;
  }
  const uint8_t *const body = in + 4, *const end = body + groups;
  if (const uint8_t* const at = ternary_stray(body, end); at != end) {
    fault(job, DR_E_CORRUPT, static_cast<uint64_t>(at - in), *at, "ternary: a byte is above 242");
    return;
  }
  if (!ternary_padding_is_zero(end[-1], n)) {
    fault(job, DR_E_CORRUPT, ternary_size(n) - 1, end[-1], "ternary: padding is not zero");
    return;
  }
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const double scale = saturate<T>(f32_type::to_f32(sent));
    const typename T::bits numbers[] = {T::from_f64(-scale), 0, T::from_f64(scale)};
    ternary_unpack<typename T::bits>.best()(body, n, numbers, job_out<typename T::bits>(job));
  });
  *job.out_size = n * value_size(job.dtype);
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec ternary_codec =
    make_codec("ternary", "-1, 0 or 1 of a scale by chance, five a byte; unbiased but for clipping (TernGrad)", 13,
               DR_ROLE_VALUE, DR_FIXED_SIZE | DR_NEEDS_FINITE | DR_PRIVATE_RANDOM, &operations,
               {.dtypes = all_value_dtypes, .params = params, .cuda = &ternary_cuda});
constinit const codec_notes ternary_notes = {.codec = &ternary_codec, .reads_frames = true};

}  // namespace dr
