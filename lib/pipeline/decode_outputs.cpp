#include <algorithm>
#include <cinttypes>

#include "pipeline/batch.hpp"
#include "pipeline/decode.hpp"
#include "primitive/bits.hpp"

namespace dr {
namespace {

dr_status bad_output(dr_error& error, uint64_t i, dr_status code, const char* what, uint64_t has, uint64_t wants) {
  fail(error, code, "output %" PRIu64 ": %s (output %" PRIu64 ", frame %" PRIu64 ")", i, what, has, wants);
  error.tensor = i;
  return code;
}

// An error of an output alone, before a frame is read.
dr_status bad_field(dr_error& error, uint64_t i, dr_status code, const char* what, uint64_t has) {
  fail(error, code, "output %" PRIu64 ": %s (value %" PRIu64 ")", i, what, has);
  error.tensor = i;
  return code;
}

}  // namespace

dr_status check_frame(const batch& b, const frame_view& frame, dr_error& error) {
  if (frame.tensors != b.units.size())
    return fail(error, DR_E_ARGUMENT, "frame: %u tensors; the batch was prepared for %zu", frame.tensors,
                b.units.size());
  dr_status status = DR_OK;
  const unit* u = b.units.data();
  each_tensor(frame, [&](size_t begin, size_t, uint64_t universe) {
    const wire_plan& p = frame.plans[frame.rows[begin].plan];
    if (!status && (universe != u->universe || p.width != u->width || p.dtype != u->dtype)) {
      status =
          fail(error, DR_E_ARGUMENT,
               "frame: tensor %u has %" PRIu64 " rows of %u values in %s; the batch was prepared for %" PRIu64
               " of %u in %s",
               u->first_tensor, universe, p.width, dtype_name(p.dtype), u->universe, u->width, dtype_name(u->dtype));
      error.tensor = u->first_tensor;
    }
    if (!status && p.patch != u->patches()) {
      status = fail(error, DR_E_ARGUMENT, "frame: tensor %u is %s patch; the batch was prepared for %s",
                    u->first_tensor, p.patch ? "a" : "not a", p.patch ? "gradients" : "patches");
      error.tensor = u->first_tensor;
    }
    if (!status && p.tiles != u->tiles) {
      status = fail(error, DR_E_ARGUMENT, "frame: tensor %u is of other tiles than the batch was prepared for",
                    u->first_tensor);
      error.tensor = u->first_tensor;
    }
    ++u;
  });
  return status;
}

frame_view common_frame(const batch& b) {
  frame_view f;
  f.plans = b.wire;
  f.tensors = static_cast<uint32_t>(b.units.size());
  for (const batch_row& r : b.rows) {
    wire_row& row = f.rows.emplace_back();
    row.plan = r.plan;
    row.continues = r.continues;
    row.universe = r.universe;
  }
  return f;
}

dr_status keep_range(frame_view& frame, const dr_decode_options& options, size_t outs, dr_error& error) {
  const uint64_t first = options.first_tensor, n = options.tensors;
  if (!n && !first) return DR_OK;
  if (!n || first > frame.tensors || n > frame.tensors - first)
    return fail(error, DR_E_ARGUMENT,
                "options: tensors = %" PRIu64 ", first_tensor = %" PRIu64 "; the frame has %u tensors", n, first,
                frame.tensors);
  if (outs != n) return fail(error, DR_E_ARGUMENT, "%zu outputs; the options ask for %" PRIu64 " tensors", outs, n);
  frame.keep(static_cast<uint32_t>(first), static_cast<uint32_t>(n));
  return DR_OK;
}

dr_status list_ranges(std::span<const tensor_out> outs, std::vector<out_range>& ranges, dr_error& error) {
  ranges.clear();
  const auto add = [&](size_t i, const void* at, uint64_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(at);
    if (at && bytes) ranges.push_back({begin, bytes > UINTPTR_MAX - begin ? UINTPTR_MAX : begin + bytes, i});
  };
  for (size_t i = 0; i < outs.size(); ++i) {
    const tensor_out& o = outs[i];
    const uint64_t rows = o.index_dtype ? std::min(o.capacity, o.universe) : o.universe;
    add(i, o.values, saturated_product(rows, uint64_t{width_of(o)} * value_size(o.dtype)));
    if (o.index_dtype) add(i, o.indices, saturated_product(rows, index_type_size(o.index_dtype)));
  }
  const auto before = [](const out_range& a, const out_range& b) { return a.begin < b.begin; };
  if (!std::is_sorted(ranges.begin(), ranges.end(), before)) std::sort(ranges.begin(), ranges.end(), before);
  for (size_t k = 1; k < ranges.size(); ++k) {
    if (ranges[k - 1].end <= ranges[k].begin) continue;
    const auto [a, b] = std::minmax(ranges[k - 1].output, ranges[k].output);
    fail(error, DR_E_ARGUMENT, "output %zu overlaps output %zu", b, a);
    error.tensor = b;
    return DR_E_ARGUMENT;
  }
  return DR_OK;
}

dr_status check_apart(std::span<const out_range> ranges, const void* frame, uint64_t size, dr_error& error) {
  const auto begin = reinterpret_cast<uintptr_t>(frame);
  // The ranges ascend without overlap, and so do their ends.
  const auto found =
      std::partition_point(ranges.begin(), ranges.end(), [&](const out_range& r) { return r.end <= begin; });
  if (found == ranges.end() || !size || (found->begin > begin && found->begin - begin >= size)) return DR_OK;
  fail(error, DR_E_ARGUMENT, "output %zu overlaps the frame", found->output);
  error.tensor = found->output;
  return DR_E_ARGUMENT;
}

dr_status check_outputs(std::span<const tensor_out> outs, sparse_outputs sparse, uint64_t& total, dr_error& error) {
  const auto bad = [&](uint64_t i, const char* what, uint64_t has) {
    return bad_field(error, i, DR_E_ARGUMENT, what, has);
  };
  total = 0;
  for (size_t i = 0; i < outs.size(); ++i) {
    const tensor_out& o = outs[i];
    if (!is_word_type(o.dtype)) return bad(i, "dtype is not f32, f16 or bf16", o.dtype);
    if (o.index_dtype && !is_index_type(o.index_dtype))
      return bad(i, "index_dtype is not u32, i32, u64, i64 or 0 (dense)", o.index_dtype);
    if (o.flags) return bad_field(error, i, DR_E_UNSUPPORTED, "unknown flags", o.flags);
    if (reinterpret_cast<uintptr_t>(o.values) % value_size(o.dtype))
      return bad(i, "values are not aligned to their dtype", reinterpret_cast<uintptr_t>(o.values));
    if (o.index_dtype && sparse == sparse_outputs::none)
      return bad(i, "must be dense, but index_dtype is set", o.index_dtype);
    if (o.index_dtype && reinterpret_cast<uintptr_t>(o.indices) % index_type_size(o.index_dtype))
      return bad(i, "indices are not aligned to their dtype", reinterpret_cast<uintptr_t>(o.indices));
    if (o.index_dtype && sparse == sparse_outputs::unions && !o.indices && o.capacity)
      return bad(i, "indices is NULL, but capacity is not 0", o.capacity);
    if (!o.values && (o.index_dtype ? o.capacity : o.universe))
      return bad(i, "values is NULL, but there are rows", o.index_dtype ? o.capacity : o.universe);
    if (o.universe > UINT64_MAX - total) return bad(i, "universe overflows the sum of all outputs", o.universe);
    total += o.universe;
  }
  return DR_OK;
}

dr_status check_outputs(const frame_view& frame, std::span<const tensor_out> outs, sparse_outputs sparse,
                        dr_error& error) {
  const auto bad = [&](uint64_t i, dr_status code, const char* what, uint64_t has, uint64_t wants) {
    return bad_output(error, i, code, what, has, wants);
  };
  const bool cut = is_cut(frame, outs.size());
  if (!cut && outs.size() != frame.tensors)
    return fail(error, DR_E_ARGUMENT, "%zu outputs; the frame has %u tensors", outs.size(), frame.tensors);
  for (size_t i = 0; i < outs.size() && cut; ++i)
    if (outs[i].index_dtype)
      return bad_field(error, i, DR_E_ARGUMENT,
                       "is sparse, but several outputs share one tensor of the frame (bucket=flat) and must be dense; "
                       "dr_decode and dr_merge take one sparse output of all its rows",
                       outs[i].index_dtype);
  uint64_t total = 0;
  if (const dr_status s = check_outputs(outs, sparse, total, error)) return s;
  const auto type_fits = [&](size_t i, const wire_plan& p) -> dr_status {
    const tensor_out& o = outs[i];
    const uint32_t width = width_of(o);
    if (width != p.width) return bad(i, DR_E_ARGUMENT, "width differs", width, p.width);
    if (p.patch && o.dtype != p.dtype)
      return bad(i, DR_E_ARGUMENT, "dtype differs: a patch is of one type", o.dtype, p.dtype);
    if (!p.patch && !is_value_type(o.dtype))
      return bad_field(error, i, DR_E_ARGUMENT, "dtype is not f32, f16 or bf16", o.dtype);
    if (p.patch && o.index_dtype && !o.base && o.universe)
      return bad_field(error, i, DR_E_ARGUMENT, "is sparse, and base is NULL: a patch is of a base", 0);
    if (o.base && !(p.patch && o.index_dtype))
      return bad_field(error, i, DR_E_ARGUMENT, "has a base, which is for sparse outputs of patches", 1);
    if (reinterpret_cast<uintptr_t>(o.base) % value_size(o.dtype))
      return bad_field(error, i, DR_E_ARGUMENT, "base is not aligned to its dtype",
                       reinterpret_cast<uintptr_t>(o.base));
    if (o.history && !p.patch) return bad_field(error, i, DR_E_ARGUMENT, "has a history, which is for patches", 1);
    if (reinterpret_cast<uintptr_t>(o.sums) % sizeof *o.sums)
      return bad_field(error, i, DR_E_ARGUMENT, "sums are not aligned to 8", reinterpret_cast<uintptr_t>(o.sums));
    return DR_OK;
  };
  dr_status status = DR_OK;
  size_t next = 0;
  each_tensor(frame, [&](size_t begin, size_t end, uint64_t universe) {
    const wire_plan& p = frame.plans[frame.rows[begin].plan];
    if (cut) {
      for (size_t i = 0; i < outs.size() && !status; ++i) status = type_fits(i, p);
      if (!status && total != universe)
        status = fail(error, DR_E_ARGUMENT,
                      "%zu outputs have %" PRIu64 " rows in total; the one tensor of the frame has %" PRIu64,
                      outs.size(), total, universe);
      return;
    }
    if (status) return;
    const size_t i = next++;
    const tensor_out& o = outs[i];
    if ((status = type_fits(i, p))) return;
    if (o.universe != universe) {
      status = bad(i, DR_E_ARGUMENT, "universe differs", o.universe, universe);
      return;
    }
    if (!o.index_dtype) return;
    uint64_t support = 0;
    for (size_t r = begin; r < end; ++r) support += frame.rows[r].support;
    const uint64_t top = o.index_dtype == DR_U32   ? uint64_t{1} << 32
                         : o.index_dtype == DR_I32 ? uint64_t{1} << 31
                         : o.index_dtype == DR_I64 ? uint64_t{1} << 63
                                                   : UINT64_MAX;
    if (universe > top)
      status = bad(i, DR_E_ARGUMENT, "universe exceeds the range of index_dtype", top, universe);
    else if (sparse == sparse_outputs::unions)
      return;
    else if (support > o.capacity) {
      status = bad(i, DR_E_CAPACITY, "capacity is smaller than the support", o.capacity, support);
      error.needed = support;
    } else if (support && !o.indices)
      status = bad(i, DR_E_ARGUMENT, "indices is NULL", 0, support);
  });
  return status;
}

}  // namespace dr
