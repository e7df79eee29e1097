#include "stage/chain.hpp"

#include <cinttypes>

#include "deepreduce/codec.hpp"

namespace dr {
namespace {

// The job of a bytes stage, which reads `in`; the caller sets the output.
dr_job bytes_job(const dr_job& row, const uint8_t* in, uint64_t in_max, const uint64_t* in_size) {
  dr_job job{};
  job.struct_size = sizeof job;
  job.fault = row.fault;
  job.in = in;
  job.in_max = in_max;
  job.in_size = in_size;
  return job;
}

void write_to(dr_job& job, void* out, uint64_t capacity, uint64_t* size) {
  job.out = out;
  job.out_capacity = capacity;
  job.out_size = size;
  *size = 0;
}

// The bytes of a job by a codec of fixed size, which a decoder will expect.
uint64_t fixed_size(const stage& s, const dr_job& job, uint64_t count) {
  dr_job exact = shape_job({job.universe, count, job.dtype, job.width});
  dr_need need{};
  need.struct_size = sizeof need;
  const dr_params params = s.params();
  return s.codec->cpu->need(&params, &exact, 1, &need) ? 0 : need.payload;
}

}  // namespace

dr_status fail(dr_error& error, const broken_contract& broken, const char* doing) {
  const char* const name = broken.codec->name;
  if (broken.status)
    return fail(
        error, DR_E_INTERNAL,
        "%s broke its contract while %s: it returned %s, not OK (dr_job_fault reports what is wrong with a job)", name,
        doing, status_name(broken.status));
  return fail(error, DR_E_INTERNAL,
              "%s broke its contract while %s: it wrote %" PRIu64 " bytes; its `need` says %s%" PRIu64, name, doing,
              broken.wrote, broken.fixed ? "" : "at most ", broken.need);
}

dr_status encode_chain(const stage_list& list, const stage_runner& run, const job_list& rows, broken_contract& broken) {
  const dr_exec exec = run.exec();
  for (uint32_t s = 0; s < list.count; ++s) {
    dr_job* const jobs = s == 0 ? rows.jobs : rows.bytes;
    const unsigned now = s & 1, before = now ^ 1;
    for (size_t i = 0; i < rows.n; ++i) {
      stream_slot& slot = *rows.slots[i];
      if (s > 0) jobs[i] = bytes_job(rows.jobs[i], slot.buffer[before], slot.need.payload[s - 1], &slot.sizes[before]);
      write_to(jobs[i], slot.buffer[now], slot.need.payload[s], &slot.sizes[now]);
    }
    const dr_params params = list.stages[s].params();
    const dr_codec& codec = *list.stages[s].codec;
    broken = {&codec, codec.cpu->encode(&exec, &params, jobs, rows.n), 0, 0, false};
    if (broken.status) return DR_E_INTERNAL;
    for (size_t i = 0; i < rows.n; ++i) {
      stream_slot& slot = *rows.slots[i];
      if (jobs[i].fault->code) continue;
      broken.wrote = slot.sizes[now];
      broken.need = slot.need.payload[s];
      if (broken.wrote > broken.need) return DR_E_INTERNAL;
      // (Frames do not store the size; tests hold the built-in codecs to it.)
      if (const uint64_t count = jobs[i].count ? *jobs[i].count : jobs[i].count_max;
          count && list.fixed_size() && is_private(codec)) {
        broken.need = fixed_size(list.stages[s], jobs[i], count);
        broken.fixed = true;
        if (broken.wrote != broken.need) return DR_E_INTERNAL;
      }
      slot.data = slot.buffer[now];
      slot.size = slot.sizes[now];
    }
  }
  return DR_OK;
}

dr_status decode_chain(const stage_list& list, const stage_runner& run, const job_list& rows, broken_contract& broken) {
  const dr_exec exec = run.exec();
  for (uint32_t s = list.count; s-- > 1;) {
    const unsigned now = (s - 1) & 1;
    for (size_t i = 0; i < rows.n; ++i) {
      stream_slot& slot = *rows.slots[i];
      rows.bytes[i] = bytes_job(rows.jobs[i], slot.data, slot.size, nullptr);
      write_to(rows.bytes[i], slot.buffer[now], slot.need.payload[s - 1], &slot.sizes[now]);
    }
    const dr_params params = list.stages[s].params();
    broken = {list.stages[s].codec, list.stages[s].codec->cpu->decode(&exec, &params, rows.bytes, rows.n), 0, 0, false};
    if (broken.status) return DR_E_INTERNAL;
    for (size_t i = 0; i < rows.n; ++i) {
      stream_slot& slot = *rows.slots[i];
      if (rows.bytes[i].fault->code) continue;
      slot.data = slot.buffer[now];
      slot.size = slot.sizes[now];
      // A codec of fixed size wrote exactly that size; every other codec validates its input.
      if (s == 1 && list.has(DR_FIXED_SIZE) && slot.size != slot.need.payload[0])
        fault(rows.bytes[i], DR_E_CORRUPT, 0, slot.size,
              "a bytes codec decodes to a size other than that of the codec before it");
    }
  }
  for (size_t i = 0; i < rows.n; ++i) {
    rows.jobs[i].in = rows.slots[i]->data;
    rows.jobs[i].in_max = rows.slots[i]->size;
    *rows.jobs[i].out_size = 0;
  }
  const dr_params params = list.front().params();
  broken = {list.front().codec, list.front().codec->cpu->decode(&exec, &params, rows.jobs, rows.n), 0, 0, false};
  if (broken.status) return DR_E_INTERNAL;
  for (size_t i = 0; i < rows.n; ++i)
    if (!rows.jobs[i].fault->code && *rows.jobs[i].out_size != rows.jobs[i].out_capacity)
      fault(rows.jobs[i], DR_E_CORRUPT, 0, *rows.jobs[i].out_size,
            "the payload decodes to a size other than the frame's");
  return DR_OK;
}

}  // namespace dr
