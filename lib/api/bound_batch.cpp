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

namespace {

bool all_dense(std::span<const tensor_out> outs) {
  return std::none_of(outs.begin(), outs.end(), [](const tensor_out& o) { return o.index_dtype != 0; });
}

}  // namespace

dr_status bound_batch::check(std::span<const tensor_view> in) {
  if (const dr_status s = check_tensors(batch, in, where.where, context.error)) return s;
  return check_states_apart(batch, in, states_.data(), context.error);
}

dr_status bound_batch::check(std::span<const tensor_out> out, std::vector<out_range>& ranges) {
  if (const dr_status s = batch.check_outputs(out, context.error, &common_)) return s;
  return list_ranges(out, ranges, context.error);
}

dr_status bound_batch::bind_tensors() {
  encodes = true;
  states_.resize(states_of(batch));
  if (const dr_status s = check(tensors)) return s;
  workspace_size_ = std::max<size_t>(workspace_size_, batch.encode_room());
  return DR_OK;
}

dr_status bound_batch::bind_outputs() {
  decodes = true;
  common_ = common_frame(batch);
  size_t room = 0;
  if (const dr_status s = batch.decode_room(frames, room, context.error)) return s;
  if (const dr_status s = check(outs, ranges_)) return s;
  dense_ = all_dense(outs);
  workspace_size_ = std::max(workspace_size_, room);
  return DR_OK;
}

dr_status bound_batch::rebind(std::vector<tensor_view>* in, std::vector<tensor_out>* out) {
  if (in)
    if (const dr_status s = check(*in)) return s;
  if (out)
    if (const dr_status s = check(*out, spare_)) return s;
  if (in) tensors.swap(*in);
  if (!out) return DR_OK;
  outs.swap(*out);
  ranges_.swap(spare_);
  dense_ = all_dense(outs);
  return DR_OK;
}

dr_status bound_batch::allocate_workspace() {
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

dr_status bound_batch::measure_ahead(decode_memory& needed) const {
  if (const dr_status s = decode_workspace(batch, frames, needed, context.error)) return s;
  needed.stored += rows_ahead(batch.rows.size() * frames);
  return DR_OK;
}

dr_status bound_batch::decode_ahead(std::span<const dr_bytes> of, arena& memory,
                                    std::span<const decoded_frame>& decoded) {
  decode_request request{of};
  request.verified = true;
  return dr::decode_ahead(context, request, on_host(), outs, memory, decoded);
}

dr_status bound_batch::merge_decoded(std::span<const decoded_frame> decoded, const float* weights, arena& memory) {
  return dr::merge_decoded(context, {{}, weights}, on_host(), outs, memory, decoded);
}

}  // namespace dr
