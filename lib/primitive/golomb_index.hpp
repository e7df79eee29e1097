// The operations of an index codec over primitive/golomb.hpp, for whichever rule gives the divisor.
#pragma once

#include "deepreduce/codec.hpp"
#include "primitive/golomb_payload.hpp"

namespace dr {

template <const divisor_rule& rule>
struct golomb_index {
  static unsigned block_log2(const dr_params& p) { return static_cast<unsigned>(p.fields[0]); }

  static bool need(const dr_params& p, const dr_job& job, dr_need& need) {
    need.payload = golomb_bound(job.universe, job.count_max, block_log2(p));
    need.tell = job.count_max;
    return true;
  }

  static uint64_t cost(const dr_params& p, const dr_job& job) {
    return golomb_size(job_in<uint32_t>(job), job_count(job), job.universe, block_log2(p), rule);
  }

  static void encode(const dr_params& p, const dr_job& job, std::byte*) {
    *job.out_size =
        golomb_encode(job_in<uint32_t>(job), job_count(job), job.universe, block_log2(p), rule, job_out<uint8_t>(job));
    tell_same(job);
  }

  static void decode(const dr_params& p, const dr_job& job, std::byte*) {
    const uint64_t n = job_count(job);
    uint64_t where = 0;
    if (golomb_decode(job_in<uint8_t>(job), job_in_size(job), n, job.universe, block_log2(p), rule,
                      job_out<uint32_t>(job), &where))
      *job.out_size = 4 * n;
    else
      fault(job, DR_E_CORRUPT, where, n, "a block does not decode");
  }

  static constexpr dr_param params[] = {param_int("block", "log2 of the indices in a block", golomb_block_log2_min,
                                                  golomb_block_log2_max, golomb_block_log2)};
  static constexpr dr_field fields[] = {{"block", golomb_block_log2_min, golomb_block_log2_max, golomb_block_log2}};
  static constexpr dr_ops cpu = cpu_ops<need, encode, decode, cost>(fields_are_params<1>);

  static constexpr dr_codec codec(const char* name, const char* summary, uint32_t id, const dr_ops* cuda) {
    return make_codec(name, summary, id, DR_ROLE_INDEX, DR_EXACT, &cpu,
                      {.forms = list_form, .params = params, .fields = fields, .cuda = cuda});
  }
};

}  // namespace dr
