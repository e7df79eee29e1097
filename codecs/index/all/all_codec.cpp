// index=all: for dense quantisers (SPEC.md).
#include "codecs/builtin.hpp"
#include "deepreduce/codec.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 0;
  need.tell = job.universe;
  need.tell_suffices = 1;
  return true;
}

uint64_t cost(const dr_params&, const dr_job&) { return 0; }

void count_up(uint64_t n, uint32_t* out) {
  for (uint64_t i = 0; i < n; ++i) out[i] = static_cast<uint32_t>(i);
}

void encode(const dr_params&, const dr_job& job, std::byte*) {
  *job.out_size = 0;
  if (!job.tell) return;
  if (job.universe > job.tell_capacity) {
    fault(job, DR_E_CAPACITY, 0, job.universe, "all: universe exceeds the capacity of the support");
    return;
  }
  count_up(job.universe, job_tell(job));
  *job.tell_count = job.universe;
}

void decode(const dr_params&, const dr_job& job, std::byte*) {
  if (job.out_capacity / 4 != job.universe) {
    fault(job, DR_E_CORRUPT, 0, job.out_capacity / 4, "all: support differs from the universe");
    return;
  }
  count_up(job.universe, job_out<uint32_t>(job));
  *job.out_size = 4 * job.universe;
}

constexpr dr_ops ops = cpu_ops<need, encode, decode, cost>();

}  // namespace

constinit const dr_codec all_codec =
    make_codec("all", "every element, nothing is sent: for dense quantisers", 11, DR_ROLE_INDEX,
               DR_REPLACES_SUPPORT | DR_FIXED_SIZE, &ops, {.forms = list_form | all_form, .cuda = &all_cuda});

}  // namespace dr
