// value=sign (SPEC.md).
#include <algorithm>
#include <cfloat>

#include "codecs/builtin.hpp"
#include "codecs/family/ones/ones.hpp"
#include "codecs/value/sign/sign_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

enum param : size_t { scale_param, level_param };
enum scale_choice : uint32_t { scale_one, scale_mean, scale_means, scale_level };
constexpr dr_param params[] = {
    param_choice("scale", "value of a sign: 1, the mean magnitude, the mean of its sign, or the level",
                 "one|mean|means|level", scale_one),
    param_real("level", "of scale=level: the magnitude of every value", FLT_MIN, FLT_MAX, 1)};

enum field : size_t { means, level };
constexpr uint64_t one_bits = 0x3f800000;
// How many means the payload has; the level, an f32, of a payload that has none.
constexpr dr_field fields[] = {wire_field("means", 0, 2, 0), wire_field("level", 1, f32_type::infinity - 1, one_bits)};

dr_status resolve(const dr_params* p, const dr_job*, uint64_t* out, dr_fault* fault) {
  const auto scale = static_cast<uint32_t>(param_value(*p, scale_param).number);
  const dr_value& given = param_value(*p, level_param);
  // (1 is what canonical text leaves out.)
  if (given.number != 1 && scale != scale_level) {
    fault->stream = DR_STREAM_VALUE;
    fault->message = "sign(level) needs scale=level";
    return fault->code = DR_E_ARGUMENT;
  }
  out[means] = scale == scale_mean ? 1 : scale == scale_means ? 2 : 0;
  out[level] = scale == scale_level ? f32_type::from_f64(given.number) : one_bits;
  return DR_OK;
}

uint64_t size_of(const dr_params& p, uint64_t n) { return 4 * p.fields[means] + ceil_div(n, 8); }

bool need(const dr_params& p, const dr_job& job, dr_need& need) {
  if (p.fields[means] && p.fields[level] != one_bits) return false;
  need.payload = size_of(p, job.count_max * job.width);
  return true;
}

float mean_of(double sum, uint64_t n) { return n ? static_cast<float>(sum / static_cast<double>(n)) : 0; }

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  auto* const out = job_out<uint8_t>(job);
  auto* const bits = out + 4 * p.fields[means];
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const values = job_in<typename T::bits>(job);
    if (p.fields[means] == 0) return sign_pack<T>.best()(values, n, bits);
    sign_sums sums{0, 0};
    uint64_t below = 0;
    for (uint64_t first = 0; first < n; first += sum_tile) {  // while a tile is in the cache
      const uint64_t length = std::min<uint64_t>(n - first, sum_tile);
      const sign_sums some = sign_sums_of<T>.best()(values + first, length);
      sums.below += some.below;
      sums.other += some.other;
      sign_pack<T>.best()(values + first, length, bits + first / 8);
      if (p.fields[means] > 1) below += count_ones.best()(bits + first / 8, ceil_div(length, 8));
    }
    if (p.fields[means] == 1) return store(out, mean_of(sums.below + sums.other, n));
    store(out, mean_of(sums.below, below));
    store(out + 4, mean_of(sums.other, n - below));
  });
  *job.out_size = size_of(p, n);
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  const auto* const in = job_in<uint8_t>(job);
  const auto* const bits = in + 4 * p.fields[means];
  uint32_t sent[2] = {static_cast<uint32_t>(p.fields[level]), static_cast<uint32_t>(p.fields[level])};
  for (uint64_t k = 0; k < p.fields[means]; ++k) {
    sent[k] = load<uint32_t>(in + 4 * k);
    if (sent[k] < f32_type::infinity) continue;
    fault(job, DR_E_CORRUPT, 4 * k, sent[k], "sign: a mean is negative or not finite");
    return;
  }
  if (p.fields[means] == 1) sent[1] = sent[0];
  if (!padding_is_zero(bits, n)) {
    fault(job, DR_E_CORRUPT, size_of(p, n), 0, "sign: padding is not zero");
    return;
  }
  with_value_type(job.dtype, [&](auto type) {
    using T = decltype(type);
    const auto below = T::from_f64(-saturate<T>(f32_type::to_f32(sent[0]))),
               other = T::from_f64(saturate<T>(f32_type::to_f32(sent[1])));
    sign_unpack<T>.best()(bits, n, below, other, job_out<typename T::bits>(job));
  });
  *job.out_size = n * value_size(job.dtype);
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>(resolve);

}  // namespace

constinit const dr_codec sign_codec =
    make_codec("sign", "one bit a value: SignSGD, EF-SignSGD, 1-bit SGD, TBQ by its scale", 12, DR_ROLE_VALUE,
               DR_FIXED_SIZE | DR_NEEDS_FINITE, &operations,
               {.dtypes = all_value_dtypes, .params = params, .fields = fields, .cuda = &sign_cuda});
constinit const codec_notes sign_notes = {.codec = &sign_codec, .reads_frames = true};

}  // namespace dr
