// What became of the steps of a device: the host reads reports, and finds the words.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <string>

#include "sender/rank_sender.hpp"

namespace dr {

dr_status sender::check(uint64_t step, dr_sent& result) {
  dr_error first = no_error();
  for (unit& u : units_) {
    if (!u.device || u.device->pending != step) continue;
    if (const dr_status s = side_->wait_for(u.device->event)) return s;
    if (const dr_status s = return_late(u)) return s;
    u.step = u.device->pending = device_unit::none;
    if (read_report(u, step, result) && !first.code) first = c_.error;
  }
  if (!first.code) return DR_OK;
  c_.error = first;
  return first.code;
}

slot_report sender::report_of(const unit& u) const {
  slot_report report;
  std::memcpy(&report, side_->host() + u.device->report_at, sizeof report);
  return report;
}

// Where a slot has the reason why a frame could not be encoded. prefixes: of all slots.
static const uint64_t* reason_at(const std::byte* prefixes, size_t frames, size_t rank, size_t f) {
  const size_t words = frames + (words_a_frame - 1) * f;
  return reinterpret_cast<const uint64_t*>(prefixes + rank * device_prefix(frames) + prefix_size(words));
}

dr_status sender::read_report(unit& u, uint64_t step, dr_sent& result) {
  const device_unit& d = *u.device;
  const size_t frames = u.frames.size(), ranks = options_.ranks;
  const std::byte* const from = side_->host() + d.report_at;
  const slot_report report = report_of(u);
  const std::byte* const prefixes = from + sizeof report + frames * sizeof(dr_result);
  std::vector<dr_bytes> slots;
  for (size_t rank = 0; rank < ranks; ++rank)
    slots.push_back({prefixes + rank * device_prefix(frames), device_prefix(frames)});
  failures_ = report.failures;
  failed_ = report.last_failed;
  const slot_limits limits{u.bounds, tensors_.size(), false, false, (words_a_frame - 1) * frames};
  if (const dr_status s = read_prefixes(slots, limits, slots_, c_.error)) {
    name_rank(c_.error.frame);
    return s;
  }
  dr_call call{};
  call.step = step;
  if (const dr_status s = compare(u, call)) {
    if (!is_behind_) return s;
    // (This step failed on all ranks.)
    is_behind_ = false;
    failed_ = step;
    ++failures_;
    if (const dr_status lost = set_device_counts(
            {side_->counts(), 0, 0, static_cast<uint32_t>(failures_), static_cast<uint32_t>(failed_), 0}))
      return lost;
    return s;
  }
  result.size = std::max(result.size, slots_.longest);
  for (size_t i = 0; i < d.parts.size(); ++i) {
    dr_result made;
    std::memcpy(&made, side_->host() + d.results_at + i * sizeof made, sizeof made);
    result.frames += made.size;
  }
  if (!report.failed) return DR_OK;
  if (report.foreign) {
    fail(c_.error, DR_E_ARGUMENT, "its frame is of another step, or of other tensors");
    name_rank(report.foreign - 1);
    return DR_E_ARGUMENT;
  }
  for (size_t f = 0; f < frames; ++f) {
    dr_result r;
    std::memcpy(&r, from + sizeof report + f * sizeof r, sizeof r);
    size_t peer = 0;  // the first rank that could not encode
    while (peer < ranks && !has_reason(reason_at(prefixes, frames, peer, f))) ++peer;
    // As on the CPU, the first rank at fault is named.
    const size_t at_fault = r.status ? std::min<size_t>(r.frame, ranks) : ranks;
    const bool is_peer = peer < ranks ? peer <= at_fault : r.status == DR_E_PEER && at_fault < ranks;
    if (is_peer) {
      peer = std::min(peer, at_fault);
      return explain_peer(u, peer, read_reason(reason_at(prefixes, frames, peer, f)));
    }
    if (r.status) return explain(u, f, r);
  }
  return fail(c_.error, DR_E_INTERNAL, "step %" PRIu64 ": the device refused the slots, and gives no reason", step);
}

// The error of a frame that was refused.
dr_status sender::explain(const unit& u, size_t f, const dr_result& r) {
  const device_part& p = u.device->part(f, u.device->ranges > 1 ? options_.rank : 0);
  dr_result row = r;
  if (row.tensor < p.batch.rows.size()) row.tensor = p.batch.units[p.batch.rows[row.tensor].unit].first_tensor;
  if (row.tensor < p.pieces.size()) {
    fail_as_device(p.batch, row, c_.error);
    name_tensor(p.pieces);
  } else {
    fail(c_.error, r.status, "its frame is damaged, or of other tensors (at %" PRIu64 ", value %" PRIu64 ")", r.where,
         r.what);
  }
  if (r.frame < options_.ranks) name_rank(r.frame);
  return c_.error.code = r.status;
}

// The error of a rank that could not encode.
dr_status sender::explain_peer(const unit& u, size_t rank, const slot_reason& why) {
  const device_unit& d = *u.device;
  dr_result cause{};
  cause.status = static_cast<dr_status>(why.status);
  cause.stream = why.stream;
  cause.tensor = why.tensor;
  cause.where = why.where;
  cause.what = why.what;
  uint64_t at_fault = DR_NO_TENSOR;
  std::string words = "for no known reason";
  if (why.frame < u.frames.size() && why.range < d.ranges) {
    const device_part& p = d.part(why.frame, why.range);
    if (cause.tensor < p.pieces.size()) {
      fail_as_device(p.batch, cause, c_.error);
      name_tensor(p.pieces);
      at_fault = c_.error.tensor;
      words = c_.error.message;
    }
  }
  fail(c_.error, DR_E_PEER, "could not encode (%s): %s", status_name(cause.status), words.c_str());
  name_rank(rank);
  c_.error.tensor = at_fault;
  return DR_E_PEER;
}

}  // namespace dr
