// The streams of the rows of a plan, one call of a codec for every stream.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "pipeline/encoding.hpp"
#include "split/blocks.hpp"

namespace dr {

dr_job encoding::job_of(size_t row, uint32_t stream, const void* in, uint64_t count_max, const uint64_t* count,
                        uint64_t in_max, dr_fault& fault) const {
  dr_job job = shape_job({b.rows[row].universe, count_max, plan_of(row).dtype, plan_of(row).width});
  job.count = count;
  job.in = in;
  job.in_max = in_max;
  job.shared_key = w.keys[row].shared;
  job.private_key = w.keys[row].own;
  fault.stream = stream;
  job.fault = &fault;
  if (!unit_of(row).patches()) return job;
  const patched_row& patch = w.selected.patched_rows[row];
  job.base = stream == DR_STREAM_INDEX ? patch.base : patch.based;
  job.history = stream == DR_STREAM_INDEX ? patch.history : patch.past;
  return job;
}

dr_job encoding::index_job(size_t row, const stage_list& list, dr_fault& fault) const {
  const selected_row& selected = w.selected.rows[row];
  const bool blocks = list.block > 1;
  const uint64_t count_max = list.keys(b.rows[row].count_max);
  dr_job job = job_of(row, DR_STREAM_INDEX, blocks ? selected.blocks : selected.support, count_max,
                      blocks ? &selected.block_count : &selected.count, 4 * count_max, fault);
  job.universe = list.keys(job.universe);
  return job;
}

dr_status encoding::encode_jobs(const stage_list& list, const job_list& jobs) const {
  if (jobs.n == 0) return DR_OK;
  broken_contract broken;
  return encode_chain(list, run, jobs, broken) ? fail(error, broken, "encoding") : DR_OK;
}

// The support that a plug-in reports is checked: it becomes memory accesses.
dr_status encoding::check_reported(const dr_codec& codec, const dr_job& job, const uint32_t* support,
                                   uint64_t count) const {
  if (count > job.tell_capacity)
    return fail(error, DR_E_INTERNAL,
                "%s broke its contract while encoding: it reports a support of %" PRIu64 " in room for %" PRIu64,
                codec.name, count, job.tell_capacity);
  for (uint64_t k = 0; k < count; ++k)
    if (support[k] >= job.universe || (k && support[k - 1] >= support[k]))
      return fail(error, DR_E_INTERNAL,
                  "%s broke its contract while encoding: index %" PRIu64
                  " of the support that it reports is %u, not "
                  "above the one before it and below %" PRIu64,
                  codec.name, k, support[k], job.universe);
  return DR_OK;
}

void begin_streams(const encoding& e, streams& out) {
  for (size_t i = 0; i < e.b.rows.size(); ++i) {
    coded_row& row = out.rows[i];
    row.fault = no_fault();
    row.count = e.w.selected.rows[i].count;
    row.raw_index = false;
  }
}

dr_status encode_index(const encoding& e, uint32_t p, streams& out) {
  trace_span span = e.span("index");
  const wire_plan& plan = e.b.wire[p];
  e.each_coded(p, out.jobs, [&](size_t i) {
    coded_row& row = out.rows[i];
    const chosen_row& chosen = e.w.chosen[i];
    if (chosen.index) return;
    if (plan.index().whole()) {
      row.count = e.b.rows[i].universe;
      row.slots[section_index].size = 0;
      return;
    }
    dr_job job = e.index_job(i, plan.index(), row.fault);
    if (plan.carries_order) job.in = row.keys;
    if (plan.replaces_support()) {
      job.tell = row.support;
      // (So many blocks fit after they are expanded to elements.)
      job.tell_capacity =
          chosen.support_max == e.b.rows[i].universe ? job.universe : chosen.support_max / plan.index().block;
      job.tell_count = &row.count;
    }
    out.add(i, job, section_index);
  });
  if (const dr_status s = e.encode_jobs(plan.index(), out.jobs)) return s;
  for (size_t j = 0; j < out.jobs.n; ++j) {
    const uint32_t i = out.job_rows[j];
    coded_row& row = out.rows[i];
    span.bytes += row.slots[section_index].size;
    if (!plan.replaces_support()) continue;
    const uint64_t selected = e.w.selected.rows[i].count;
    const dr_codec& codec = *plan.index().front().codec;
    if (row.fault.code == DR_OK && is_private(codec))
      if (const dr_status s = e.check_reported(codec, out.jobs.jobs[j], row.support, row.count)) return s;
    if (row.fault.code == DR_OK && row.count == 0)
      return fail(e.error, DR_E_INTERNAL,
                  "%s broke its contract while encoding: it reports no support of %" PRIu64 " indices", codec.name,
                  selected);
    if (row.fault.code == DR_OK)
      row.count = expand_blocks(row.support, row.count, plan.index().block, e.b.rows[i].universe);
    if (row.fault.code != DR_E_CAPACITY || row.slots[section_index].need.tell_suffices) continue;
    // The support exceeds the plan's bound: raw keys are sent.
    row.fault = no_fault();
    row.count = selected;
    row.raw_index = true;
  }
  return DR_OK;
}

// Gathers the values at the reported support: from the source if the plan re-gathers, else the selected ones, in order.
dr_status regather(const encoding& e, uint32_t p, streams& out) {
  trace_span span = e.span("regather");
  e.each_coded(p, out.jobs, [&](size_t i) {
    if (!e.replaced(i)) return;
    const unit& u = e.unit_of(i);
    const selected_row& selected = e.w.selected.rows[i];
    const coded_row& row = out.rows[i];
    const uint64_t bytes = e.row_bytes(i);
    span.bytes += row.count * bytes;
    if (u.whole) return;
    if (!u.method->regather) {
      const uint64_t common = std::min(row.count, selected.count);
      if (common) std::memcpy(row.values, selected.values, common * bytes);
      std::memset(static_cast<std::byte*>(row.values) + common * bytes, 0, (row.count - common) * bytes);
    } else if (u.sparse) {
      const unit_source& source = e.w.selected.sources[e.b.rows[i].unit];
      const auto [first, rows] = e.w.selected.source_rows[i];
      gather_known(bytes, source.indices + first, static_cast<const std::byte*>(source.values) + first * bytes, rows,
                   e.b.rows[i].first, row.support, row.count, row.values);
    } else {
      gather_source(e, i, row.support, row.count, row.values);
    }
  });
  return DR_OK;
}

dr_status encode_value(const encoding& e, uint32_t p, streams& out) {
  trace_span span = e.span("value");
  const wire_plan& plan = e.b.wire[p];
  const bool lossy = plan.value().has(DR_NEEDS_FINITE);
  e.each_coded(p, out.jobs, [&](size_t i) {
    coded_row& row = out.rows[i];
    const chosen_row& chosen = e.w.chosen[i];
    if (chosen.value) return;
    row.fault.stream = DR_STREAM_VALUE;
    if (lossy && !check_finite(e, i, row.fault)) return;
    dr_job job = e.job_of(i, DR_STREAM_VALUE, e.sent(i), chosen.support_max, &row.count,
                          chosen.support_max * e.row_bytes(i), row.fault);
    job.tell = row.order;
    job.tell_capacity = row.order ? chosen.support_max : 0;
    job.tell_count = &row.order_count;
    out.add(i, job, section_value);
  });
  if (const dr_status s = e.encode_jobs(plan.value(), out.jobs)) return s;
  for (size_t j = 0; j < out.jobs.n; ++j) span.bytes += out.jobs.slots[j]->size;
  return DR_OK;
}

dr_status reorder_support(const encoding& e, uint32_t p, streams& out) {
  const wire_plan& plan = e.b.wire[p];
  if (!plan.value().has(DR_REORDERS)) return DR_OK;
  dr_status status = DR_OK;
  e.each_coded(p, out.jobs, [&](size_t i) {
    coded_row& row = out.rows[i];
    if (row.order_count != row.count && !status)
      status = fail(e.error, DR_E_INTERNAL, "%s reported an order of %" PRIu64 " for %" PRIu64 " values",
                    plan.value().front().codec->name, row.order_count, row.count);
    const uint32_t* const support = e.support(i);
    for (uint64_t k = 0; k < row.count && !status; ++k) row.keys[k] = support ? support[row.order[k]] : row.order[k];
  });
  return status;
}

// False, and a fault, if a value is not finite.
bool check_finite(const encoding& e, size_t i, dr_fault& out) {
  const wire_plan& plan = e.plan_of(i);
  return with_value_type(plan.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(e.sent(i));
    uint32_t largest = e.w.selected.rows[i].largest;
    if (!e.unit_of(i).whole)
      (void)select_at(cpu(), plan.dtype).survey(v, e.w.coded.rows[i].count * plan.width, largest);
    if (largest < T::infinity) return true;
    uint64_t k = 0;
    while (magnitude<T>(v[k]) < T::infinity) ++k;
    const uint64_t at = e.support(i) ? e.support(i)[k / plan.width] : k / plan.width;
    const unit& u = e.unit_of(i);
    const uint64_t where = e.b.rows[i].first + at;
    out = u.tiles ? unfinite_coefficient(e.given[u.first_tensor], where, v[k])
                  : unfinite(*u.method, where, v[k], magnitude<T>(v[k]) == T::infinity);
    return false;
  });
}

dr_status encode_order(const encoding& e, uint32_t p, streams& out) {
  trace_span span = e.span("order");
  e.each_coded(p, out.jobs, [&](size_t i) {
    coded_row& row = out.rows[i];
    const uint64_t support_max = e.w.chosen[i].support_max;
    dr_job job = e.job_of(i, DR_STREAM_ORDER, row.order, support_max, &row.count, 4 * support_max, row.fault);
    job.universe = row.count;
    out.add(i, job, section_order);
  });
  if (const dr_status s = e.encode_jobs(e.b.wire[p].order(), out.jobs)) return s;
  for (size_t j = 0; j < out.jobs.n; ++j) span.bytes += out.jobs.slots[j]->size;
  return DR_OK;
}

}  // namespace dr
