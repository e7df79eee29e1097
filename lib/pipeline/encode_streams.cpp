// The streams of the rows of a plan, each in one call of its codec.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "pipeline/encoding.hpp"
#include "split/blocks.hpp"

namespace dr {

dr_job encoding::job_of(size_t i, uint32_t stream, const void* in, uint64_t count_max, const uint64_t* count,
                        uint64_t in_max) {
  row_work& row = w.rows[i];
  dr_job job = shape_job({b.rows[i].universe, count_max, plan_of(i).dtype, plan_of(i).width});
  job.count = count;
  job.in = in;
  job.in_max = in_max;
  job.shared_key = row.shared_key;
  job.private_key = row.private_key;
  row.fault.stream = stream;
  job.fault = &row.fault;
  job.base = stream == DR_STREAM_INDEX ? row.base : row.based;
  job.history = stream == DR_STREAM_INDEX ? row.history : row.past;
  return job;
}

dr_job encoding::index_job(size_t i, const stage_list& list) {
  const row_work& row = w.rows[i];
  const bool blocks = list.block > 1;
  const uint64_t most = list.keys(b.rows[i].count_max);
  dr_job job = job_of(i, DR_STREAM_INDEX, blocks ? row.blocks : row.support, most,
                      blocks ? &row.block_count : &row.count, 4 * most);
  job.universe = list.keys(job.universe);
  return job;
}

dr_status encoding::encode_jobs(const stage_list& list) {
  if (w.jobs.n == 0) return DR_OK;
  const dr_status s = encode_chain(list, run, w.jobs);
  if (!s) return DR_OK;
  return fail(error, s,
              "%s broke its contract while encoding: it returned an error, or wrote more than its `need` says",
              list.front().codec->name);
}

void keep_support(encoding& e, uint32_t p) {
  e.each_coded(p, [&](size_t i) { e.w.rows[i].told = e.w.rows[i].count; });
}

dr_status encode_index(encoding& e, uint32_t p) {
  trace_span span = e.span("index");
  const wire_plan& plan = e.b.wire[p];
  e.each_coded(p, [&](size_t i) {
    row_work& row = e.w.rows[i];
    if (row.index_chosen) return;
    if (plan.index().whole()) {
      row.told = e.b.rows[i].universe;
      row.slots[section_index].size = 0;
      return;
    }
    dr_job job = e.index_job(i, plan.index());
    if (plan.carries_order) job.in = row.keys;
    if (plan.replaces_support()) {
      job.tell = row.tell;
      // (So many blocks have room as elements.)
      job.tell_capacity = row.support_max == e.b.rows[i].universe ? job.universe : row.support_max / plan.index().block;
      job.tell_count = &row.told;
    }
    e.add_job(i, job, section_index);
  });
  if (const dr_status s = e.encode_jobs(plan.index())) return s;
  for (size_t j = 0; j < e.w.jobs.n; ++j) {
    row_work& row = e.w.rows[e.w.selected[j]];
    span.bytes += row.slots[section_index].size;
    if (plan.replaces_support() && row.fault.code == DR_OK && row.told == 0)
      return fail(e.error, DR_E_INTERNAL,
                  "%s broke its contract while encoding: it reports no support of %" PRIu64 " indices",
                  plan.index().front().codec->name, row.count);
    if (plan.replaces_support() && row.fault.code == DR_OK)
      row.told = expand_blocks(row.tell, row.told, plan.index().block, e.b.rows[e.w.selected[j]].universe);
    if (!plan.replaces_support() || row.fault.code != DR_E_CAPACITY || row.slots[section_index].need.tell_suffices)
      continue;
    // More support than the plan allows: the keys go raw.
    row.fault = no_fault();
    row.told = row.count;
    e.w.wire[e.w.selected[j]].mode = mode_raw_index;
  }
  return DR_OK;
}

// Values at the decoded support: of the source if the plan re-gathers, else the selected ones, in order.
void regather(encoding& e, uint32_t p) {
  trace_span span = e.span("regather");
  e.each_coded(p, [&](size_t i) {
    if (!e.replaced(i)) return;
    const unit& u = e.b.units[e.b.rows[i].unit];
    const unit_work& o = e.w.units[e.b.rows[i].unit];
    const row_work& row = e.w.rows[i];
    const uint64_t bytes = e.row_bytes(i);
    span.bytes += row.told * bytes;
    if (u.whole) return;
    if (!u.method->regather) {
      const uint64_t common = std::min(row.told, row.count);
      if (common) std::memcpy(row.sent, row.kept, common * bytes);
      std::memset(static_cast<std::byte*>(row.sent) + common * bytes, 0, (row.told - common) * bytes);
    } else if (u.sparse) {
      gather_known(bytes, o.indices + row.source_first,
                   static_cast<const std::byte*>(o.source) + row.source_first * bytes, row.source_rows,
                   e.b.rows[i].first, row.tell, row.told, row.sent);
    } else {
      gather_source(e, i, row.tell, row.told, row.sent);
    }
  });
}

dr_status encode_value(encoding& e, uint32_t p) {
  trace_span span = e.span("value");
  const wire_plan& plan = e.b.wire[p];
  const bool lossy = plan.value().has(DR_NEEDS_FINITE);
  e.each_coded(p, [&](size_t i) {
    row_work& row = e.w.rows[i];
    if (row.value_chosen) return;
    row.fault.stream = DR_STREAM_VALUE;
    if (lossy && !check_finite(e, i)) return;
    dr_job job = e.job_of(i, DR_STREAM_VALUE, e.sent(i), row.support_max, &row.told, row.support_max * e.row_bytes(i));
    job.tell = row.order;
    job.tell_capacity = row.order ? row.support_max : 0;
    job.tell_count = &row.order_told;
    e.add_job(i, job, section_value);
  });
  if (const dr_status s = e.encode_jobs(plan.value())) return s;
  for (size_t j = 0; j < e.w.jobs.n; ++j) {
    row_work& row = e.w.rows[e.w.selected[j]];
    span.bytes += row.slots[section_value].size;
    if (!row.order || row.fault.code) continue;
    if (row.order_told != row.told)
      return fail(e.error, DR_E_INTERNAL, "%s reported an order of %" PRIu64 " for %" PRIu64 " values",
                  plan.value().front().codec->name, row.order_told, row.told);
    const uint32_t* support = e.told(e.w.selected[j]);
    for (uint64_t k = 0; k < row.told; ++k) row.keys[k] = support ? support[row.order[k]] : row.order[k];
  }
  return DR_OK;
}

// False, and a fault, if a value is not finite.
bool check_finite(encoding& e, size_t i) {
  row_work& row = e.w.rows[i];
  return with_value_type(e.plan_of(i).dtype, [&](auto type) {
    using T = decltype(type);
    const auto* v = static_cast<const typename T::bits*>(e.sent(i));
    uint32_t most = row.largest;
    if (!e.unit_of(i).whole) (void)select_at(cpu(), e.plan_of(i).dtype).survey(v, row.told * e.plan_of(i).width, most);
    if (most >= T::infinity) {
      uint64_t k = 0;
      while (magnitude<T>(v[k]) < T::infinity) ++k;
      const uint64_t at = e.b.rows[i].first + (e.told(i) ? e.told(i)[k / e.plan_of(i).width] : k / e.plan_of(i).width);
      row.fault = unfinite(at, v[k], magnitude<T>(v[k]) == T::infinity);
      return false;
    }
    return true;
  });
}

dr_status encode_order(encoding& e, uint32_t p) {
  trace_span span = e.span("order");
  e.each_coded(p, [&](size_t i) {
    row_work& row = e.w.rows[i];
    dr_job job = e.job_of(i, DR_STREAM_ORDER, row.order, row.support_max, &row.told, 4 * row.support_max);
    job.universe = row.told;
    e.add_job(i, job, section_order);
  });
  if (const dr_status s = e.encode_jobs(e.b.wire[p].order())) return s;
  for (size_t j = 0; j < e.w.jobs.n; ++j) span.bytes += e.w.jobs.slots[j]->size;
  return DR_OK;
}

}  // namespace dr
