// Value codec `failing`: the values as they are, but for what its parameter says: an operation that fails as a whole, or that claims
// another size than it promised. Decode reads the parameter from its field.
#include <deepreduce/version.h>
#include <deepreduce/codec.hpp>

namespace {

enum : uint64_t { nowhere, encode_fails, encode_too_long, decode_fails, decode_too_short };

uint64_t size_of(const dr_job& job, uint64_t count) { return count * job.width * (job.dtype == DR_F32 ? 4 : 2); }

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = size_of(job, job.count_max);
  return true;
}

dr_status copy(const dr_params* params, const dr_job* jobs, size_t n, bool encodes) {
  const uint64_t what = params->fields[0];
  if (what == (encodes ? encode_fails : decode_fails)) return DR_E_MEMORY;
  for (size_t i = 0; i < n; ++i) {
    const dr_job& job = *dr_job_at(jobs, i);
    if (job.fault->code) continue;
    const uint64_t size = size_of(job, dr::job_count(job));
    if (!encodes && dr::job_in_size(job) != size) {
      dr::fault(job, DR_E_CORRUPT, 0, dr::job_in_size(job), "failing: a payload of another size than its values");
      continue;
    }
    std::memcpy(job.out, job.in, size);
    *job.out_size = size;
    if (encodes && what == encode_too_long) *job.out_size = size_of(job, job.count_max) + 1;
    if (!encodes && what == decode_too_short) *job.out_size = size - 1;
  }
  return DR_OK;
}
dr_status encode(const dr_exec*, const dr_params* params, const dr_job* jobs, size_t n) {
  return copy(params, jobs, n, true);
}
dr_status decode(const dr_exec*, const dr_params* params, const dr_job* jobs, size_t n) {
  return copy(params, jobs, n, false);
}

constexpr dr_param params[] = {dr::param_int("where", "what fails", 0, 4, 0)};
constexpr dr_field fields[] = {dr::wire_field("where", 0, 4, 0)};
constexpr dr_ops cpu{sizeof(dr_ops), dr::fields_are_params<1>, dr::each_need<need>, nullptr, encode, decode, {0, 0}};

}  // namespace

extern "C" __attribute__((visibility("default"))) const dr_codec* const* dr_plugin_v2(const dr_host* host,
                                                                                      size_t* count) {
  static const dr_codec codec =
      dr::make_codec("failing", "a plug-in of a test", dr_private_id("org.example.failing"), DR_ROLE_VALUE, DR_EXACT,
                     &cpu, {.dtypes = dr::all_value_dtypes, .params = params, .fields = fields});
  static const dr_codec* const all[] = {&codec};
  if (host->codec_abi != DR_CODEC_ABI_VERSION) return nullptr;
  *count = 1;
  return all;
}
