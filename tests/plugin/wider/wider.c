/* A plug-in from the future, for tests: built with a copy of codec.h in which every struct has 16 bytes more at its end. Value codec
 * `wider`: the bytes of the values, each with (mask + step * its position) mixed in. It refuses a value of all ones. */
#include "codec_wider.h"

#include <deepreduce/version.h>

/* dr_private_id("org.example.wider"); the entry point compares. */
#define WIDER_ID 0xc72du

static uint64_t size_of(const dr_job *job, uint64_t rows) { return rows * job->width * (job->dtype == DR_F32 ? 4 : 2); }

/* What this version added counts only where the struct has it. */
static uint64_t later_of(const dr_job *job) { return job->struct_size >= sizeof(dr_job) ? job->later[0] : 0; }

static dr_status resolve(const dr_params *params, const dr_job *job, uint64_t *fields, dr_fault *fault) {
  (void)job, (void)fault;
  for (size_t i = 0; i < 2; ++i) fields[i] = (uint64_t)dr_value_at(params->values, i)->number;
  return DR_OK;
}

static dr_status need(const dr_params *params, const dr_job *jobs, size_t n, dr_need *needs) {
  (void)params;
  for (size_t i = 0; i < n; ++i) {
    const dr_job *const job = dr_job_at(jobs, i);
    dr_need_at(needs, i)->payload = size_of(job, job->count_max) + later_of(job);
  }
  return DR_OK;
}

static dr_status mix(const dr_exec *exec, const dr_params *params, const dr_job *jobs, size_t n, int encodes) {
  (void)exec;
  for (size_t i = 0; i < n; ++i) {
    const dr_job *const job = dr_job_at(jobs, i);
    if (job->fault->code != DR_OK) continue;
    const uint64_t size = size_of(job, job->count ? *job->count : job->count_max);
    const uint8_t *const in = job->in;
    uint8_t *const out = job->out;
    if (!encodes && (job->in_size ? *job->in_size : job->in_max) != size) {
      job->fault->code = DR_E_CORRUPT;
      job->fault->message = "wider: a payload of another size than its values";
      continue;
    }
    for (uint64_t k = 0; encodes && k + 4 <= size; k += 4)
      if (in[k] == 0xff && in[k + 1] == 0xff && in[k + 2] == 0xff && in[k + 3] == 0xff) {
        job->fault->code = DR_E_ARGUMENT;
        job->fault->where = k / 4;
        job->fault->what = 0xffffffff;
        job->fault->message = "wider: a value of all ones";
      }
    for (uint64_t k = 0; k < size; ++k) out[k] = (uint8_t)(in[k] ^ (params->fields[0] + params->fields[1] * k));
    *job->out_size = size;
  }
  return DR_OK;
}
static dr_status encode(const dr_exec *exec, const dr_params *params, const dr_job *jobs, size_t n) {
  return mix(exec, params, jobs, n, 1);
}
static dr_status decode(const dr_exec *exec, const dr_params *params, const dr_job *jobs, size_t n) {
  return mix(exec, params, jobs, n, 0);
}

static const dr_param params[] = {{.struct_size = sizeof(dr_param),
                                   .name = "mask",
                                   .summary = "",
                                   .type = DR_PARAM_INT,
                                   .minimum = 0,
                                   .maximum = 255,
                                   .fallback = 3},
                                  {.struct_size = sizeof(dr_param),
                                   .name = "step",
                                   .summary = "",
                                   .type = DR_PARAM_INT,
                                   .minimum = 1,
                                   .maximum = 9,
                                   .fallback = 5}};
static const dr_field fields[] = {
    {.struct_size = sizeof(dr_field), .name = "mask", .minimum = 0, .maximum = 255, .fallback = 3},
    {.struct_size = sizeof(dr_field), .name = "step", .minimum = 1, .maximum = 9, .fallback = 5}};
static const dr_ops cpu = {
    .struct_size = sizeof(dr_ops), .resolve = resolve, .need = need, .encode = encode, .decode = decode};
static const dr_codec wider = {.struct_size = sizeof(dr_codec),
                               .name = "wider",
                               .summary = "bytes mixed with their positions",
                               .id = WIDER_ID,
                               .role = DR_ROLE_VALUE,
                               .traits = DR_EXACT,
                               .dtypes = DR_DTYPE_BIT(DR_F32) | DR_DTYPE_BIT(DR_F16) | DR_DTYPE_BIT(DR_BF16),
                               .params = params,
                               .param_count = 2,
                               .fields = fields,
                               .field_count = 2,
                               .cpu = &cpu};
static const dr_codec *const all[] = {&wider};

__attribute__((visibility("default"))) const dr_codec *const *dr_plugin_v2(const dr_host *host, size_t *count) {
  if (host->codec_abi != DR_CODEC_ABI_VERSION || dr_private_id("org.example.wider") != WIDER_ID) return NULL;
  *count = 1;
  return all;
}
