// index=history (SPEC.md).
#include "codecs/builtin.hpp"
#include "codecs/family/history/history_words.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

base_words base_of(const dr_job& job) { return {value_size(job.dtype), job.base, job.universe}; }

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  if (job.width != 1) return false;
  need.payload = history_changed_bound(job.universe, job.count_max);
  need.tell = job.count_max;
  need.encode_scratch = need.decode_scratch = history_scratch::size(job.universe, job.count_max);
  return true;
}

void encode(const dr_params&, const dr_job& job, std::byte* scratch) {
  const auto room = history_scratch::at(scratch, job.universe, job.count_max);
  *job.out_size = history_changed_encode(base_of(job), job.history, job_in<uint32_t>(job), job_count(job), room,
                                         job_out<uint8_t>(job));
  tell_same(job);
}

void decode(const dr_params&, const dr_job& job, std::byte* scratch) {
  const uint64_t n = job_count(job);
  const auto room = history_scratch::at(scratch, job.universe, job.count_max);
  const history_fault found = history_changed_decode(base_of(job), job.history, job_in<uint8_t>(job), job_in_size(job),
                                                     n, room, job_out<uint32_t>(job));
  if (found == history_fault::none)
    *job.out_size = 4 * n;
  else
    fault(job, DR_E_CORRUPT, 0, n, sentence_of(found));
}

// (No cost: sizes alone would take as long as a payload.)
constexpr dr_ops operations = cpu_ops<need, encode, decode>();

}  // namespace

constinit const dr_codec index_history_codec = make_codec(
    "history", "of a patch in a chain: gaps by the base's magnitude and when a weight changed before", 16,
    DR_ROLE_INDEX, DR_EXACT | DR_TOTAL | DR_NEEDS_BASE | DR_NEEDS_HISTORY, &operations, {.forms = list_form});

}  // namespace dr
