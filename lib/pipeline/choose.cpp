// The choice of auto for a row: the index codec with the fewest bytes, and of the value codecs within the error the
// smallest.
#include <algorithm>
#include <bit>

#include "pipeline/encoding.hpp"

namespace dr {
namespace {

// Some codecs know the size of a payload without writing it. What others write is theirs if they are chosen.
dr_status choose_index(encoding& e, size_t i, std::span<const row_choice> choices, uint32_t& chosen) {
  const batch_row& r = e.b.rows[i];
  row_work& row = e.w.rows[i];
  const dr_exec exec = e.run.exec();
  uint64_t least = ~uint64_t{0};
  for (uint32_t k = 0; k < choices.size() / r.value_choices; ++k) {
    const row_choice& choice = choices[k * r.value_choices];
    if (!choice.may_be_shortest) continue;
    const stage_list& list = e.b.wire[choice.plan].index();
    const stage& s = list.front();
    const dr_job job = e.index_job(i, list);
    uint64_t bytes = 0;
    const bool writes = !s.codec->cpu->cost;
    if (writes) {
      stream_slot& slot = row.slots[section_index];
      slot.need = choice.need[section_index];
      e.w.jobs.n = 0;
      e.w.jobs.add(job, slot);
      if (const dr_status status = e.encode_jobs(list)) return status;
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
    row.index_chosen = writes;
  }
  return DR_OK;
}

// ‖s − ŝ‖ <= error · ‖s‖, in sums of one order.
bool meets_error(const encoding& e, size_t i) {
  const row_work& row = e.w.rows[i];
  const double error = e.b.units[e.b.rows[i].unit].method->value_error;
  return with_value_type(e.plan_of(i).dtype, [&](auto type) {
    using T = decltype(type);
    const auto *v = static_cast<const typename T::bits*>(row.kept), *w = static_cast<const typename T::bits*>(row.seen);
    double norm = 0, rest = 0;
    for (uint64_t k = 0; k < row.told * e.plan_of(i).width; ++k) {
      const double x = double{T::to_f32(v[k])}, d = x - double{T::to_f32(w[k])};
      norm += x * x;
      rest += d * d;
    }
    return rest <= error * error * norm;
  });
}

// Each is tried. One that a row's values are nothing for (they are not finite, say) is passed over.
dr_status choose_value(encoding& e, size_t i, std::span<const row_choice> choices, uint32_t& chosen) {
  const batch_row& r = e.b.rows[i];
  row_work& row = e.w.rows[i];
  const bool finite = e.unit_of(i).patches() || check_finite(e, i);
  row.fault = no_fault();
  const uint64_t bytes = row.told * e.row_bytes(i);
  for (uint32_t k = 0; k < r.value_choices; ++k) {
    const stage_list& list = e.b.wire[choices[k].plan].value();
    if (!finite && list.has(DR_NEEDS_FINITE)) continue;
    dr_job job = e.job_of(i, DR_STREAM_VALUE, row.kept, row.support_max, &row.told, row.support_max * e.row_bytes(i));
    row.trial.need = choices[k].need[section_value];
    e.w.jobs.n = 0;
    e.w.jobs.add(job, row.trial);
    if (const dr_status s = e.encode_jobs(list)) return s;
    const bool refused = row.fault.code;
    row.fault = no_fault();
    if (refused || (row.value_chosen && row.trial.size >= row.slots[section_value].size)) continue;
    if (!list.exact()) {
      job = e.job_of(i, DR_STREAM_VALUE, nullptr, row.told, nullptr, 0);
      job.out = row.seen;
      job.out_capacity = bytes;
      job.out_size = &row.decoded_size;
      stream_slot back = row.trial;
      (void)list_needs(list, {r.universe, row.told, e.plan_of(i).dtype, e.plan_of(i).width}, back.need);
      e.w.jobs.n = 0;
      e.w.jobs.add(job, back);
      if (decode_chain(list, e.run, e.w.jobs) || row.fault.code)
        return fail(e.error, DR_E_INTERNAL, "%s does not decode its own payload", list.front().codec->name);
      if (!meets_error(e, i)) continue;
    }
    std::swap(row.trial, row.slots[section_value]);
    row.value_chosen = true;
    chosen = k;
  }
  return DR_OK;
}

}  // namespace

dr_status choose(encoding& e) {
  for (size_t i = 0; i < e.b.rows.size(); ++i) {
    const batch_row& r = e.b.rows[i];
    row_work& row = e.w.rows[i];
    if (r.choices.empty() || !e.is_coded(i)) continue;
    const trace_span span = e.span("choose");
    row.told = row.count;
    const size_t each = r.choices.size() / r.block_choices;
    std::span<const row_choice> choices = r.choices;
    if (r.block_choices > 1)
      choices = choices.subspan(each * static_cast<size_t>(std::countr_zero(e.w.units[r.unit].block)), each);
    uint32_t index = 0, value = 0;
    if (r.value_choices > 1)
      if (const dr_status s = choose_value(e, i, choices, value)) return s;
    if (each > r.value_choices)
      if (const dr_status s = choose_index(e, i, choices, index)) return s;
    const row_choice& taken = choices[index * r.value_choices + value];
    row.plan = e.w.wire[i].plan = taken.plan;
    row.support_max = taken.bound.support;
    for (uint32_t s = 0; s < section_count; ++s) row.slots[s].need = taken.need[s];
  }
  return DR_OK;
}

}  // namespace dr
