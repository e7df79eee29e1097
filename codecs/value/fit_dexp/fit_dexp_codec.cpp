// value=fit_dexp (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/fit_dexp/fit_dexp_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {param_choice(
    "sign", "split: one curve per sign; order: one curve of magnitudes, and a bit per value", "split|order", 0)};
constexpr dr_field fields[] = {wire_field("sign", 0, 1, 0)};

bool in_order(const dr_params& p) { return p.fields[0] == 1; }
constexpr uint64_t curve_size = 16;
uint64_t curves_size(const dr_params& p) { return in_order(p) ? curve_size : 4 + 2 * curve_size; }
uint64_t payload_size(const dr_params& p, uint64_t n) { return curves_size(p) + (in_order(p) ? ceil_div(n, 8) : 0); }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (job.width != 1) return false;
  need.payload = payload_size(p, job.count_max);
  need.encode_scratch = sizeof(fit_dexp_runs) + job.count_max * sizeof(uint64_t);
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte* scratch) {
  const uint64_t n = job_count(job);
  auto& runs = *reinterpret_cast<fit_dexp_runs*>(scratch);
  auto* const sorted = reinterpret_cast<uint64_t*>(scratch + sizeof(fit_dexp_runs));  // key, position: ties by position
  auto* at = job_out<uint8_t>(job);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    using bits = typename T::bits;
    const auto* values = job_in<bits>(job);
    const bits mask = in_order(p) ? T::magnitude_mask : static_cast<bits>(~bits{0});
    uint64_t positives = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const bits v = values[i] & mask;
      sorted[i] = uint64_t{fit_dexp_sort_key<T>(v)} << 32 | i;
      positives += (v & ~T::magnitude_mask) == 0;
    }
    std::sort(sorted, sorted + n);
    if (!in_order(p)) {
      store(at, static_cast<uint32_t>(positives));
      at += 4;
    }
    const uint64_t ends[] = {positives, n};
    uint64_t first = 0;
    for (const uint64_t end : ends) {
      const auto y = [&](uint64_t x) {
        const auto key = static_cast<bits>(sorted[first + x] >> 32);
        return double{T::to_f32(static_cast<bits>(fit_dexp_sort_key<T>(key)))};
      };
      const fit_dexp_curve c = end > first ? fit_dexp_fit(end - first, y, runs) : fit_dexp_curve{};
      store(at, c);
      at += curve_size;
      first = end;
      if (in_order(p)) break;
    }
    if (!in_order(p)) return;
    bit_writer signs(at);
    for (uint64_t i = 0; i < n; ++i) signs.put(values[static_cast<uint32_t>(sorted[i])] > T::magnitude_mask, 1);
    signs.finish();
  });
  *job.out_size = payload_size(p, n);
  if (!job.tell) return;
  for (uint64_t i = 0; i < n; ++i) job_tell(job)[i] = static_cast<uint32_t>(sorted[i]);
  *job.tell_count = n;
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job);
  const auto* in = job_in<uint8_t>(job);
  const uint64_t positives = in_order(p) ? n : load<uint32_t>(in);
  if (positives > n) {
    fault(job, DR_E_CORRUPT, 0, positives, "fit_dexp: more positive values than values");
    return;
  }
  const unsigned curves = in_order(p) ? 1 : 2;
  const uint8_t* const signs = in + curves_size(p);
  const uint64_t counts[] = {positives, n - positives};
  fit_dexp_curve curve[2];
  for (unsigned side = 0; side < curves; ++side) {
    const uint64_t begin = (in_order(p) ? 0 : 4) + side * curve_size;
    uint32_t words[curve_size / 4];
    std::memcpy(words, in + begin, curve_size);  // read once: the validated value is the one used
    for (uint64_t at = begin; at < begin + curve_size; at += 4) {
      const uint32_t word = words[(at - begin) / 4];
      if (!is_finite<f32_type>(word) || (counts[side] == 0 && word != 0)) {
        fault(job, DR_E_CORRUPT, at, word, "fit_dexp: parameter is not finite, or not 0 for a side without values");
        return;
      }
    }
    curve[side] = load<fit_dexp_curve>(words);
  }
  if (in_order(p) && !padding_is_zero(signs, n)) {
    fault(job, DR_E_CORRUPT, payload_size(p, n) - 1, 0, "fit_dexp: padding is not zero");
    return;
  }
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    using bits = typename T::bits;
    auto* out = job_out<bits>(job);
    for (unsigned side = 0; side < curves; ++side)
      for (uint64_t x = 0; x < counts[side]; ++x) {
        double y = fit_dexp_at(curve[side], x, counts[side]);
        if (side == 0 ? y < 0 : y > 0) y = 0;
        *out++ = T::from_f64(saturate<T>(y));
      }
    if (!in_order(p)) return;
    out -= n;
    constexpr bits sign = static_cast<bits>(T::magnitude_mask + bits{1});
    for (uint64_t i = 0; i < n; ++i)
      out[i] = static_cast<bits>((out[i] & T::magnitude_mask) | (signs[i / 8] >> (i % 8) & 1 ? sign : bits{0}));
  });
  *job.out_size = n * value_size(job.dtype);
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode>(fields_are_params<1>);

}  // namespace

constinit const dr_codec fit_dexp_codec =
    make_codec("fit_dexp", "the sorted values as two exponentials; sends their order beside", 7, DR_ROLE_VALUE,
               DR_REORDERS | DR_FIXED_SIZE | DR_NEEDS_FINITE, &cpu,
               {.dtypes = all_value_dtypes, .params = params, .fields = fields});

}  // namespace dr
