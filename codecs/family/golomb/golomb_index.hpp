// The operations of an index codec over golomb.hpp, for any rule of the divisor.
#pragma once

#include <algorithm>
#include <cstring>

#include "codecs/family/golomb/golomb_payload.hpp"
#include "deepreduce/codec.hpp"
#include "primitive/block_parts.hpp"

namespace dr {

template <const divisor_rule& rule>
struct golomb_index {
  static unsigned block_log2(const dr_params& p) { return static_cast<unsigned>(p.fields[0]); }

  static constexpr uint64_t part = golomb_payload::part;
  static bool large(const dr_job& job) { return job.count_max >= 32 * 4096; }

  static bool need(const dr_params& p, const dr_job& job, dr_need& need) {
    need.payload = golomb_bound(job.universe, job.count_max, block_log2(p));
    need.tell = job.count_max;
    if (large(job))
      need.encode_scratch = golomb_bound(job.universe, std::min(job.count_max, part << block_log2(p)), block_log2(p));
    return true;
  }

  static constexpr bool may_adapt = rule.may_cluster;
  static divisor_rule rule_of(const dr_params& p) { return may_adapt && p.fields[may_adapt] ? adaptive_rule : rule; }

  static golomb_payload payload(const dr_params& p, const dr_job& job) {
    return {job_count(job), job.universe, block_log2(p), rule_of(p)};
  }

  static uint64_t cost(const dr_params& p, const dr_job& job) {
    return golomb_size(payload(p, job), job_in<uint32_t>(job));
  }

  static void encode(const dr_params& p, const dr_job& job, std::byte* scratch, const dr_exec* exec) {
    const golomb_payload all = payload(p, job);
    auto* const out = job_out<uint8_t>(job);
    if (!exec || all.blocks() <= part)
      *job.out_size = golomb_encode(all, job_in<uint32_t>(job), out);
    else
      *job.out_size = encode_parts(all, job_in<uint32_t>(job), out, scratch, *exec);
    tell_same(job);
  }

  static void decode(const dr_params& p, const dr_job& job, std::byte*, const dr_exec* exec) {
    const golomb_payload all = payload(p, job);
    uint64_t where = 0;
    const bool sound = exec && all.blocks() > part
                           ? decode_parts(all, job, &where, *exec)
                           : golomb_decode(all, job_in<uint8_t>(job), job_in_size(job), job_out<uint32_t>(job), &where);
    if (sound)
      *job.out_size = 4 * all.n;
    else
      fault(job, DR_E_CORRUPT, where, all.n, "invalid block");
  }

  static constexpr dr_param params[] = {
      param_int("block", "log2 of the indices in a block", golomb_block_log2_min, golomb_block_log2_max,
                golomb_block_log2),
      param_int("adaptive", "1: one divisor per 32 indices of a block, if that is shorter", 0, 1, 0)};
  static constexpr dr_field fields[] = {
      wire_field("block", golomb_block_log2_min, golomb_block_log2_max, golomb_block_log2),
      wire_field("adaptive", 0, 1, 0)};
  static constexpr size_t field_count = may_adapt ? 2 : 1;
  static constexpr dr_ops cpu{sizeof(dr_ops),  fields_are_params<field_count>,  each_need<need>,
                              each_cost<cost>, each_job_or_part<encode, large>, each_job_or_part<decode, large>,
                              {0, 0}};

  static constexpr dr_codec codec(const char* name, const char* summary, uint32_t id, const dr_ops* cuda) {
    return make_codec(name, summary, id, DR_ROLE_INDEX, DR_EXACT | DR_TOTAL, &cpu,
                      {.forms = list_form,
                       .params = std::span(params).first(field_count),
                       .fields = std::span(fields).first(field_count),
                       .cuda = cuda});
  }
};

}  // namespace dr
