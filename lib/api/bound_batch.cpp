#include "api/bound_batch.hpp"

#include <algorithm>

namespace dr {

bound_batch::~bound_batch() {
  if (!workspace_) return;
  if (where.where)
    where.where->release(workspace_);
  else
    context.release(workspace_, workspace_size_);
}

dr_status bound_batch::bind_tensors() {
  encodes = true;
  if (const dr_status s = check_tensors(batch, tensors, where.where, context.error)) return s;
  states_.resize(states_of(batch));
  if (const dr_status s = check_states_apart(batch, tensors, states_.data(), context.error)) return s;
  workspace_size_ = std::max<size_t>(workspace_size_, batch.encode_room());
  return DR_OK;
}

dr_status bound_batch::bind_outputs() {
  decodes = true;
  size_t room = 0;
  if (const dr_status s = batch.decode_room(frames, room, context.error)) return s;
  if (const dr_status s = batch.check_outputs(outs, context.error)) return s;
  if (const dr_status s = list_ranges(outs, ranges_, context.error)) return s;
  dense_ = std::none_of(outs.begin(), outs.end(), [](const tensor_out& o) { return o.index_dtype != 0; });
  workspace_size_ = std::max(workspace_size_, room);
  return DR_OK;
}

dr_status bound_batch::take_workspace() {
  if (!workspace_size_) return DR_OK;
  workspace_ = where.where ? where.where->allocate(workspace_size_) : context.allocate(workspace_size_);
  if (workspace_) return DR_OK;
  return fail(context.error, DR_E_MEMORY, "binding: cannot allocate %zu bytes of workspace", workspace_size_);
}

dr_status bound_batch::encode(encode_request& request, encode_result& made) {
  request.call.checked = !batch.by_host;  // (there the states are not looked at before)
  return encode_placed(context, batch, request, tensors, lent_ ? lent_ : workspace_, workspace_size_, made);
}

dr_status bound_batch::decode(const decode_request& request, const dr_decode_options& options, dr_result* result) {
  const prepared_memory memory{lent_ ? lent_ : workspace_, workspace_size_, dense_, &ranges_};
  return decode_placed(context, batch, where, request, options, outs, memory, result);
}

}  // namespace dr
