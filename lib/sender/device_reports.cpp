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

// What stands behind a report in the mirrored bytes: the results of checks, and the prefixes of all slots.
struct sender::report_view {
  const std::byte *results, *prefixes;
  size_t frames, ranks;

  dr_result result(size_t i) const {
    dr_result r;
    std::memcpy(&r, results + i * sizeof r, sizeof r);
    return r;
  }
  std::vector<dr_bytes> slots() const {
    std::vector<dr_bytes> out;
    for (size_t rank = 0; rank < ranks; ++rank)
      out.push_back({prefixes + rank * device_prefix(frames), device_prefix(frames)});
    return out;
  }
  // Why a rank could not encode a frame.
  const uint64_t* reason(size_t rank, size_t f) const {
    const size_t at = rank * device_prefix(frames) + prefix_size(reason_word(frames, f));
    return reinterpret_cast<const uint64_t*>(prefixes + at);
  }
};

sender::report_view sender::view_of(const unit& u, uint64_t report_at, size_t checks) const {
  const std::byte* const results = side_->host() + report_at + sizeof(slot_report);
  return {results, results + checks * sizeof(dr_result), u.frames.size(), options_.ranks};
}

// As sender::compare, of heads that all ranks got.
dr_status sender::compare_on_device(const unit& u, uint64_t step) {
  dr_call call{};
  call.step = step;
  const dr_status s = compare(u, call);
  if (!s || !is_behind_) return s;
  // (This step failed on all ranks.)
  is_behind_ = false;
  failed_ = step;
  failures_ = others_failures_ + 1;
  const dr_status lost =
      set_device_counts({side_->counts(), 0, 0, static_cast<uint32_t>(failures_), static_cast<uint32_t>(failed_), 0});
  return lost ? lost : s;
}

dr_status sender::read_report(unit& u, uint64_t step, dr_sent& result) {
  const device_unit& d = *u.device;
  const bool owns = !d.sums.empty();
  const size_t frames = u.frames.size();
  const slot_report report = report_of(u);
  const report_view view = view_of(u, d.report_at, d.checks());
  failures_ = report.failures;
  failed_ = report.last_failed;
  slot_limits limits{u.bounds, tensors_.size(), false, false, (words_a_frame - 1) * frames};
  if (owns) {
    // What this rank found when it added up. (All else that is wrong with those slots stands in its own.)
    if (const dr_status s = read_prefixes(view_of(u, d.sum_report_at, frames).slots(), limits, slots_, c_.error)) {
      if (s == DR_E_CORRUPT) return name_rank(c_.error.frame);
    } else if (const dr_status out = compare_on_device(u, step); out && c_.error.reason == DR_REASON_OUT_OF_STEP) {
      return out;
    }
    limits.bounds = u.sum_bounds;
    limits.of_sums = true;
  }
  if (const dr_status s = read_prefixes(view.slots(), limits, slots_, c_.error)) {
    name_rank(c_.error.frame);
    return s;
  }
  if (const dr_status s = compare_on_device(u, step)) return s;
  for (size_t rank = 0; rank < slots_.heads.size(); ++rank)
    if (slots_.heads[rank].flags & slot_head::refused) {
      fail(c_.error, DR_E_PEER, "it found the ranks out of step");
      name_rank(rank);
      return DR_E_PEER;
    }
  result.size = std::max(result.size, slots_.longest);
  const auto count = [&](uint64_t at, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      dr_result made;
      std::memcpy(&made, side_->host() + at + i * sizeof made, sizeof made);
      result.frames += made.size;
    }
  };
  count(d.results_at, d.parts.size());
  if (owns) count(d.sum_results_at, frames);
  if (!report.failed) return DR_OK;
  if (report.foreign) {
    fail(c_.error, DR_E_ARGUMENT, "its frame is of another step, or of other tensors");
    name_rank(report.foreign - 1);
    return DR_E_ARGUMENT;
  }
  for (size_t f = 0; f < frames; ++f)
    if (const dr_status s = owns ? explain_sums(u, view, f) : explain_frames(u, view, f)) return s;
  for (size_t rank = 0; rank < slots_.heads.size(); ++rank) {
    const slot_head& head = slots_.heads[rank];
    if (!head.flags && !head.tensor) continue;
    fail(c_.error, DR_E_CORRUPT, "its slot has flags 0x%x and tensor %u at fault, and gives no reason", head.flags,
         head.tensor);
    name_rank(rank);
    return DR_E_CORRUPT;
  }
  return fail(c_.error, DR_E_INTERNAL, "step %" PRIu64 ": the device refused the slots, and gives no reason", step);
}

// The error of one of the ranks' frames, if it has one. As on the CPU, the first rank at fault is named.
dr_status sender::explain_frames(const unit& u, const report_view& view, size_t f) {
  const device_unit& d = *u.device;
  const dr_result r = view.result(f);
  const size_t ranks = options_.ranks, at_fault = r.status ? std::min<size_t>(r.frame, ranks) : ranks;
  size_t peer = 0;  // the first rank that could not encode
  while (peer < ranks && !has_reason(view.reason(peer, f))) ++peer;
  const bool is_peer = peer < ranks ? peer <= at_fault : r.status == DR_E_PEER && at_fault < ranks;
  if (is_peer) {
    peer = std::min(peer, at_fault);
    return explain_peer(u, d.parts, peer, read_reason(view.reason(peer, f)));
  }
  return r.status ? explain(d.part(f, d.ranges > 1 ? options_.rank : 0), r, r.frame) : dr_status{DR_OK};
}

// The error of one of the owners' frames.
dr_status sender::explain_sums(const unit& u, const report_view& view, size_t f) {
  const device_unit& d = *u.device;
  for (size_t owner = 0; owner < d.ranges; ++owner) {
    const dr_result r = view.result(f * d.ranges + owner);
    const uint64_t* const words = view.reason(owner, f);
    const slot_reason why = read_reason(words);
    const uint32_t culprit = slots_.heads[owner].culprit();
    // (A rank that owns nothing of a frame can give a reason, too: its slot is refused for it.)
    if (!has_reason(words)) {
      if (r.status && !d.sum(f, owner).empty()) return explain(d.sum(f, owner), r, owner);
      continue;
    }
    if (why.kind == fault_kind::encode || !culprit) return explain_peer(u, d.sums, owner, why);
    if (why.kind == fault_kind::peer) return explain_peer(u, d.parts, culprit - 1, why);
    if (why.kind == fault_kind::frame && why.frame < u.frames.size() && why.range < d.ranges) {
      dr_result cause = result_of(why);
      (void)explain(d.part(why.frame, why.range), cause, culprit - 1);
    } else {
      fail(
          c_.error, DR_E_PEER, "%s",
          why.status == DR_E_CORRUPT ? "the header of its slot is damaged" : "sends other tensors, or by another plan");
      name_rank(culprit - 1);
    }
    return c_.error.code = DR_E_PEER;
  }
  return DR_OK;
}

dr_result sender::result_of(const slot_reason& why) {
  dr_result r{};
  r.status = static_cast<dr_status>(why.status);
  r.stream = why.stream;
  r.tensor = why.tensor;
  r.where = why.where;
  r.what = why.what;
  return r;
}

// The error of a frame of a part that was refused.
dr_status sender::explain(const device_part& p, const dr_result& r, size_t rank) {
  dr_result row = r;
  if (!p.empty() && row.tensor < p.batch->rows.size())
    row.tensor = p.batch->units[p.batch->rows[row.tensor].unit].first_tensor;
  if (row.tensor < p.pieces.size()) {
    fail_as_device(*p.batch, row, c_.error);
    name_tensor(p.pieces);
  } else {
    fail(c_.error, r.status, "its frame is damaged, or of other tensors (at %" PRIu64 ", value %" PRIu64 ")", r.where,
         r.what);
  }
  if (rank < options_.ranks) name_rank(rank);
  return c_.error.code = r.status;
}

// The error of a rank that could not encode one of `parts`.
dr_status sender::explain_peer(const unit& u, const device_parts& parts, size_t rank, const slot_reason& why) {
  const dr_result cause = result_of(why);
  uint64_t at_fault = DR_NO_TENSOR;
  std::string words = "for no known reason";
  if (why.frame < u.frames.size() && why.range < u.device->ranges) {
    const device_part& p = *parts[why.frame * u.device->ranges + why.range];
    if (cause.tensor < p.pieces.size()) {
      fail_as_device(*p.batch, cause, c_.error);
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
