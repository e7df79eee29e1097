// Codecs that are sound but for what their parameter says: an operation that fails as a whole, that claims another size than it
// promised, a fault that is none, a support that cannot be. Decode reads the parameter from its field.
//   failing          value: the values as they are
//   failing_fixed    the same, of fixed size
//   failing_support  index: the indices as they are, and says that it replaces them
#include <deepreduce/version.h>
#include <deepreduce/codec.hpp>

namespace {

enum : uint64_t {
  nowhere,
  encode_fails,
  encode_too_long,
  decode_fails,
  decode_too_short,
  encode_short,
  pending_fault,
  unknown_fault
};
enum : uint64_t { support_too_long = 1, support_past_universe, support_descends };

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
    if (encodes && what == encode_short) *job.out_size = 2;
    if (encodes && what == pending_fault) dr::fault(job, DR_PENDING, 5, 6, "not yet");
    if (encodes && what == unknown_fault) dr::fault(job, 77, 5, 6, nullptr);
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

bool need_support(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 4 * job.count_max;
  need.tell = job.count_max;
  return true;
}
dr_status encode_support(const dr_exec*, const dr_params* params, const dr_job* jobs, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const dr_job& job = *dr_job_at(jobs, i);
    if (job.fault->code) continue;
    const uint64_t count = dr::job_count(job);
    std::memcpy(job.out, job.in, 4 * count);
    *job.out_size = 4 * count;
    if (!job.tell) continue;
    auto* const support = static_cast<uint32_t*>(job.tell);
    std::memcpy(support, job.in, 4 * count);
    *job.tell_count = count;
    if (params->fields[0] == support_too_long) *job.tell_count = job.tell_capacity + 100000000;
    if (params->fields[0] == support_past_universe) support[count - 1] = static_cast<uint32_t>(job.universe);
    if (params->fields[0] == support_descends) support[1] = support[0];
  }
  return DR_OK;
}
dr_status decode_support(const dr_exec*, const dr_params*, const dr_job* jobs, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const dr_job& job = *dr_job_at(jobs, i);
    if (job.fault->code) continue;
    if (dr::job_in_size(job) != job.out_capacity) {
      dr::fault(job, DR_E_CORRUPT, 0, dr::job_in_size(job), "failing_support: another size");
      continue;
    }
    std::memcpy(job.out, job.in, job.out_capacity);
    *job.out_size = job.out_capacity;
  }
  return DR_OK;
}

constexpr dr_param params[] = {dr::param_int("where", "what fails", 0, 7, 0)};
constexpr dr_field fields[] = {dr::wire_field("where", 0, 7, 0)};
constexpr dr_ops cpu{sizeof(dr_ops), dr::fields_are_params<1>, dr::each_need<need>, nullptr, encode, decode, {0, 0}};
constexpr dr_ops of_support{sizeof(dr_ops), dr::fields_are_params<1>, dr::each_need<need_support>,
                            nullptr,        encode_support,           decode_support,
                            {0, 0}};

}  // namespace

extern "C" __attribute__((visibility("default"))) const dr_codec* const* dr_plugin_v2(const dr_host* host,
                                                                                      size_t* count) {
  static const dr_codec values =
      dr::make_codec("failing", "a plug-in of a test", dr_private_id("org.example.failing"), DR_ROLE_VALUE, DR_EXACT,
                     &cpu, {.dtypes = dr::all_value_dtypes, .params = params, .fields = fields});
  static const dr_codec fixed = dr::make_codec(
      "failing_fixed", "a plug-in of a test", dr_private_id("org.example.failing_fixed"), DR_ROLE_VALUE,
      DR_EXACT | DR_FIXED_SIZE, &cpu, {.dtypes = dr::all_value_dtypes, .params = params, .fields = fields});
  static const dr_codec support = dr::make_codec(
      "failing_support", "a plug-in of a test", dr_private_id("org.example.failing_support"), DR_ROLE_INDEX,
      DR_REPLACES_SUPPORT, &of_support, {.forms = 1u << DR_FORM_LIST, .params = params, .fields = fields});
  static const dr_codec* const all[] = {&values, &fixed, &support};
  if (host->codec_abi != DR_CODEC_ABI_VERSION) return nullptr;
  *count = 3;
  return all;
}
