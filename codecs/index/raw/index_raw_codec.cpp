// index=raw: the keys themselves (SPEC.md).
#include <cstring>

#include "codecs/builtin.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/bits.hpp"

namespace dr {
namespace {

bool need(const dr_params&, const dr_job& job, dr_need& need) {
  need.payload = 4 * job.count_max;
  need.tell = job.count_max;
  return true;
}

uint64_t cost(const dr_params&, const dr_job& job) { return 4 * job_count(job); }

void encode(const dr_params&, const dr_job& job, std::byte*) {
  *job.out_size = 4 * job_count(job);
  if (*job.out_size) std::memcpy(job.out, job.in, *job.out_size);
  tell_same(job);
}

// The pipeline validates order and duplicates: only it knows whether the keys carry an order.
void decode(const dr_params&, const dr_job& job, std::byte*) {
  const uint64_t n = job_count(job);
  for (uint64_t i = 0; i < n; ++i) {
    const auto key = load<uint32_t>(job_in<uint8_t>(job) + 4 * i);
    if (key >= job.universe) {
      fault(job, DR_E_CORRUPT, i, key, "a key is not below the universe");
      return;
    }
    job_out<uint32_t>(job)[i] = key;
  }
  *job.out_size = 4 * n;
}

constexpr dr_ops cpu = cpu_ops<need, encode, decode, cost>();

}  // namespace

constinit const dr_codec index_raw_codec =
    make_codec("raw", "the keys, in 32 bits", 1, DR_ROLE_INDEX, DR_EXACT | DR_CARRIES_ORDER | DR_FIXED_SIZE | DR_TOTAL,
               &cpu, {.forms = list_form, .cuda = &index_raw_cuda});

}  // namespace dr
