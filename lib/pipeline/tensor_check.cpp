#include "pipeline/tensor_check.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "feedback/residual.hpp"
#include "primitive/value_type.hpp"

namespace dr {

dr_status bad_tensor(dr_error& error, uint64_t tensor, dr_status code, uint64_t what, const char* format, ...) {
  char sentence[200];
  va_list args;
  va_start(args, format);
  std::vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  fail(error, code, "tensor %" PRIu64 ": %s", tensor, sentence);
  error.tensor = tensor;
  error.what = what;
  return code;
}

dr_status read_shape(const tensor_view& t, uint64_t i, tensor_shape& out, dr_error& error) {
  const uint32_t width = t.width ? t.width : 1;
  if (!is_word_type(t.dtype))
    return bad_tensor(error, i, DR_E_ARGUMENT, t.dtype, "dtype %u is not f32, f16 or bf16", t.dtype);
  if (t.index_dtype && !is_index_type(t.index_dtype))
    return bad_tensor(error, i, DR_E_ARGUMENT, t.index_dtype, "index_dtype %u is not u32, i32, u64, i64 or 0 (dense)",
                      t.index_dtype);
  if (!t.index_dtype && t.indices)
    return bad_tensor(error, i, DR_E_ARGUMENT, 0, "has indices, but index_dtype is 0 (dense)");
  if (t.flags & ~uint32_t{DR_TENSOR_SUM_DUPLICATES})
    return bad_tensor(error, i, DR_E_UNSUPPORTED, t.flags, "unknown flags 0x%x", t.flags);
  if (t.universe > tensor_elements_max / width)
    return bad_tensor(error, i, DR_E_ARGUMENT, t.universe, "universe %" PRIu64 " of width %u exceeds 2^56 values",
                      t.universe, width);
  if (t.index_dtype && t.count > tensor_elements_max / width)
    return bad_tensor(error, i, DR_E_ARGUMENT, t.count, "count %" PRIu64 " exceeds 2^56 values", t.count);
  out = {
      t.dtype, t.index_dtype, width, t.flags, t.universe, t.index_dtype ? t.count : 0, std::max<uint64_t>(1, t.rows)};
  return DR_OK;
}

namespace {

// The first number of the shape that is not the prepared one; its name is nullptr if there is none.
struct difference {
  const char* name;
  uint64_t now, was;
};
difference difference_of(const tensor_shape& now, const tensor_shape& was) {
  for (const difference& d : {difference{"index_dtype", now.index_dtype, was.index_dtype},
                              {"width", now.width, was.width},
                              {"universe", now.universe, was.universe},
                              {"rows", now.rows, was.rows}})
    if (d.now != d.was) return d;
  return {now.count > was.count ? "count" : nullptr, now.count, was.count};
}

dr_status bad_pointer(dr_error& error, uint64_t tensor, uint32_t stream, const void* at, const char* sentence) {
  bad_tensor(error, tensor, DR_E_ARGUMENT, reinterpret_cast<uintptr_t>(at), "%s", sentence);
  error.stream = stream;
  return DR_E_ARGUMENT;
}

// Elements or rows that are in memory.
uint64_t present_in(const tensor_view& t) { return t.index_dtype ? t.count : t.universe; }

// An error about memory that is only for patches.
dr_status bad_without_patch(dr_error& error, uint64_t tensor, const void* at, const char* what) {
  bad_tensor(error, tensor, DR_E_ARGUMENT, reinterpret_cast<uintptr_t>(at), "has %s, but its plan has no sparsify=%s",
             what, sparsifier_with(&sparsifier::patches));
  error.stream = DR_STREAM_VALUE;
  return DR_E_ARGUMENT;
}

// The words name who has a base: commands on gradients have none.
dr_status bad_without_base(dr_error& error, uint64_t tensor, const plan& method) {
  bad_tensor(error, tensor, DR_E_ARGUMENT, 0, "base is NULL: sparsify=%s compares with %s", method.sparsify.codec->name,
             method.patches()
                 ? "the receiver's values: dr_tensor.base, Python's deepreduce.patch, the command `deepreduce "
                   "patch`"
                 : "the weights that the tensor is to move: dr_tensor.base, Python's encode(weights=) and "
                   "deepreduce.outer");
  error.stream = DR_STREAM_VALUE;
  return DR_E_ARGUMENT;
}

}  // namespace

dr_status check_values(const tensor_view& t, uint64_t i, dr_error& error) {
  if (present_in(t) && !t.values) return bad_pointer(error, i, DR_STREAM_VALUE, nullptr, "values is NULL");
  if (reinterpret_cast<uintptr_t>(t.values) % value_size(t.dtype))
    return bad_pointer(error, i, DR_STREAM_VALUE, t.values, "values are not aligned to their dtype");
  return DR_OK;
}

namespace {

dr_status check_tensor(const tensor_view& t, uint64_t i, const tensor_shape& was, const plan& method, bool on_device,
                       dr_error& error) {
  tensor_shape shape{};
  if (const dr_status s = read_shape(t, i, shape, error)) return s;
  if (!method.has_tiles()) shape.rows = was.rows;
  if (shape.dtype != was.dtype)
    return bad_tensor(error, i, DR_E_ARGUMENT, shape.dtype, "has %s values; the batch was prepared for %s",
                      dtype_name(shape.dtype), dtype_name(was.dtype));
  if (const difference d = difference_of(shape, was); d.name)
    return bad_tensor(error, i, DR_E_ARGUMENT, d.now, "its %s is %" PRIu64 "; the batch was prepared for %" PRIu64,
                      d.name, d.now, d.was);
  const uint64_t present = present_in(t);
  if (const dr_status s = check_values(t, i, error)) return s;
  if (present && shape.sparse() && !t.indices)
    return bad_pointer(error, i, DR_STREAM_INDEX, nullptr, "indices is NULL");
  if (!method.takes_base() && t.base && present) return bad_without_patch(error, i, t.base, "a base");
  if (method.takes_base() && !t.base && present) return bad_without_base(error, i, method);
  if (reinterpret_cast<uintptr_t>(t.base) % value_size(t.dtype))
    return bad_pointer(error, i, DR_STREAM_VALUE, t.base, "base is not aligned to its dtype");
  if (reinterpret_cast<uintptr_t>(t.sums) % sizeof *t.sums)
    return bad_pointer(error, i, DR_STREAM_VALUE, t.sums, "sums are not aligned to 8");
  if (!method.patches() && t.history) return bad_without_patch(error, i, t.history, "a history");
  if (on_device && (t.sums || t.history))
    return bad_tensor(error, i, DR_E_UNSUPPORTED, 0, "has %s, which only the CPU keeps", t.sums ? "sums" : "a history");
  const uintptr_t index_size = t.index_dtype == DR_U64 || t.index_dtype == DR_I64 ? 8 : 4;
  if (shape.sparse() && reinterpret_cast<uintptr_t>(t.indices) % index_size)
    return bad_pointer(error, i, DR_STREAM_INDEX, t.indices, "indices are not aligned to their dtype");
  if (!method.keeps_feedback()) {
    if (t.state && t.state_size)
      return bad_tensor(error, i, DR_E_ARGUMENT, t.state_size, "has a state, but its plan has no feedback");
    return DR_OK;
  }
  if (!check_state(t.state, t.state_size, method.feedback_rule().kind, shape.elements(), on_device, error))
    return DR_OK;
  const dr_error inner = error;
  return bad_tensor(error, i, DR_E_ARGUMENT, inner.what, "%s", inner.message);
}

}  // namespace

dr_status check_tensors(const batch& b, std::span<const tensor_view> tensors, bool on_device, dr_error& error) {
  if (tensors.size() != b.shapes.size()) {
    fail(error, DR_E_ARGUMENT, "%zu tensors; the batch was prepared for %zu", tensors.size(), b.shapes.size());
    error.what = tensors.size();
    return DR_E_ARGUMENT;
  }
  for (const unit& u : b.units)
    for (uint32_t i = u.first_tensor; i < u.first_tensor + u.tensors; ++i)
      if (const dr_status s = check_tensor(tensors[i], i, b.shapes[i], *u.method, on_device, error)) return s;
  return DR_OK;
}

uint64_t states_of(const batch& b) {
  uint64_t n = 0;
  for (const unit& u : b.units) n += u.method->keeps_feedback() ? u.tensors : 0;
  return n > 1 ? n : 0;
}

dr_status check_states_apart(const batch& b, std::span<const tensor_view> tensors, state_range* room, dr_error& error) {
  if (states_of(b) == 0) return DR_OK;  // `room` is empty then
  size_t n = 0;
  bool ascending = true;
  for (const unit& u : b.units) {
    if (!u.method->keeps_feedback()) continue;
    for (uint32_t i = u.first_tensor; i < u.first_tensor + u.tensors; ++i) {
      const auto begin = reinterpret_cast<uintptr_t>(tensors[i].state);
      room[n] = {begin, begin + state_size_of(u.method->feedback_rule().kind, b.shapes[i].elements()), i};
      ascending = ascending && (n == 0 || room[n - 1].end <= begin);
      ++n;
    }
  }
  if (ascending) return DR_OK;
  std::sort(room, room + n, [](const state_range& x, const state_range& y) {
    return x.begin != y.begin ? x.begin < y.begin : x.tensor < y.tensor;
  });
  for (size_t k = 1; k < n; ++k)
    if (room[k].begin < room[k - 1].end) {
      const auto [first, second] = std::minmax(room[k - 1].tensor, room[k].tensor);
      return bad_tensor(error, second, DR_E_ARGUMENT, first, "its state overlaps the state of tensor %u", first);
    }
  return DR_OK;
}

dr_status check_fit(const batch& b, dr_error& error) {
  for (const unit& u : b.units) {
    if (u.method->keeps_residual()) continue;
    if (u.method->keeps_feedback())
      fail(error, DR_E_ARGUMENT,
           "tensor %u: DR_CALL_FIT requires a plan with feedback that keeps a residual; %s keeps none", u.first_tensor,
           u.method->feedback.codec->name);
    else
      fail(error, DR_E_ARGUMENT, "tensor %u: DR_CALL_FIT requires a plan with feedback", u.first_tensor);
    error.tensor = u.first_tensor;
    return DR_E_ARGUMENT;
  }
  return DR_OK;
}

dr_status check_in_place(std::span<const tensor_view> tensors, std::span<const out_range> ranges, dr_error& error) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const tensor_view& t = tensors[i];
    const auto begin = reinterpret_cast<uintptr_t>(t.values);
    const uint64_t end = begin + t.universe * std::max(1u, t.width) * value_size(t.dtype);
    const auto* r = std::partition_point(ranges.data(), ranges.data() + ranges.size(),
                                         [&](const out_range& o) { return o.end <= begin; });
    for (; r != ranges.data() + ranges.size() && r->begin < end; ++r) {
      if (r->output != i) return bad_tensor(error, i, DR_E_ARGUMENT, r->output, "output %zu overlaps it", r->output);
      if (r->begin != begin)
        return bad_tensor(error, i, DR_E_ARGUMENT, 0, "its output overlaps it, but does not begin where it does");
    }
  }
  return DR_OK;
}

}  // namespace dr
