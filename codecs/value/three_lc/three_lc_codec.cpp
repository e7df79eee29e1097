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

constexpr uint64_t block = 2560;  // values: whole groups, and few enough for L1

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 4 + ceil_div(job.count_max * job.width, ternary_group);
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  auto* const out = job_out<uint8_t>(job);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const values = job_in<typename T::bits>(job);
    const auto largest = static_cast<typename T::bits>(ternary_largest<T>.best()(values, n));
    const auto scale = static_cast<float>(saturate<f32_type>(double{T::to_f32(largest)} * param_value(p, 0).number));
    const uint32_t least = three_lc_least<T>(scale / 2.0);  // (the quotient is exact)
    store(out, scale);
    three_lc_writer body(out + 4);
    alignas(64) uint8_t digits[block + ternary_digits_slack], bytes[block / ternary_group];
    for (uint64_t first = 0; first < n; first += block) {
      const auto length = static_cast<size_t>(std::min(block, n - first));
      const size_t groups = ceil_div(length, ternary_group);
      three_lc_digits<T>.best()(values + first, length, least, digits);
      std::fill(digits + length, digits + groups * ternary_group, uint8_t{1});
      ternary_pack.best()(digits, groups, bytes);
      body.put(bytes, groups);
    }
    *job.out_size = static_cast<uint64_t>(body.finish() - out);
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
    three_lc_reader body(in + 4, size - 4);
    uint8_t bytes[block / ternary_group];
    for (uint64_t first = 0; first < n; first += block) {
      const auto length = static_cast<size_t>(std::min(block, n - first));
      const size_t groups = ceil_div(length, ternary_group);
      if (body.take(groups, bytes) < groups) {
        fault(job, DR_E_CORRUPT, size, n, "three_lc: fewer digits than values");
        return;
      }
      ternary_unpack<typename T::bits>.best()(bytes, length, numbers, out + first);
      if (ternary_padding_is_zero(bytes[groups - 1], length)) continue;
      fault(job, DR_E_CORRUPT, size, n, "three_lc: padding is not zero");
      return;
    }
    if (body.at_end())
      *job.out_size = n * sizeof(typename T::bits);
    else
      fault(job, DR_E_CORRUPT, size, n, "three_lc: more digits than values");
  });
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec three_lc_codec =
    make_codec("three_lc", "-1, 0 or 1 of a scale, five a byte, runs of zeros short (3LC)", 6, DR_ROLE_VALUE,
               DR_NEEDS_FINITE, &operations, {.dtypes = all_value_dtypes, .params = params});

}  // namespace dr
