// The choice of auto for a row: the index codec with the fewest bytes, and the value codec with the fewest bytes among
// those within the error.
#include <algorithm>
#include <bit>

#include "pipeline/encoding.hpp"

namespace dr {
namespace {

// Some codecs compute the size of a payload without writing it. The output of the others is used if they are chosen.
dr_status choose_index(const encoding& e, size_t i, std::span<const row_choice> choices, streams& coded,
                       chosen_row& out, uint32_t& chosen) {
  const batch_row& r = e.b.rows[i];
  coded_row& row = coded.rows[i];
  const dr_exec exec = e.run.exec();
  uint64_t least = ~uint64_t{0};
  for (uint32_t k = 0; k < choices.size() / r.value_choices; ++k) {
    const row_choice& choice = choices[k * r.value_choices];
    if (!choice.may_be_shortest) continue;
    const stage_list& list = e.b.wire[choice.plan].index();
    const stage& s = list.front();
    const dr_job job = e.index_job(i, list, row.fault);
    uint64_t bytes = 0;
    const bool writes = !s.codec->cpu->cost;
    if (writes) {
      stream_slot& slot = row.slots[section_index];
      slot.need = choice.need[section_index];
      coded.jobs.n = 0;
      coded.jobs.add(job, slot);
      if (const dr_status status = e.encode_jobs(list, coded.jobs)) return status;
      bytes = slot.size;
    } else {
      const dr_params params = s.params();
      if (s.codec->cpu->cost(&exec, &params, &job, 1, &bytes))
        return fail(e.error, DR_E_INTERNAL, "%s: cost returned an error", s.codec->name);
    }
    if (row.fault.code) return fail(e.error, DR_E_INTERNAL, "%s: a fault of its own choice", s.codec->name);
    if (bytes >= least) continue;
    least = bytes;
    chosen = k;
    out.index = writes;
  }
  return DR_OK;
}

// ‖s − ŝ‖ <= error · ‖s‖, by sums in a fixed order.
bool meets_error(const encoding& e, size_t i) {
  const void *const sent = e.w.selected.rows[i].values, *const seen = e.w.chosen[i].seen;
  const double error = e.unit_of(i).method->value_error;
  return with_value_type(e.plan_of(i).dtype, [&](auto type) {
    using T = decltype(type);
    const auto *v = static_cast<const typename T::bits*>(sent), *w = static_cast<const typename T::bits*>(seen);
    double norm = 0, rest = 0;
    for (uint64_t k = 0; k < e.w.coded.rows[i].count * e.plan_of(i).width; ++k) {
      const double x = double{T::to_f32(v[k])}, d = x - double{T::to_f32(w[k])};
      norm += x * x;
      rest += d * d;
    }
    return rest <= error * error * norm;
  });
}

// Tries all. A codec that refuses the values (such as values that are not finite) is skipped.
dr_status choose_value(const encoding& e, size_t i, std::span<const row_choice> choices, streams& coded,
                       chosen_row& out, uint32_t& chosen) {
  const batch_row& r = e.b.rows[i];
  coded_row& row = coded.rows[i];
  job_list& jobs = coded.jobs;
  const bool finite = e.unit_of(i).patches() || check_finite(e, i, row.fault);
  row.fault = no_fault();
  const uint64_t bytes = row.count * e.row_bytes(i), bytes_max = out.support_max * e.row_bytes(i);
  for (uint32_t k = 0; k < r.value_choices; ++k) {
    const stage_list& list = e.b.wire[choices[k].plan].value();
    if (!finite && list.has(DR_NEEDS_FINITE)) continue;
    dr_job job =
        e.job_of(i, DR_STREAM_VALUE, e.w.selected.rows[i].values, out.support_max, &row.count, bytes_max, row.fault);
    out.trial.need = choices[k].need[section_value];
    jobs.n = 0;
    jobs.add(job, out.trial);
    if (const dr_status s = e.encode_jobs(list, jobs)) return s;
    const bool refused = row.fault.code;
    row.fault = no_fault();
    if (refused || (out.value && out.trial.size >= row.slots[section_value].size)) continue;
    if (!list.exact()) {
      job = e.job_of(i, DR_STREAM_VALUE, nullptr, row.count, nullptr, 0, row.fault);
      job.out = out.seen;
      job.out_capacity = bytes;
      job.out_size = &out.seen_size;
      stream_slot back = out.trial;
      (void)list_needs(list, {r.universe, row.count, e.plan_of(i).dtype, e.plan_of(i).width}, back.need);
      jobs.n = 0;
      jobs.add(job, back);
      if (broken_contract broken; decode_chain(list, e.run, jobs, broken) || row.fault.code)
        return fail(e.error, DR_E_INTERNAL, "%s does not decode its own payload", list.front().codec->name);
      if (!meets_error(e, i)) continue;
    }
    std::swap(out.trial, row.slots[section_value]);
    out.value = true;
    chosen = k;
  }
  return DR_OK;
}

}  // namespace

dr_status choose(const encoding& e, streams& coded, results<chosen_row>& out) {
  for (size_t i = 0; i < e.b.rows.size(); ++i) {
    const batch_row& r = e.b.rows[i];
    if (r.choices.empty() || !e.is_coded(i)) continue;
    const trace_span span = e.span("choose");
    const size_t of_block = r.choices.size() / r.block_choices;
    std::span<const row_choice> choices = r.choices;
    if (const uint32_t block = e.w.selected.units[r.unit].block; r.block_choices > 1)
      choices = choices.subspan(of_block * static_cast<size_t>(std::countr_zero(block)), of_block);
    uint32_t index = 0, value = 0;
    if (r.value_choices > 1)
      if (const dr_status s = choose_value(e, i, choices, coded, out[i], value)) return s;
    if (of_block > r.value_choices)
      if (const dr_status s = choose_index(e, i, choices, coded, out[i], index)) return s;
    const row_choice& taken = choices[index * r.value_choices + value];
    out[i].plan = taken.plan;
    out[i].support_max = taken.bound.support;
    for (uint32_t s = 0; s < section_count; ++s) coded.rows[i].slots[s].need = taken.need[s];
  }
  return DR_OK;
}

}  // namespace dr
