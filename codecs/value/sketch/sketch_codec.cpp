// value=sketch (SPEC.md).
#include <cstring>

#include "codecs/builtin.hpp"
#include "codecs/value/sketch/sketch_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {
    param_int("buckets", "for both signs together; all hold equally many values", 2, sketch_buckets_max, 256)};

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  const uint64_t n = job.count_max * job.width;
  need.payload = 1 + 4 * std::min<uint64_t>(n, sketch_buckets_max) + n;
  need.encode_scratch = 2 * n * sizeof(uint32_t);
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte* scratch) {
  const uint64_t n = job_count(job) * job.width;
  auto* const keys = reinterpret_cast<uint32_t*>(scratch);
  auto* const out = job_out<uint8_t>(job);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* values = job_in<typename T::bits>(job);
    for (uint64_t i = 0; i < n; ++i) keys[i] = sketch_key<T>(values[i]);
    const uint32_t* const sorted = sketch_sort(keys, keys + n, n, 8 * sizeof(typename T::bits));
    const auto rank = [&](uint32_t key) { return std::lower_bound(sorted, sorted + n, key); };

    uint32_t starts[sketch_buckets_max];
    std::fill(starts, starts + sketch_buckets_max, ~0u);
    const auto negatives = static_cast<uint64_t>(rank(sketch_first_positive<T>) - sorted);
    const uint32_t count = sketch_starts(sorted, n, negatives, static_cast<uint32_t>(param_value(p, 0).number), starts);
    out[0] = static_cast<uint8_t>(count - 1);
    for (uint32_t b = 0; b < count; ++b)
      store(out + 1 + 4 * b, sketch_mean<T>({rank(starts[b]), b + 1 < count ? rank(starts[b + 1]) : sorted + n}));
    uint8_t* const codes = out + 1 + 4 * count;
    for (uint64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(sketch_code(starts, sketch_key<T>(values[i])));
    *job.out_size = 1 + 4 * count + n;
  });
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width, size = job_in_size(job);
  const auto* const in = job_in<uint8_t>(job);
  const uint64_t count = size ? in[0] + uint64_t{1} : 1, head = 1 + 4 * count;
  if (size != head + n) {
    fault(job, DR_E_CORRUPT, size, head + n, "sketch: payload size differs from that of its means and codes");
    return;
  }
  uint32_t means[sketch_buckets_max];
  std::memcpy(means, in + 1, 4 * count);  // read once: the validated value is the one used
  for (uint64_t b = 0; b < count; ++b)
    if (!is_finite<f32_type>(means[b])) {
      fault(job, DR_E_CORRUPT, 1 + 4 * b, means[b], "sketch: a mean is not finite");
      return;
    }
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    auto* const out = job_out<typename T::bits>(job);
    typename T::bits mean[sketch_buckets_max] = {};
    for (uint64_t b = 0; b < count; ++b) mean[b] = T::from_f64(saturate<T>(f32_type::to_f32(means[b])));
    uint8_t largest = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const uint8_t code = in[head + i];
      largest = std::max(largest, code);
      out[i] = mean[code];
    }
    if (largest >= count) {
      fault(job, DR_E_CORRUPT, head, largest, "sketch: code is not below the number of buckets");
      return;
    }
    *job.out_size = n * sizeof(typename T::bits);
  });
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec sketch_codec =
    make_codec("sketch", "the mean of a quantile bucket, separate by sign; a byte per value", 5, DR_ROLE_VALUE,
               DR_NEEDS_FINITE, &cpu, {.dtypes = all_value_dtypes, .params = params});

}  // namespace dr
