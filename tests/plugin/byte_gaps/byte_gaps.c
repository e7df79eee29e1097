/* A plug-in codec in C11: index `byte_gaps`, the gaps between ascending indices as LEB128 varints.
 *
 * Payload: for each index x_i the gap x_i - x_{i-1} - 1 (x_{-1} = -1), 7 bits a byte, low first, the top bit says that
 * another byte follows. Refuse: a varint that breaks off, is longer than 5 bytes or has a superfluous zero group; an
 * index that is not below the universe; bytes behind the last one. No parameters, no wire fields. */
#include <deepreduce/codec.h>
#include <deepreduce/version.h>

/* 5 = ceil(32 / 7): a gap is below the universe, so below 2^32. */
enum { bytes_per_gap_max = 5 };

static dr_status need(const dr_params *params, const dr_job *jobs, size_t n, dr_need *needs) {
  (void)params;
  for (size_t i = 0; i < n; ++i) { /* all of a need but its struct_size is 0 so far */
    const uint64_t count_max = dr_job_at(jobs, i)->count_max;
    dr_need_at(needs, i)->payload = bytes_per_gap_max * count_max; /* count_max <= universe < 2^32: no overflow */
    dr_need_at(needs, i)->tell = count_max;
  }
  return DR_OK;
}

static void encode_one(void *arg, size_t item, size_t worker) {
  (void)worker;
  const dr_job *const job = dr_job_at(arg, item);
  if (job->fault->code != DR_OK) return;
  const uint32_t *const x = job->in;
  uint8_t *out = job->out;
  const uint64_t n = dr_job_count(job);
  for (uint64_t i = 0; i < n; ++i) {
    uint32_t gap = i ? x[i] - x[i - 1] - 1 : x[0];
    for (; gap >= 0x80; gap >>= 7) *out++ = (uint8_t)(gap | 0x80);
    *out++ = (uint8_t)gap;
  }
  *job->out_size = (uint64_t)(out - (uint8_t *)job->out);
  if (!job->tell) return; /* the support that decode will return is requested: the same */
  for (uint64_t i = 0; i < n; ++i) ((uint32_t *)job->tell)[i] = x[i];
  *job->tell_count = n;
}

static void decode_one(void *arg, size_t item, size_t worker) {
  (void)worker;
  const dr_job *const job = dr_job_at(arg, item);
  if (job->fault->code != DR_OK) return;
  const uint8_t *const in = job->in;
  uint32_t *const x = job->out;
  const uint64_t n = dr_job_count(job), size = dr_job_in_size(job);
  uint64_t at = 0, next = 0; /* next: the smallest index that may come */
  for (uint64_t i = 0; i < n; ++i) {
    uint64_t gap = 0;
    unsigned group = 0;
    uint8_t byte;
    do {
      if (at == size || group == bytes_per_gap_max) {
        dr_job_fault(job, DR_E_CORRUPT, at, i, "byte_gaps: a gap breaks off or is too long");
        return;
      }
      byte = in[at++];
      gap |= (uint64_t)(byte & 0x7f) << (7 * group++);
    } while (byte & 0x80);
    if (byte == 0 && group > 1) {
      dr_job_fault(job, DR_E_CORRUPT, at - 1, i, "byte_gaps: a superfluous zero group");
      return;
    }
    next += gap; /* < 2^32 + 2^35 */
    if (next >= job->universe) {
      dr_job_fault(job, DR_E_CORRUPT, at, next, "byte_gaps: an index is not below the universe");
      return;
    }
    x[i] = (uint32_t)next++;
  }
  if (at != size) {
    dr_job_fault(job, DR_E_CORRUPT, at, size - at, "byte_gaps: bytes behind the last gap");
    return;
  }
  *job->out_size = 4 * n;
}

static dr_status encode(const dr_exec *exec, const dr_params *params, const dr_job *jobs, size_t n) {
  (void)params;
  exec->parallel(exec->pool, n, encode_one, (void *)jobs);
  return DR_OK;
}

static dr_status decode(const dr_exec *exec, const dr_params *params, const dr_job *jobs, size_t n) {
  (void)params;
  exec->parallel(exec->pool, n, decode_one, (void *)jobs);
  return DR_OK;
}

static const dr_ops cpu = {.struct_size = sizeof(dr_ops), .need = need, .encode = encode, .decode = decode};
static dr_codec byte_gaps = {.struct_size = sizeof(dr_codec),
                             .name = "byte_gaps",
                             .summary = "gaps as varints",
                             .role = DR_ROLE_INDEX,
                             .traits = DR_EXACT,
                             .forms = 1u << DR_FORM_LIST,
                             .cpu = &cpu};
static const dr_codec *const all[] = {&byte_gaps};

__attribute__((visibility("default"))) const dr_codec *const *dr_plugin_v2(const dr_host *host, size_t *count) {
  if (host->codec_abi != DR_CODEC_ABI_VERSION) return NULL;
  byte_gaps.id = dr_private_id("org.example.byte_gaps"); /* no constant of C */
  *count = sizeof all / sizeof *all;
  return all;
}
