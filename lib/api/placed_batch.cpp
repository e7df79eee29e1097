#include "api/placed_batch.hpp"

#include <cinttypes>

#include "primitive/value_type.hpp"

namespace dr {

dr_status placed_batch::decode_room(size_t k, size_t& bytes, dr_error& error) const {
  if (k > merged_max) return fail(error, DR_E_ARGUMENT, "k: %zu frames; at most %zu", k, merged_max);
  if (by_host)
    return fail(error, DR_E_UNSUPPORTED,
                "batch: its plan runs on the CPU (DR_PLACE_ALLOW_HOST); use dr_decode or dr_merge");
  decode_memory room;
  if (where)
    room.transient = device_decode_workspace(frames, k);
  else if (const dr_status s = decode_workspace(*this, k, room, error))
    return s;
  bytes = static_cast<size_t>(room.stored + room.transient);
  return DR_OK;
}

dr_batch_info placed_batch::info() const {
  dr_batch_info i{};
  i.bound = bound();
  i.workspace = encode_room();
  i.launches = launches;
  i.tensors = static_cast<uint32_t>(shapes.size());
  i.segments = static_cast<uint32_t>(rows.size());
  return i;
}

dr_status placed_batch::place(const batch_request& request, const tensor_list& tensors, const target& t,
                              dr_error& error) {
  if (const dr_status s = prepare(request, tensors.views, tensors.plans, *this, error)) return s;
  where = t.where;
  if (!where) return DR_OK;
  bool host_would_do = false;
  if (const dr_status s = check_device_batch(*this, host_would_do, error)) {
    by_host = host_would_do && t.allows_host;
    return by_host ? DR_OK : s;
  }
  on_device = device_prepared::of(*this);
  device_encode_scratch host;
  return count_device_launches(*this, on_device, where, host, launches, error);
}

dr_status placed_batch::load_decode(dr_error& error, bool tagged) {
  if (!where || by_host) return DR_OK;
  if (const dr_status s = shape_of_batch(*this, tagged, frames, error)) return s;
  load_decode_kernels(frames, *where);
  return DR_OK;
}

dr_status placed_batch::check_segment_rows(uint64_t asked, dr_error& error) const {
  if (!asked || asked == segment_rows) return DR_OK;
  fail(error, DR_E_ARGUMENT, "call: segments of %" PRIu64 " rows; the batch was prepared for %" PRIu64, asked,
       segment_rows);
  error.what = asked;
  return DR_E_ARGUMENT;
}

dr_status placed_batch::check_plan(size_t tensor, const plan& own, dr_error& error) const {
  const auto after =
      std::upper_bound(units.begin(), units.end(), tensor, [](size_t i, const unit& u) { return i < u.first_tensor; });
  if (after == units.begin()) return DR_OK;
  const unit& u = after[-1];
  // (More tensors than the batch has are an error elsewhere.)
  if (tensor - u.first_tensor >= u.tensors || &own == u.method || own.text == u.method->text) return DR_OK;
  fail(error, DR_E_ARGUMENT, "tensor %zu: its plan is %.80s; the batch was prepared for %.80s", tensor,
       own.text.c_str(), u.method->text.c_str());
  error.tensor = tensor;
  return DR_E_ARGUMENT;
}

dr_status placed_batch::check_outputs(std::span<const tensor_out> outs, dr_error& error,
                                      const frame_view* common) const {
  if (outs.size() != shapes.size())
    return fail(error, DR_E_ARGUMENT, "%zu outputs; the batch has %zu tensors", outs.size(), shapes.size());
  if (!where && common) return dr::check_outputs(*common, outs, sparse_outputs::unions, error);
  if (!where) return dr::check_outputs(common_frame(*this), outs, sparse_outputs::unions, error);
  if (units.size() != shapes.size() && units.size() != 1)
    return fail(error, DR_E_ARGUMENT, "%zu outputs; the frame has %zu tensors", outs.size(), units.size());
  for (size_t i = 0; i < outs.size(); ++i) {
    const tensor_out& o = outs[i];
    const tensor_shape& s = shapes[i];
    if (o.index_dtype || o.flags || o.universe != s.universe || std::max(1u, o.width) != s.width ||
        !is_value_type(o.dtype) || (patches() && o.dtype != s.dtype) || (!o.values && s.universe) || o.base || o.sums ||
        o.history || reinterpret_cast<uintptr_t>(o.values) % value_size(o.dtype)) {
      fail(error, o.flags ? DR_E_UNSUPPORTED : DR_E_ARGUMENT,
           "output %zu: must be dense, of its tensor's shape and a value type, without flags, not NULL, and aligned",
           i);
      error.tensor = i;
      return error.code;
    }
  }
  return DR_OK;
}

}  // namespace dr
