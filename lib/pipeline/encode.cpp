// The sequence of stages. Every stage has a file: encoding.hpp lists them in this order.
#include "pipeline/encode.hpp"

#include <algorithm>
#include <cinttypes>

#include "feedback/state_layout.hpp"
#include "pipeline/encoding.hpp"
#include "pipeline/sequence.hpp"
#include "pipeline/tensor_check.hpp"

namespace dr {
namespace {

dr_status encode_streams(const encoding& e, uint32_t plan, streams& out) {
  for (const stream_step step : sequence_of(e.b.wire[plan])) {
    dr_status s = DR_OK;
    switch (step) {
      case stream_step::index: s = encode_index(e, plan, out); break;
      case stream_step::regather: s = regather(e, plan, out); break;
      case stream_step::value: s = encode_value(e, plan, out); break;
      case stream_step::reorder: s = reorder_support(e, plan, out); break;
      case stream_step::order: s = encode_order(e, plan, out); break;
    }
    if (s) return s;
  }
  return DR_OK;
}

void map_states(const batch& b, std::span<const tensor_view> tensors) {
  for (const unit& u : b.units)
    for (uint32_t i = u.first_tensor; u.method->keeps_feedback() && i < u.first_tensor + u.tensors; ++i)
      map_fresh(tensors[i].state, state_size_of(u.method->feedback_rule().kind, b.shapes[i].elements()));
}

// ARGUMENT: the frame would lie over the words by which a patch's history is advanced, when the frame is written.
dr_status check_histories_apart(const batch& b, std::span<const tensor_view> tensors, const uint8_t* frame,
                                uint64_t capacity, dr_error& error) {
  const uint64_t room = std::min<uint64_t>(capacity, b.bound());
  for (const unit& u : b.units) {
    const tensor_view& t = tensors[u.first_tensor];
    const uint64_t size = b.shapes[u.first_tensor].elements() * value_size(u.dtype);
    for (const void* const words : {t.values, t.base}) {
      if (!t.history || !words || !overlap(words, size, frame, room)) continue;
      fail(error, DR_E_ARGUMENT, "tensor %u: the frame overlaps its %s, by which its history is advanced",
           u.first_tensor, words == t.base ? "base" : "values");
      error.tensor = u.first_tensor;
      return DR_E_ARGUMENT;
    }
  }
  return DR_OK;
}

// `e` reads `w`, and every stage fills one part of it.
dr_status run_stages(const encoding& e, encode_work& w, uint8_t* frame, uint64_t capacity, uint64_t& size) {
  if (const dr_status s = sparsify(e, w.selected)) return s;
  begin_streams(e, w.coded);
  if (const dr_status s = choose(e, w.coded, w.chosen)) return s;
  place_payloads(e, frame, capacity, w.coded);
  for (uint32_t plan = 0; plan < e.b.wire.size(); ++plan)
    if (const dr_status s = encode_streams(e, plan, w.coded)) return s;
  if (const dr_status s = first_fault(e)) return s;
  if (const dr_status s = write_frame(e, frame, capacity, size, w.wire)) return s;
  return keep_feedback(e, w.feedback);
}

}  // namespace

dr_status encode(const batch& b, const encode_call& call, std::span<const tensor_view> tensors, pool& workers,
                 void* workspace, uint64_t workspace_size, uint8_t* frame, uint64_t capacity, encode_result& result,
                 dr_error& error) {
  result = {};
  if (!call.checked)
    if (const dr_status s = check_tensors(b, tensors, false, error)) return s;
  if (call.flags & DR_CALL_FIT)
    if (const dr_status s = check_fit(b, error)) return s;
  // Tested before the layout: in a workspace that is too small pointers would be nullptr.
  if (const dr_status s = check_workspace(workspace, workspace_size, b.workspace, error)) return s;
  arena memory(workspace, workspace_size);
  encode_work w = encode_work::lay_out(memory, b);
  if (w.states && !call.checked)
    if (const dr_status s = check_states_apart(b, tensors, w.states, error)) return s;
  if (b.patches())
    if (const dr_status s = check_histories_apart(b, tensors, frame, capacity, error)) return s;

  map_states(b, tensors);
  const auto list = w.transformed ? transform(b, call, tensors, workers, w.transformed) : tensors;
  w.begin(b, call, list);
  const encoding e(b, call, tensors, list, workers, w, capacity, error);
  if (const dr_status s = run_stages(e, w, frame, capacity, result.size)) {
    result.size = 0;
    roll_back(e);
    return s;
  }
  if (b.patches()) {
    keep_sums(e);
    keep_history(e);
  }
  for (size_t i = 0; i < b.rows.size(); ++i) result.kept += w.wire.rows[i].count;
  return DR_OK;
}

}  // namespace dr
