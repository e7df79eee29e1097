// Feedback: decodes the payload itself, and subtracts the result from the residual. An earlier failure restores the
// residuals; after that nothing can fail.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "feedback/residual.hpp"
#include "pipeline/encoding.hpp"

namespace dr {
namespace {

dr_status decode_sent(const encoding& e, uint32_t p, fed_back& out) {
  const stage_list& list = e.b.wire[p].value();
  job_list& jobs = out.jobs;
  e.each_coded(p, jobs, [&](size_t i) {
    fed_back_row& row = out.rows[i];
    const wire_row& wire = e.w.wire.rows[i];
    const coded_row& coded = e.w.coded.rows[i];
    if (!row.decoded || wire.mode == mode_dense || wire.count == 0) return;
    row.fault = no_fault();
    dr_job job = e.job_of(i, DR_STREAM_VALUE, nullptr, coded.count, nullptr, 0, row.fault);
    job.out = row.decoded;
    job.out_capacity = coded.count * e.row_bytes(i);
    job.out_size = &row.size;
    row.slot.data = coded.slots[section_value].data;
    row.slot.size = coded.slots[section_value].size;
    // The bounds of the encoded streams for the actual number of values, on which exact sizes depend.
    (void)list_needs(list, {e.b.rows[i].universe, coded.count, e.plan_of(i).dtype, e.plan_of(i).width}, row.slot.need);
    jobs.add(job, row.slot);
  });
  if (jobs.n == 0) return DR_OK;
  if (broken_contract broken; decode_chain(list, e.run, jobs, broken)) return fail(e.error, broken, "decoding");
  for (size_t j = 0; j < jobs.n; ++j)
    if (jobs.jobs[j].fault->code)
      return fail(e.error, DR_E_INTERNAL, "%s does not decode its own payload: %s", list.front().codec->name,
                  jobs.jobs[j].fault->message ? jobs.jobs[j].fault->message : status_name(jobs.jobs[j].fault->code));
  return DR_OK;
}

// The sent values of a row, decoded.
struct sent_values {
  const uint32_t* support;
  const void* values;
  uint64_t count;
  bool ascending;
};
sent_values sent_of(const encoding& e, size_t i) {
  const wire_row& wire = e.w.wire.rows[i];
  const selected_row& selected = e.w.selected.rows[i];
  const coded_row& coded = e.w.coded.rows[i];
  if (wire.mode == mode_dense)
    return {selected.support, selected.values, e.unit_of(i).whole ? e.b.rows[i].universe : selected.count, true};
  const uint64_t count = wire.count ? coded.count : 0;
  if (const void* const decoded = e.w.feedback.rows[i].decoded)
    return {coded.order ? coded.keys : e.support(i), decoded, count, !coded.order};
  return {e.support(i), e.sent(i), count, true};
}
// Whether a row was left out of the frame, so that all of it remains in the state.
bool is_left_out(const encoding& e, size_t i) { return e.w.selected.rows[i].count && !e.w.wire.rows[i].count; }

// Updates a state after sending: subtracts the sent values from m, and sets u, if it is masked, to 0 where elements
// were sent.
struct state_update {
  uint32_t dtype, width;
  float *m, *u;                 // u: nullptr, or to be masked
  std::atomic<bool>& unfinite;  // set if the rest of a sent value is not finite

  state_update at(uint64_t row) const {
    return {dtype, width, m + row * width, u ? u + row * width : nullptr, unfinite};
  }
  // support nullptr: the first `count` rows
  void subtract(const uint32_t* support, const void* values, uint64_t count, uint32_t first) const {
    if (subtract_sent(dtype, support, values, count, width, m, first)) unfinite = true;
    if (u) mask_sent(support, count, width, u, first);
  }
  // For f32 values that are sent exactly.
  void clear(const uint32_t* support, const void* values, uint64_t count, uint32_t cleared_from, uint32_t first) const {
    if (clear_sent(support, values, count, cleared_from, m, first)) unfinite = true;
  }
  // For the values of a dense row: zeros are not sent.
  void subtract_dense(const void* values, uint64_t rows) const {
    const uint64_t bytes = uint64_t{width} * value_size(dtype);
    each_nonzero_run(dtype, values, rows, width, [&](uint64_t first, uint64_t n) {
      at(first).subtract(nullptr, static_cast<const std::byte*>(values) + first * bytes, n, 0);
    });
  }
};
bool masks(const unit& u) { return u.method->feedback_rule().masks(); }

// Subtracts values that do not ascend by position from the states of a row's pieces.
void subtract_unordered(const unit& u, const select_piece* first, const unit_sums& sums,
                        std::span<const select_piece> pieces, const sent_values& s, std::atomic<bool>& unfinite) {
  const auto* const values = static_cast<const std::byte*>(s.values);
  for (uint64_t i = 0; i < s.count; ++i) {
    const select_piece& piece =
        *std::prev(std::upper_bound(pieces.begin(), pieces.end(), s.support[i],
                                    [](uint32_t at, const select_piece& p) { return at < p.position; }));
    const summed& sum = sums.pieces[&piece - first];
    const state_update state{u.dtype, 1, sum.m(), masks(u) ? sum.to.u : nullptr, unfinite};
    state.at(s.support[i] - piece.position).subtract(nullptr, values + i * value_size(u.dtype), 1, 0);
  }
}

// Subtracts the sent values of a piece from its state.
void subtract(const encoding& e, size_t i, uint32_t p, std::atomic<bool>& unfinite) {
  const unit& u = e.b.units[i];
  const unit_source& source = e.w.selected.sources[i];
  const unit_sums& sums = e.w.selected.sums[i];
  const select_piece& piece = source.pieces[p];
  float* const m = sums.pieces[p].m();
  const state_update state{u.dtype, 1, m, masks(u) ? sums.pieces[p].to.u : nullptr, unfinite};
  const sent_values s = sent_of(e, u.first_row + piece.range);
  const auto* const values = static_cast<const std::byte*>(s.values);
  const uint64_t size = value_size(u.dtype);
  if (!s.ascending) {
    const std::span<const select_piece> pieces = pieces_of(e, u.first_row + piece.range);
    if (&piece == pieces.data())
      subtract_unordered(u, source.pieces, sums, pieces, s, unfinite);  // of the row's other pieces, too
    return;
  }
  // The part of the sent values that belongs to the piece.
  const auto until = [&](uint64_t position) {
    if (!s.support) return std::min(position, s.count);
    return static_cast<uint64_t>(std::lower_bound(s.support, s.support + s.count, position) - s.support);
  };
  const uint64_t from = until(piece.position), count = until(piece.position + piece.n) - from;
  if (!s.support && e.w.wire.rows[u.first_row + piece.range].mode == mode_dense)
    return state.subtract_dense(values + from * size, count);
  struct job {
    const state_update* state;
    const uint32_t* support;
    const std::byte* values;
    uint64_t count;
    uint32_t position, cleared_from;
  } job{&state,         s.support ? s.support + from : nullptr, values + from * size, count,
        piece.position, e.w.selected.units[i].cleared_from};
  static constexpr uint64_t block = 16384;
  const auto one = [](void* arg, size_t item, size_t) {
    const auto& j = *static_cast<const struct job*>(arg);
    const uint64_t first = item * block, n = std::min(block, j.count - first);
    if (!j.support)
      j.state->at(first).subtract(nullptr, j.values + first * value_size(j.state->dtype), n, 0);
    else if (j.cleared_from)
      j.state->clear(j.support + first, j.values + 4 * first, n, j.cleared_from, j.position);
    else
      j.state->subtract(j.support + first, j.values + first * value_size(j.state->dtype), n, j.position);
  };
  e.workers.run(static_cast<size_t>(ceil_div(job.count, block)), one, &job);
}

// Returns the bytes of the states.
uint64_t store_states(const encoding& e, size_t i) {
  const unit& u = e.b.units[i];
  const unit_source& source = e.w.selected.sources[i];
  const unit_sums& sums = e.w.selected.sums[i];
  const bound_feedback rule = u.method->feedback_rule();
  const feedback_kind& kind = rule.kind;
  uint64_t bytes = 0;
  for (uint32_t tensor = u.first_tensor; tensor < u.first_tensor + u.tensors; ++tensor) {
    const uint64_t elements = e.b.shapes[tensor].elements();
    const residual_state head = head_of(kind, elements);
    void* const state = e.tensors[tensor].state;
    std::memcpy(state, &head, sizeof head);
    if (kind.rate) set_rate(state, elements, rule.rate());
    bytes += state_size_of(kind, elements);
  }
  std::atomic<bool> unfinite = !kind.keeps_residual || sums.unfinite;
  for (uint32_t k = u.first_row; k < u.first_row + u.rows; ++k)
    if (is_left_out(e, k)) unfinite = true;  // possibly: without sent values it is not known
  const bool whole_velocity = !masks(u);
  if (!sums.acc) {
    for (uint32_t p = 0; p < source.piece_count && kind.keeps_residual; ++p) subtract(e, i, p, unfinite);
    for (uint32_t p = 0; p < source.piece_count; ++p) {
      if (unfinite) drop_unfinite(sums.pieces[p].m(), source.pieces[p].n);
      if (kind.is_velocity() && (unfinite || whole_velocity)) drop_unfinite(sums.pieces[p].to.u, source.pieces[p].n);
    }
    return bytes;
  }
  const uint64_t elements = u.universe * u.width;
  void* const state = e.tensors[u.first_tensor].state;
  for (uint32_t k = u.first_row; kind.keeps_residual && k < u.first_row + u.rows; ++k) {
    const sent_values s = sent_of(e, k);
    const uint64_t first = e.b.rows[k].first * u.width;
    const state_update state{u.dtype, u.width, sums.acc + first, masks(u) ? sums.acc_u + first : nullptr, unfinite};
    if (!s.support && e.w.wire.rows[k].mode == mode_dense)
      state.subtract_dense(s.values, s.count);
    else
      state.subtract(s.support, s.values, s.count, 0);
  }
  if (unfinite) drop_unfinite(sums.acc, elements);
  if (kind.is_velocity() && (unfinite || whole_velocity)) drop_unfinite(sums.acc_u, elements);
  std::memcpy(residual_of(state), sums.acc, 4 * elements);
  if (sums.acc_u) std::memcpy(momentum_of(kind, state, elements), sums.acc_u, 4 * elements);
  return bytes;
}

}  // namespace

dr_status keep_feedback(const encoding& e, fed_back& out) {
  const auto keeps = [](const unit& u) { return u.method->keeps_feedback(); };
  if (std::none_of(e.b.units.begin(), e.b.units.end(), keeps)) return DR_OK;
  trace_span span = e.span("feedback");
  for (uint32_t p = 0; p < e.b.wire.size(); ++p)
    if (const dr_status s = decode_sent(e, p, out)) return s;
  for (size_t i = 0; i < e.b.units.size(); ++i)
    if (keeps(e.b.units[i])) span.bytes += store_states(e, i);
  return DR_OK;
}

void roll_back(const encoding& e) {
  for (size_t i = 0; i < e.b.units.size(); ++i) {
    const unit_source& source = e.w.selected.sources[i];
    const unit_sums& sums = e.w.selected.sums[i];
    for (uint32_t p = 0; sums.advanced && p < source.piece_count; ++p) {
      const velocity& s = sums.pieces[p].to;
      const uint64_t n = source.pieces[p].n;
      if (n && s.undo_v) std::memcpy(s.v, s.undo_v, 4 * n);
      if (n && s.undo_u) std::memcpy(s.u, s.undo_u, 4 * n);
    }
  }
}

}  // namespace dr
