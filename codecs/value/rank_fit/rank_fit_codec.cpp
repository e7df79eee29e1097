// value=rank_fit (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/value/rank_fit/rank_fit_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {
    param_int("bits", "of a magnitude's level; a sign comes beside", 1, rank_fit_bits_max, 4),
    param_int("degree", "of the curve of levels; 1: uniform in the logarithm", 0, rank_fit_degree_max, 5)};
constexpr dr_field fields[] = {wire_field("bits", 1, rank_fit_bits_max, 4),
                               wire_field("degree", 0, rank_fit_degree_max, 5)};

rank_fit_layout layout(const dr_params& p, const dr_job& job, uint64_t count) {
  return {static_cast<unsigned>(p.fields[0]), static_cast<unsigned>(p.fields[1]), count * job.width};
}

struct work {
  rank_fit_bin bins[rank_fit_bins];
  rank_fit_curve curve;
};

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  need.payload = layout(p, job, job.count_max).size;
  need.encode_scratch = sizeof(work);
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte* scratch) {
  const rank_fit_layout l = layout(p, job, job_count(job));
  const unsigned levels = 1u << l.bits;
  auto& w = *reinterpret_cast<work*>(scratch);
  auto* const out = job_out<uint8_t>(job);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* values = job_in<typename T::bits>(job);
    const auto key = [&](uint64_t i) { return std::bit_cast<uint32_t>(T::to_f32(values[i])) & 0x7fffffff; };
    typename T::bits range[2];
    rank_fit_range<T>.best()(values, l.n, range);
    const auto wide = [](typename T::bits b) { return std::bit_cast<uint32_t>(T::to_f32(b)); };
    rank_fit_count(l.n, wide(range[0]), wide(range[1]), key, w.bins, w.curve);
    float c[rank_fit_degree_max + 1];
    rank_fit_fit(w.curve, l.bits, l.coefficients, c);
    std::memcpy(out, c, 4 * l.coefficients);

    double level[rank_fit_levels_max];
    rank_fit_levels(l.bits, l.coefficients, c, level);
    for (unsigned i = 0; i < levels; ++i) level[i] = static_cast<double>(T::to_f32(T::from_f64(saturate<T>(level[i]))));
    uint32_t threshold[rank_fit_levels_max];
    rank_fit_thresholds(levels, level, threshold);
    rank_fit_encode<T>.best()(values, l, threshold, out);
  });
  *job.out_size = l.size;
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const rank_fit_layout l = layout(p, job, job_count(job));
  const auto* in = job_in<uint8_t>(job);
  float c[rank_fit_degree_max + 1];
  std::memcpy(c, in, 4 * l.coefficients);
  for (unsigned j = 0; j < l.coefficients; ++j)
    if (!is_finite<f32_type>(std::bit_cast<uint32_t>(c[j]))) {
      fault(job, DR_E_CORRUPT, 4 * j, std::bit_cast<uint32_t>(c[j]), "rank_fit: a coefficient is not finite");
      return;
    }
  if (!padding_is_zero(in + l.signs, l.n) || !padding_is_zero(in + l.codes, l.n * l.bits)) {
    fault(job, DR_E_CORRUPT, l.size, 0, "rank_fit: padding is not zero");
    return;
  }
  double level[rank_fit_levels_max];
  rank_fit_levels(l.bits, l.coefficients, c, level);
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    typename T::bits table[rank_fit_levels_max] = {};
    for (unsigned i = 0; i < 1u << l.bits; ++i) table[i] = T::from_f64(saturate<T>(level[i]));
    rank_fit_decode<T>.best()(in, l, table, job_out<typename T::bits>(job));
  });
  *job.out_size = l.n * value_size(job.dtype);
}

constexpr dr_ops ops = cpu_ops<need, encode, decode>(fields_are_params<2>);

}  // namespace

constinit const dr_codec rank_fit_codec =
    make_codec("rank_fit", "levels on a fitted curve of the sorted magnitudes, a few bits a value", 8, DR_ROLE_VALUE,
               DR_FIXED_SIZE | DR_NEEDS_FINITE, &ops, {.dtypes = all_value_dtypes, .params = params, .fields = fields});

}  // namespace dr
