#include "sender/row_unit.hpp"

#include <algorithm>
#include <cinttypes>
#include <limits>

#include "api/frame_checks.hpp"
#include "api/run_decode.hpp"
#include "api/run_encode.hpp"
#include "primitive/value_type.hpp"
#include "sender/finite.hpp"

namespace dr {

dr_status row_unit::create(std::shared_ptr<const plan> method, uint64_t key, dr_dtype dtype, dr_dtype out_dtype,
                           uint64_t rows, uint64_t width) {
  method_ = std::move(method);
  out_dtype_ = out_dtype;
  view_.struct_size = sizeof view_;
  view_.dtype = dtype;
  view_.universe = rows;
  view_.key = key;
  if (!width) return fail(c_.error, DR_E_ARGUMENT, "rows of 0 elements");
  if (width > UINT32_MAX)
    return fail(c_.error, DR_E_UNSUPPORTED, "a row of %" PRIu64 " elements, 2^32 - 1 is the most", width);
  view_.width = static_cast<uint32_t>(width);
  tensor_list list;
  list.views.push_back(view_);
  list.views[0].index_dtype = DR_I64;
  list.views[0].count = rows;
  list.plans.push_back(method_);
  placed_batch all;
  if (const dr_status s = all.place(c_.request_for(nullptr, 0), list, target{}, c_.error))
    return s == DR_E_MEMORY ? s : c_.error.code = DR_E_UNSUPPORTED;
  bound_ = std::max<uint64_t>(all.layout[1].frame_bound, status_frame_max);
  return DR_OK;
}

dr_status row_unit::place(const dr_sent_rows& r) {
  dr_error& e = c_.error;
  if (!is_index_type(r.index_dtype))
    return fail(e, DR_E_ARGUMENT, "rows: index_dtype is %u, not u32, i32, u64 or i64", r.index_dtype);
  if (r.count > view_.universe)
    return fail(e, DR_E_ARGUMENT, "rows: %" PRIu64 " of a tensor of %" PRIu64, r.count, view_.universe);
  if (r.count && (!r.indices || !r.values))
    return fail(e, DR_E_ARGUMENT, "rows: %s is NULL", r.indices ? "values" : "indices");
  if (reinterpret_cast<uintptr_t>(r.indices) % index_type_size(r.index_dtype) ||
      reinterpret_cast<uintptr_t>(r.values) % value_size(view_.dtype))
    return fail(e, DR_E_ARGUMENT, "rows: indices or values are not aligned to their type");
  view_.index_dtype = r.index_dtype;
  view_.indices = r.indices;
  view_.values = r.values;
  view_.count = r.count;
  return DR_OK;
}

bool row_unit::is_finite() const { return are_all_finite(view_.dtype, view_.values, view_.count * view_.width); }

dr_status row_unit::encode(encode_request& request, encode_result& made) {
  c_.tensors.views.assign(1, view_);
  c_.tensors.plans.assign(1, method_);
  return encode_list(c_, c_.request_for(nullptr, 0), request, made);
}

dr_status row_unit::judge(const dr_bytes& frame, uint64_t tag, frame_view& view) const {
  dr_decode_options tagged{};
  tagged.flags = DR_DECODE_TAG;
  tagged.tag = tag;
  view.clear();
  if (const dr_status s = read_sound_frame(frame, view, c_.error)) return s;
  if (view.frame_size != frame.size)
    return fail(c_.error, DR_E_CORRUPT, "frame: %" PRIu64 " bytes in a message of %zu", view.frame_size, frame.size);
  return check_tag(view, tagged, c_.error);
}

dr_status row_unit::merge(std::span<const dr_bytes> frames, const float* weights, uint64_t tag) {
  merged_ = false;
  // The maximum number of rows of the union.
  uint64_t capacity = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    frame_view f;
    if (const dr_status s = read_sound_frame(frames[i], f, c_.error)) return s;
    for (const wire_row& r : f.rows) capacity += std::min(r.support, view_.universe);
  }
  capacity = std::min(capacity, view_.universe);
  indices_.resize(capacity);
  values_.resize(capacity * view_.width);
  dr_tensor_out out{};
  out.struct_size = sizeof out;
  out.dtype = DR_F32;
  out.index_dtype = DR_I64;
  out.universe = view_.universe;
  out.width = view_.width;
  out.indices = indices_.data();
  out.values = values_.data();
  out.capacity = capacity;
  dr_decode_options options{};
  options.flags = DR_DECODE_TAG;
  options.tag = tag;
  options.max_elements = std::max<uint64_t>(1, view_.universe * view_.width);
  if (const dr_status s = decode_any(c_, target{}, {frames, weights}, options, {&out, 1})) return s;
  indices_.resize(out.count);
  values_.resize(out.count * view_.width);
  round_values();
  return DR_OK;
}

void row_unit::merge_nan() {
  indices_.assign(1, 0);
  values_.assign(view_.width, std::numeric_limits<float>::quiet_NaN());
  round_values();
}

void row_unit::round_values() {
  merged_ = true;
  if (out_dtype_ == DR_F32) return;
  rounded_.resize(values_.size());
  with_type(out_dtype_, [&](auto type) {
    for (size_t i = 0; i < values_.size(); ++i)
      rounded_[i] = static_cast<uint16_t>(decltype(type)::from_f32(values_[i]));
  });
}

dr_sent_rows row_unit::result() const {
  dr_sent_rows r{};
  r.count = indices_.size();
  r.indices = indices_.data();
  r.values = out_dtype_ == DR_F32 ? static_cast<const void*>(values_.data()) : rounded_.data();
  r.index_dtype = DR_I64;
  return r;
}

}  // namespace dr
