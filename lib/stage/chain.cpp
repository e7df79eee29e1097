#include "stage/chain.hpp"

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

}  // namespace

dr_status encode_chain(const stage_list& list, const stage_runner& run, const job_list& rows) {
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
    if (const dr_status status = list.stages[s].codec->cpu->encode(&exec, &params, jobs, rows.n)) return status;
    for (size_t i = 0; i < rows.n; ++i) {
      stream_slot& slot = *rows.slots[i];
      if (jobs[i].fault->code) continue;
      if (slot.sizes[now] > slot.need.payload[s]) return DR_E_INTERNAL;
      slot.data = slot.buffer[now];
      slot.size = slot.sizes[now];
    }
  }
  return DR_OK;
}

dr_status decode_chain(const stage_list& list, const stage_runner& run, const job_list& rows) {
  const dr_exec exec = run.exec();
  for (uint32_t s = list.count; s-- > 1;) {
    const unsigned now = (s - 1) & 1;
    for (size_t i = 0; i < rows.n; ++i) {
      stream_slot& slot = *rows.slots[i];
      rows.bytes[i] = bytes_job(rows.jobs[i], slot.data, slot.size, nullptr);
      write_to(rows.bytes[i], slot.buffer[now], slot.need.payload[s - 1], &slot.sizes[now]);
    }
    const dr_params params = list.stages[s].params();
    if (const dr_status status = list.stages[s].codec->cpu->decode(&exec, &params, rows.bytes, rows.n)) return status;
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
  if (const dr_status status = list.front().codec->cpu->decode(&exec, &params, rows.jobs, rows.n)) return status;
  for (size_t i = 0; i < rows.n; ++i)
    if (!rows.jobs[i].fault->code && *rows.jobs[i].out_size != rows.jobs[i].out_capacity)
      fault(rows.jobs[i], DR_E_CORRUPT, 0, *rows.jobs[i].out_size,
            "the payload decodes to a size other than the frame's");
  return DR_OK;
}

}  // namespace dr
