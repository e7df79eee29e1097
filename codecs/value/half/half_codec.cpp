// value=half (SPEC.md).
#include <cstring>

#include "codecs/builtin.hpp"
#include "codecs/value/half/half_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

enum half_type : uint64_t { half_f16, half_bf16 };
constexpr dr_param params[] = {
    param_choice("type", "the 16 bits: more precision, or more range", "f16|bf16", half_f16)};
constexpr dr_field fields[] = {wire_field("type", half_f16, half_bf16, half_f16)};

template <class F>
void with_half_type(const dr_params& p, F&& f) {
  if (p.fields[0] == half_f16) return f(f16_type{});
  f(bf16_type{});
}

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 2 * job.count_max * job.width;
  return true;
}

void encode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  with_value_type(job.dtype, [&](auto from) {
    with_half_type(p, [&](auto to) {
      half_table<decltype(from), decltype(to)>.best()(job_in<uint8_t>(job), n, job_out<uint8_t>(job));
    });
  });
  *job.out_size = 2 * n;
}

constexpr const char* not_finite = "half: a number is not finite";

// The position is that of the first f32 that is not finite: no other job changes those.
template <class From>
void widen(const dr_job& job, uint64_t n) {
  const auto* const in = job_in<uint8_t>(job);
  auto* const out = job_out<float>(job);
  if (half_widen<From>.best()(in, n, out) >= From::infinity) {
    uint64_t at = 0;
    while (is_finite<f32_type>(std::bit_cast<uint32_t>(out[at]))) ++at;
    fault(job, DR_E_CORRUPT, 2 * at, load<uint16_t>(in + 2 * at), not_finite);
    return;
  }
  *job.out_size = 4 * n;
}

void decode(const dr_params& p, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job) * job.width;
  if (job.dtype == DR_F32) return with_half_type(p, [&](auto from) { widen<decltype(from)>(job, n); });
  with_half_type(p, [&](auto from) {
    const auto* in = job_in<uint8_t>(job);
    // From a copy: the validated numbers are the converted ones, even if the frame changes meanwhile.
    constexpr uint64_t some = 2048;
    uint16_t read[some];
    for (uint64_t first = 0; first < n; first += some) {
      const uint64_t length = n - first < some ? n - first : some;
      std::memcpy(read, in + 2 * first, 2 * length);
      if (const uint64_t at = half_not_finite<decltype(from)>(read, length); at < length) {
        fault(job, DR_E_CORRUPT, 2 * (first + at), read[at], not_finite);
        return;
      }
      with_value_type(job.dtype, [&](auto to) {
        half_table<decltype(from), decltype(to)>.best()(reinterpret_cast<const uint8_t*>(read), length,
                                                        job_out<uint8_t>(job) + first * value_size(job.dtype));
      });
    }
    *job.out_size = n * value_size(job.dtype);
  });
}

constexpr dr_ops operations = cpu_ops<need, encode, decode>(fields_are_params<1>);

}  // namespace

constinit const dr_codec half_codec =
    make_codec("half", "f16 or bf16, rounded to nearest; too large values saturate", 4, DR_ROLE_VALUE,
               DR_FIXED_SIZE | DR_NEEDS_FINITE, &operations,
               {.dtypes = all_value_dtypes, .params = params, .fields = fields, .cuda = &half_cuda});
constinit const codec_notes half_notes = {
    .codec = &half_codec,
    .tries = [](double error) { return error >= 1e-4 ? tried_once(error) : std::vector<codec_argument>{}; },
    .reads_frames = true};

}  // namespace dr
