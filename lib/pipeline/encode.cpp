// The sentence of the house. A stage a file: encoding.hpp lists them in this order.
#include "pipeline/encode.hpp"

#include <cinttypes>

#include "feedback/state_layout.hpp"
#include "pipeline/encoding.hpp"
#include "pipeline/tensor_check.hpp"

namespace dr {
namespace {

// A plan's streams have one of four sequences: plain; index first, if it replaces the support that the values are
// gathered at; value first, if the keys carry its order; both couplings, with an order stream.
dr_status encode_streams(encoding& e, uint32_t plan) {
  const bool index_first = e.b.wire[plan].replaces_support();
  if (index_first) {
    if (const dr_status s = encode_index(e, plan)) return s;
    regather(e, plan);
  } else {
    keep_support(e, plan);
  }
  if (const dr_status s = encode_value(e, plan)) return s;
  if (!index_first)
    if (const dr_status s = encode_index(e, plan)) return s;
  return e.b.wire[plan].order().count ? encode_order(e, plan) : DR_OK;
}

void map_states(const batch& b, std::span<const tensor_view> tensors) {
  for (const unit& u : b.units)
    for (uint32_t i = u.first_tensor; u.method->keeps_feedback() && i < u.first_tensor + u.tensors; ++i)
      map_fresh(tensors[i].state, state_size_of(u.method->feedback_rule().kind, b.shapes[i].elements()));
}

dr_status run_stages(encoding& e, uint8_t* frame, uint64_t capacity, uint64_t& size) {
  if (const dr_status s = sparsify(e)) return s;
  if (const dr_status s = choose(e)) return s;
  place_payloads(e, frame, capacity);
  for (uint32_t plan = 0; plan < e.b.wire.size(); ++plan)
    if (const dr_status s = encode_streams(e, plan)) return s;
  if (const dr_status s = first_fault(e)) return s;
  if (const dr_status s = write_frame(e, frame, capacity, size)) return s;
  return keep_feedback(e);
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
  // Before anything is laid out in it: half a workspace has pointers to nothing.
  if (workspace_size < b.workspace || (!workspace && b.workspace))
    return fail(error, DR_E_ARGUMENT, "workspace: %" PRIu64 " bytes given, %" PRIu64 " needed", workspace_size,
                b.workspace);
  arena memory(workspace, workspace_size);
  const encode_work w = encode_work::take(memory, b);
  if (w.states && !call.checked)
    if (const dr_status s = check_states_apart(b, tensors, w.states, error)) return s;

  map_states(b, tensors);
  encoding e(b, call, tensors, workers, w, capacity, error);
  if (const dr_status s = run_stages(e, frame, capacity, result.size)) {
    result.size = 0;
    roll_back(e);
    return s;
  }
  keep_sums(e);
  keep_history(e);
  for (size_t i = 0; i < b.rows.size(); ++i) result.kept += w.rows[i].count;
  return DR_OK;
}

}  // namespace dr
