// value=three_lc (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/three_lc/three_lc_kernel.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {
    param_real("sparsity", "as it grows, more values become 0 and the scale grows", 1, 1.99, 1)};

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 4 + ceil_div(job.count_max * job.width, three_lc_group);
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  auto* const out = job_out<uint8_t>(job);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* values = job_in<typename T::bits>(job);
    typename T::bits most = 0;
    for (uint64_t i = 0; i < n; ++i) most = std::max<typename T::bits>(most, values[i] & T::magnitude_mask);
    const auto scale = static_cast<float>(saturate<f32_type>(double{T::to_f32(most)} * param_value(p, 0).number));
    const double half = scale / 2.0;  // exact
    store(out, scale);
    const uint8_t* const end = three_lc_pack(n, out + 4, [&](uint64_t i) -> uint32_t {
      const double v = T::to_f32(values[i]);
      return 1u + (v >= half && v > 0) - (v <= -half && v < 0);
    });
    *job.out_size = static_cast<uint64_t>(end - out);
  });
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width, size = job_in_size(job);
  const auto* const in = job_in<uint8_t>(job);
  if (size < 4) {
    fault(job, DR_E_CORRUPT, 0, size, "three_lc: payload is shorter than its scale");
    return;
  }
  const auto sent = load<uint32_t>(in);
  if (sent >= f32_type::infinity) {
    fault(job, DR_E_CORRUPT, 0, sent, "three_lc: the scale is negative or not finite");
    return;
  }
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    auto* const out = job_out<typename T::bits>(job);
    const double scale = saturate<T>(f32_type::to_f32(sent));
    const typename T::bits numbers[] = {T::from_f64(-scale), 0, T::from_f64(scale)};
    const three_lc_verdict verdict =
        three_lc_unpack(in + 4, size - 4, n, [&](uint64_t i, uint8_t digit) { out[i] = numbers[digit]; });
    if (verdict == three_lc_verdict::good)
      *job.out_size = n * sizeof(typename T::bits);
    else
      fault(job, DR_E_CORRUPT, size, n,
            verdict == three_lc_verdict::too_short  ? "three_lc: fewer digits than values"
            : verdict == three_lc_verdict::too_long ? "three_lc: more digits than values"
                                                    : "three_lc: padding is not zero");
  });
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec three_lc_codec =
    make_codec("three_lc", "-1, 0 or 1 of a scale, five a byte, runs of zeros short (3LC)", 6, DR_ROLE_VALUE,
               DR_NEEDS_FINITE, &cpu, {.dtypes = all_value_dtypes, .params = params});

}  // namespace dr
