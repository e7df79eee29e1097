// Feedback: decodes the payload itself, and subtracts the result from the residual. A failure before that takes the
// gradient out of the residuals again, and nothing after can fail.
#include <algorithm>
#include <cstring>

#include "feedback/residual.hpp"
#include "pipeline/encoding.hpp"

namespace dr {
namespace {

dr_status decode_sent(encoding& e, uint32_t p) {
  const stage_list& list = e.b.wire[p].value();
  e.each_coded(p, [&](size_t i) {
    row_work& row = e.w.rows[i];
    if (!row.decoded || e.w.wire[i].mode == mode_dense) return;
    dr_job job = e.job_of(i, DR_STREAM_VALUE, nullptr, row.told, nullptr, 0);
    job.out = row.decoded;
    job.out_capacity = row.told * e.row_bytes(i);
    job.out_size = &row.decoded_size;
    row.decode_slot.data = row.slots[section_value].data;
    row.decode_slot.size = row.slots[section_value].size;
    // The bounds of the encoded streams, for the actual number of values: exact sizes depend on it.
    (void)list_needs(list, {e.b.rows[i].universe, row.told, e.plan_of(i).dtype, e.plan_of(i).width},
                     row.decode_slot.need);
    e.w.jobs.add(job, row.decode_slot);
  });
  if (e.w.jobs.n == 0) return DR_OK;
  if (decode_chain(list, e.run, e.w.jobs))
    return fail(e.error, DR_E_INTERNAL, "%s broke its contract while decoding: it returned an error",
                list.front().codec->name);
  for (size_t j = 0; j < e.w.jobs.n; ++j)
    if (e.w.jobs.jobs[j].fault->code)
      return fail(e.error, DR_E_INTERNAL, "%s does not decode its own payload: %s", list.front().codec->name,
                  e.w.jobs.jobs[j].fault->message);
  return DR_OK;
}

// The values that a row sends, decoded.
struct sent_values {
  const uint32_t* support;
  const void* values;
  uint64_t count;
  bool ascending;
};
sent_values sent_of(const encoding& e, size_t i) {
  const row_work& row = e.w.rows[i];
  if (e.w.wire[i].mode == mode_dense) return {row.support, row.kept, row.count, true};
  if (row.decoded) return {row.order ? row.keys : e.told(i), row.decoded, row.told, !row.order};
  return {e.told(i), e.sent(i), row.told, true};
}

// Subtracts the sent values of a piece from its state.
void subtract(encoding& e, const unit& u, const unit_work& o, uint32_t p) {
  const select_piece& piece = o.pieces[p];
  float* const m = o.sums[p].m;
  const sent_values s = sent_of(e, u.first_row + piece.range);
  const auto* const values = static_cast<const std::byte*>(s.values);
  if (!s.ascending) {
    for (uint64_t i = 0; i < s.count; ++i)
      if (const uint64_t at = uint64_t{s.support[i]} - piece.position; at < piece.n)
        subtract_sent(u.dtype, nullptr, values + i * value_size(u.dtype), 1, 1, m + at);
    return;
  }
  const uint32_t* const end = s.support + s.count;
  const uint32_t* const from = std::lower_bound(s.support, end, piece.position);
  struct job {
    const unit* u;
    const uint32_t* support;
    const std::byte* values;
    uint64_t count;
    float* m;
    uint32_t position, taken_from;
  } job{&u,
        from,
        values + (from - s.support) * value_size(u.dtype),
        static_cast<uint64_t>(std::lower_bound(from, end, piece.position + piece.n) - from),
        m,
        piece.position,
        o.taken_from};
  static constexpr uint64_t block = 16384;
  const auto one = [](void* arg, size_t item, size_t) {
    const auto& j = *static_cast<const struct job*>(arg);
    const uint64_t first = item * block, n = std::min(block, j.count - first);
    if (j.taken_from)
      clear_sent(j.support + first, j.values + 4 * first, n, j.taken_from, j.m, j.position);
    else
      subtract_sent(j.u->dtype, j.support + first, j.values + first * value_size(j.u->dtype), n, 1, j.m, j.position);
  };
  e.workers.run(static_cast<size_t>(ceil_div(job.count, block)), one, &job);
}

// Returns the bytes of the states.
uint64_t store_states(encoding& e, size_t i) {
  const unit& u = e.b.units[i];
  const unit_work& o = e.w.units[i];
  uint64_t bytes = 0;
  for (uint32_t tensor = u.first_tensor; tensor < u.first_tensor + u.tensors; ++tensor) {
    const uint64_t elements = e.b.shapes[tensor].elements();
    const residual_state head{residual_state::magic_value, residual_state::version_value, elements};
    std::memcpy(e.tensors[tensor].state, &head, sizeof head);
    bytes += residual_size(elements);
  }
  if (!o.acc) {
    for (uint32_t p = 0; p < o.piece_count; ++p) subtract(e, u, o, p);
    return bytes;
  }
  for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k) {
    const sent_values s = sent_of(e, k);
    subtract_sent(u.dtype, s.support, s.values, s.count, u.width, o.acc + e.b.rows[k].first * u.width);
  }
  std::memcpy(residual_of(e.tensors[u.first_tensor].state), o.acc, 4 * u.universe * u.width);
  return bytes;
}

}  // namespace

dr_status keep_feedback(encoding& e) {
  const auto keeps = [](const unit& u) { return u.method->keeps_feedback(); };
  if (std::none_of(e.b.units.begin(), e.b.units.end(), keeps)) return DR_OK;
  trace_span span = e.span("feedback");
  for (uint32_t p = 0; p < e.b.wire.size(); ++p)
    if (const dr_status s = decode_sent(e, p)) return s;
  for (size_t i = 0; i < e.b.units.size(); ++i)
    if (keeps(e.b.units[i])) span.bytes += store_states(e, i);
  return DR_OK;
}

void roll_back(encoding& e) {
  for (size_t i = 0; i < e.b.units.size(); ++i) {
    const unit_work& o = e.w.units[i];
    for (uint32_t p = 0; o.advanced && p < o.piece_count; ++p)
      if (o.pieces[p].n && o.sums[p].undo) std::memcpy(o.sums[p].m, o.sums[p].undo, 4 * o.pieces[p].n);
  }
}

}  // namespace dr
