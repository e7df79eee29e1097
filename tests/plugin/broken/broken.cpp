// Plug-ins that break one promise each, one a build: BROKEN says which. `deepreduce test-plugin` names it. Without, value
// codec `broken`: a byte that says how many values there are, modulo 256, and the values as they are.
#include <deepreduce/version.h>
#include <deepreduce/codec.hpp>

#include <cstdio>
#include <cstdlib>

namespace {

enum broken : uint8_t {
  nothing,
  bound,        // need is a byte too small
  repeats,      // bytes depend on how often encode was called
  reads,        // decode reads values that its payload may not have
  lossy,        // DR_EXACT, but the lowest bit goes
  writes,       // decode writes one value too many where the first byte of the payload says so
  fixed,        // DR_FIXED_SIZE, but payloads of zeros are shorter
  aborts,       // decode ends the process where bytes are wrong
  prints,       // encode prints
  hangs,        // decode of many values does not end
  values_read,  // decode reads its parameter, of which it has only the wire field
  never_fails,  // DR_TOTAL, but encode refuses NaN
  memory,       // bytes depend on what the scratch held before
};
constexpr broken what = static_cast<broken>(BROKEN);

uint64_t size_of(const dr_job& job, uint64_t count) { return count * job.width * (job.dtype == DR_F32 ? 4 : 2); }

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = (what == bound ? 0 : 1) + size_of(job, job.count_max);
  need.encode_scratch = 64;
  return true;
}

bool is_nan(const dr_job& job, uint64_t i) {
  if (job.dtype == DR_F32) return (dr::job_in<uint32_t>(job)[i] & 0x7fffffff) > 0x7f800000;
  return (dr::job_in<uint16_t>(job)[i] & 0x7fff) > (job.dtype == DR_F16 ? 0x7c00 : 0x7f80);
}

void encode(const dr_params&, const dr_job& job, std::byte* scratch) {
  const uint64_t n = dr::job_count(job), size = size_of(job, n);
  auto* const out = dr::job_out<uint8_t>(job);
  if (what == never_fails)
    for (uint64_t i = 0; i < n * job.width; ++i)
      if (is_nan(job, i)) return (void)dr::fault(job, DR_E_ARGUMENT, i, 0, "broken: NaN");
  static unsigned calls = 0;
  out[0] = static_cast<uint8_t>(n);
  if (what == repeats) out[0] = static_cast<uint8_t>(calls++);
  if (what == memory) out[0] = static_cast<uint8_t>(scratch[0]);
  std::memcpy(out + 1, job.in, size);
  *job.out_size = 1 + size;
  if (what == lossy && size) out[1] &= 0xfe;
  if (what == fixed && out[size] == 0) *job.out_size = size;
  if (what == prints) std::puts("encoding");
}

void decode(const dr_params& params, const dr_job& job, std::byte*) {
  const uint64_t n = dr::job_count(job), size = size_of(job, n), given = dr::job_in_size(job);
  const auto* const in = dr::job_in<uint8_t>(job);
  if (what == values_read && dr::param_value(params, 0).number > 1) return;
  if (what == hangs && n >= 1 << 20)
    for (volatile bool forever = true; forever;) continue;
  const bool counted = what == repeats || what == memory || what == fixed || (given && *in == static_cast<uint8_t>(n));
  if (what != reads && what != fixed && (given != 1 + size || !counted)) {
    if (what == aborts) std::abort();
    if (what != writes || given != 1 + size || *in != static_cast<uint8_t>(n + 1))
      return (void)dr::fault(job, DR_E_CORRUPT, 0, given, "broken: a payload of another size or count");
  }
  std::memcpy(job.out, in + 1, what == fixed ? given - 1 : size);
  if (what == writes && *in != static_cast<uint8_t>(n)) std::memset(dr::job_out<uint8_t>(job) + size, 0, 4);
  *job.out_size = size;
}

constexpr dr_param params[] = {dr::param_int("level", "does nothing", 1, 1, 1)};
constexpr dr_field fields[] = {dr::wire_field("level", 1, 1, 1)};
constexpr dr_ops cpu = dr::cpu_ops<need, encode, decode>(dr::fields_are_params<1>);

}  // namespace

extern "C" __attribute__((visibility("default"))) const dr_codec* const* dr_plugin_v2(const dr_host* host,
                                                                                      size_t* count) {
  static const dr_codec codec =
      dr::make_codec("broken", "a plug-in of a test", dr_private_id("org.example.broken"), DR_ROLE_VALUE,
                     DR_EXACT | (what == fixed ? DR_FIXED_SIZE : 0u) | (what == never_fails ? DR_TOTAL : 0u), &cpu,
                     {.dtypes = dr::all_value_dtypes, .params = params, .fields = fields});
  static const dr_codec* const all[] = {&codec};
  if (host->codec_abi != DR_CODEC_ABI_VERSION) return nullptr;
  *count = 1;
  return all;
}
