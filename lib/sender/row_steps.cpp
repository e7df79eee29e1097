// The steps of a unit of sparse rows.
#include <cstring>

#include "api/run_encode.hpp"
#include "sender/rank_sender.hpp"

namespace dr {

dr_status sender::prepare_rows(unit& u) {
  const uint32_t i = u.list.tensors[0];
  const named_tensor& t = tensors_[i];
  u.rows = std::make_unique<row_unit>(c_);
  const uint64_t width = t.elements / t.rows;
  const dr_dtype out = is_rounded(i) ? t.dtype : dr_dtype{DR_F32};
  if (const dr_status s = u.rows->create(plans_.methods[i], plans_.keys[i], t.dtype, out, t.rows, width)) {
    c_.error.tensor = i;
    name_tensor(i);
    return s;
  }
  u.bounds.push_back(u.rows->bound());
  u.room = slot_room(prefix_size(1) + u.bounds[0], prefix_size(1), false);
  return DR_OK;
}

dr_status sender::place_rows(size_t tensor, const dr_sent_rows& rows) {
  unit& u = units_[unit_of_[tensor]];
  dr_status s = DR_OK;
  if (!u.rows)
    s = fail(c_.error, DR_E_ARGUMENT, "its gradient is dense; created without DR_NAMED_ROWS");
  else
    s = u.rows->place(rows);
  if (s) {
    prefix(c_.error, "%.80s: ", tensors_[tensor].name.c_str());
    c_.error.tensor = tensor;
  }
  return s;
}

dr_status sender::rows_of(size_t tensor, dr_sent_rows& rows) const {
  const unit& u = units_[unit_of_[tensor]];
  if (!u.rows || !u.rows->is_merged()) {
    fail(c_.error, DR_E_ARGUMENT, "%.80s: no rows were merged", tensors_[tensor].name.c_str());
    c_.error.tensor = tensor;
    return DR_E_ARGUMENT;
  }
  rows = u.rows->result();
  return DR_OK;
}

dr_status sender::encode_rows(unit& u, const dr_call& call, void* slot, dr_sent& result) {
  const uint32_t tensor = u.list.tensors[0];
  if (!u.rows->is_placed()) {
    fail(c_.error, DR_E_ARGUMENT, "%.80s: its rows were not placed", tensors_[tensor].name.c_str());
    c_.error.tensor = tensor;
    return DR_E_ARGUMENT;
  }
  u.step = call.step;
  slot_head head = head_of(u, call.step);
  encode_request r;
  r.call = {call.step, call.seed, call.private_seed, tag_of(u, call.step), DR_CALL_TAG, call.trace, call.trace_user};
  r.frame = static_cast<uint8_t*>(slot) + prefix_size(1);
  r.capacity = u.bounds[0];
  encode_result made;
  const bool skips = (options_.flags & DR_SENDER_SKIP) && !u.rows->is_finite();
  const dr_status status = skips ? DR_OK : u.rows->encode(r, made);
  if (status) {
    c_.error.tensor = tensor;
    name_tensor(tensor);
    result.fault = status;
    head.tensor = tensor + 1;
    made = {};
    made.size = write_status_frame(status, c_.error.message, true, r.call.tag, r.frame);
  }
  head.flags = skips ? slot_head::not_finite : 0;
  result.kept = made.kept;
  result.frames = made.size;
  result.size = head.longest = prefix_size(1) + made.size;
  write_prefix(head, {&made.size, 1}, slot);
  return DR_OK;
}

dr_status sender::merge_rows(unit& u, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result) {
  const uint32_t tensor = u.list.tensors[0];
  if (const dr_status s = read_slots(u, call, slots, false, result)) return s;
  result.size = slots_.longest;
  if (slots_.skips) {
    result.skips = 1;
    return DR_OK;
  }
  frames_.clear();
  for (size_t rank = 0; rank < slots.size(); ++rank)
    frames_.push_back({static_cast<const std::byte*>(slots[rank].data) + prefix_size(1), slots_.sizes[rank]});
  dr_status s = DR_OK;
  for (size_t rank = 0; rank < slots.size() && !s; ++rank) {
    s = u.rows->judge(frames_[rank], tag_of(u, call.step), view_);
    c_.error.frame = rank;
  }
  if (s == DR_E_PEER) {
    const uint32_t culprit = slots_.heads[c_.error.frame].tensor - 1;
    const size_t rank = c_.error.frame;
    fail(c_.error, s, "could not encode (%s): %s", status_name(view_.status), std::string(view_.message).c_str());
    name_rank(rank);
    if (culprit < tensors_.size()) c_.error.tensor = culprit;
    return s;
  }
  weights_.assign(slots.size(), output_scale() / static_cast<float>(options_.ranks));
  if (!s) s = u.rows->merge(frames_, weights_.data(), tag_of(u, call.step));
  if (!s) return DR_OK;
  drop_frame_number(c_.error);
  const size_t rank = c_.error.frame;
  c_.error.tensor = tensor;
  name_tensor(tensor);
  if (rank < slots.size()) name_rank(rank);
  return s;
}

}  // namespace dr
