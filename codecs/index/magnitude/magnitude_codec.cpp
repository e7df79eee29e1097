// index=magnitude (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/family/classes/changed_words.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

base_words base_of(const dr_job& job) { return {value_size(job.dtype), job.base, job.universe}; }

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  if (job.width != 1) return false;
  need.payload = changed_bound(job.universe, job.count_max);
  need.tell = job.count_max;
  need.encode_scratch = changed_room::size(job.universe, job.count_max) + need.payload;
  need.decode_scratch = changed_room::size(job.universe, job.count_max);
  return true;
}

void encode(const dr_params&, const dr_job& job, std::byte* scratch) {
  const auto room = changed_room::at(scratch, job.universe, job.count_max);
  *job.out_size = changed_encode(base_of(job), job_in<uint32_t>(job), job_count(job), room, job_out<uint8_t>(job));
  tell_same(job);
}

void decode(const dr_params&, const dr_job& job, std::byte* scratch) {
  const uint64_t n = job_count(job);
  const auto room = changed_room::at(scratch, job.universe, job.count_max);
  if (changed_decode(base_of(job), job_in<uint8_t>(job), job_in_size(job), n, room, job_out<uint32_t>(job)))
    *job.out_size = 4 * n;
  else
    fault(job, DR_E_CORRUPT, 0, n, "invalid classes, or the base is another one");
}

// Coded into the scratch: sizes alone would take as long.
dr_status cost(const dr_exec* exec, const dr_params*, const dr_job* jobs, size_t n, uint64_t* bytes) {
  struct call {
    const dr_exec* exec;
    const dr_job* jobs;
    uint64_t* bytes;
  } call{exec, jobs, bytes};
  const auto one = [](void* arg, size_t item, size_t worker) {
    const auto& c = *static_cast<struct call*>(arg);
    const dr_job& job = *dr_job_at(c.jobs, item);
    auto* const scratch = static_cast<std::byte*>(c.exec->scratch) + worker * c.exec->scratch_size;
    const auto room = changed_room::at(scratch, job.universe, job.count_max);
    auto* const out = reinterpret_cast<uint8_t*>(scratch) + changed_room::size(job.universe, job.count_max);
    c.bytes[item] = changed_encode(base_of(job), job_in<uint32_t>(job), job_count(job), room, out);
  };
  exec->parallel(exec->pool, n, one, &call);
  return DR_OK;
}

constexpr dr_ops operations{sizeof(dr_ops), nullptr, each_need<need>, cost, each_job<encode>, each_job<decode>, {0, 0}};

}  // namespace

constinit const dr_codec magnitude_codec =
    make_codec("magnitude", "of a patch: gaps class by class of the base's magnitude", 15, DR_ROLE_INDEX,
               DR_EXACT | DR_TOTAL | DR_NEEDS_BASE, &operations, {.forms = list_form});

}  // namespace dr
