// value=fit_poly (SPEC.md).
#include <algorithm>

#include "codecs/builtin.hpp"
#include "codecs/value/fit_poly/fit_poly_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {param_int("degree", "of the polynomial pieces", 0, fit_poly_degree_max, 5)};
constexpr dr_field fields[] = {{"degree", 0, fit_poly_degree_max, 5}};

unsigned degree(const dr_params& p) { return static_cast<unsigned>(p.fields[0]); }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (job.width != 1) return false;
  const uint64_t n = job.count_max;
  need.payload = fit_poly_size_max(n, degree(p));
  need.encode_scratch = n * sizeof(uint64_t);
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte* scratch) {
  const uint64_t n = job_count(job);
  auto* sorted = reinterpret_cast<uint64_t*>(scratch);  // key, position: ties by position
  auto* out = job_out<uint8_t>(job);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* values = job_in<typename T::bits>(job);
    uint64_t positives = 0;
    for (uint64_t i = 0; i < n; ++i) {
      sorted[i] = uint64_t{fit_poly_sort_key<T>(values[i])} << 32 | i;
      positives += (values[i] & ~T::magnitude_mask) == 0;
    }
    std::sort(sorted, sorted + n);
    store(out, static_cast<uint32_t>(positives));
    uint64_t length[fit_poly_segments_max], first = 0;
    uint8_t* at = out + 4;
    const unsigned segments = fit_poly_segments(n, positives, length);
    for (unsigned s = 0; s < segments; ++s) {
      float c[fit_poly_degree_max + 1];
      fit_poly_fit(
          length[s], degree(p),
          [&](uint64_t x) { return double{T::to_f32(values[static_cast<uint32_t>(sorted[first + x])])}; }, c);
      const size_t size = 4 * fit_poly_coefficients(length[s], degree(p));
      std::memcpy(at, c, size);
      at += size;
      first += length[s];
    }
    *job.out_size = static_cast<uint64_t>(at - out);
  });
  if (!job.tell) return;
  for (uint64_t i = 0; i < n; ++i) job_tell(job)[i] = static_cast<uint32_t>(sorted[i]);
  *job.tell_count = n;
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job), size = job_in_size(job);
  const auto* in = job_in<uint8_t>(job);
  const uint64_t positives = size >= 4 ? load<uint32_t>(in) : n + 1;
  if (positives > n) {
    fault(job, DR_E_CORRUPT, 0, positives, "fit_poly: more positive values than values");
    return;
  }
  uint64_t length[fit_poly_segments_max], expected = 4;
  const unsigned segments = fit_poly_segments(n, positives, length);
  for (unsigned s = 0; s < segments; ++s) expected += 4 * fit_poly_coefficients(length[s], degree(p));
  if (expected != size) {
    fault(job, DR_E_CORRUPT, size, expected, "fit_poly: not as long as its segments");
    return;
  }
  for (uint64_t at = 4; at < size; at += 4)
    if (!is_finite<f32_type>(load<uint32_t>(in + at))) {
      fault(job, DR_E_CORRUPT, at, load<uint32_t>(in + at), "fit_poly: a coefficient is not finite");
      return;
    }
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    auto* out = job_out<typename T::bits>(job);
    uint64_t first = 0;
    const uint8_t* at = in + 4;
    for (unsigned s = 0; s < segments; ++s) {
      float c[fit_poly_degree_max + 1];
      const size_t bytes = 4 * fit_poly_coefficients(length[s], degree(p));
      std::memcpy(c, at, bytes);
      at += bytes;
      const bool positive = first < positives;
      fit_poly_eval(length[s], degree(p), c, [&](uint64_t x, double y) {
        if (positive ? y < 0 : y > 0) y = 0;
        out[first + x] = T::from_f64(saturate<T>(y));
      });
      first += length[s];
    }
  });
  *job.out_size = n * value_size(job.dtype);
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode>(fields_are_params<1>);

}  // namespace

constinit const dr_codec fit_poly_codec =
    make_codec("fit_poly", "the sorted values as polynomial pieces; sends their order beside", 3, DR_ROLE_VALUE,
               DR_REORDERS | DR_NEEDS_FINITE, &cpu,
               {.dtypes = all_value_dtypes, .params = params, .fields = fields, .cuda = &fit_poly_cuda});

}  // namespace dr
