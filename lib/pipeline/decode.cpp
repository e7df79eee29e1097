#include "pipeline/decode.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <numeric>

#include "merge/merge.hpp"
#include "patch/advance_history.hpp"
#include "patch/base_check.hpp"
#include "pipeline/decode_work.hpp"
#include "primitive/ascending.hpp"
#include "primitive/bits.hpp"
#include "split/blocks.hpp"
#include "split/split.hpp"

namespace dr {
namespace {

class decoder {
 public:
  decoder(const frame_view& frame, const decode_work& w, decode_row* rows, pool& workers, dr_error& error)
      : f_(frame), w_(w), rows_(rows), error_(error), run_{w.scratch, w.scratch_stride, &workers} {}

  dr_status run(decoded_row* out) {
    for (size_t i = 0; i < f_.rows.size(); ++i)
      if (const dr_status status = check_base(i)) return status;
    // Sorts the rows by plan once: a hostile frame may have as many plans and rows as bytes.
    const size_t n = f_.rows.size();
    std::iota(w_.by_plan, w_.by_plan + n, 0u);
    std::sort(w_.by_plan, w_.by_plan + n, [&](uint32_t a, uint32_t b) {
      return f_.rows[a].plan != f_.rows[b].plan ? f_.rows[a].plan < f_.rows[b].plan : a < b;
    });
    for (size_t begin = 0, end = 0; begin < n; begin = end) {
      while (end < n && f_.rows[w_.by_plan[end]].plan == f_.rows[w_.by_plan[begin]].plan) ++end;
      for (const uint32_t s : {section_index, section_value, section_order})
        if (const dr_status status = section({w_.by_plan + begin, w_.by_plan + end}, s)) return status;
    }
    for (size_t i = 0; i < f_.rows.size(); ++i)
      if (const dr_status status = finish(i, out[i])) return status;
    for (size_t i = 0; i < f_.rows.size(); ++i)
      if (const dr_status status = check_result(i, out[i])) return status;
    return DR_OK;
  }

 private:
  const wire_plan& plan_of(size_t i) const { return f_.plans[f_.rows[i].plan]; }

  // One section of the rows of a plan.
  dr_status section(std::span<const uint32_t> rows, uint32_t s) {
    static constexpr uint32_t stream[] = {DR_STREAM_VALUE, DR_STREAM_ORDER, DR_STREAM_INDEX};
    const wire_plan& plan = plan_of(rows[0]);
    const stage_list& list = plan.lists[s];
    if (list.count == 0) return DR_OK;
    w_.jobs.n = 0;
    for (const uint32_t i : rows) {
      const wire_row& row = f_.rows[i];
      if (!coded(row) || !has_stream(plan, row, s)) continue;
      decode_row& o = rows_[i];
      uint64_t at = row.offset + row.prefix;
      for (uint32_t before = 0; before < s; ++before) at += row.size[before];
      o.slots[s].data = f_.data + at;
      o.slots[s].size = row.size[s];
      o.fault = no_fault(stream[s]);
      const uint64_t count = s == section_index ? row.count : row.support;
      dr_job job = shape_job({list.keys(row.universe), list.keys(count), plan.dtype, plan.width});
      if (s == section_order) job.universe = row.support;
      job.fault = &o.fault;
      if (plan.patch) {
        job.base = s == section_index || !o.support ? static_cast<const void*>(o.base) : o.based;
        job.history = s == section_index || !o.support ? o.history : nullptr;
        if (s == section_value && o.support) {
          if (const dr_status status = check_support(i)) return status;
          gather(row_bytes(plan), o.base, o.support, row.support, o.based);
          if (o.history && o.past) {
            gather_history(o.history, plan.width, o.support, row.support, o.past);
            job.history = o.past;
          }
        }
      }
      void* const outs[] = {o.values, o.order, o.support};
      job.out = outs[s];
      job.out_capacity = list.keys(row.support) * (s == section_value ? row_bytes(plan) : 4);
      job.out_size = &o.out_size[s];
      w_.selected[w_.jobs.n] = i;
      w_.jobs.add(job, o.slots[s]);
    }
    if (w_.jobs.n == 0) return DR_OK;
    if (broken_contract broken; decode_chain(list, run_, w_.jobs, broken)) return fail(error_, broken, "decoding");
    for (size_t j = 0; j < w_.jobs.n; ++j)
      if (rows_[w_.selected[j]].fault.code)
        return fail(error_, rows_[w_.selected[j]].fault, tensor_of(w_.selected[j]), list.front().codec->name);
    return DR_OK;
  }

  uint64_t tensor_of(size_t row) const { return f_.rows[row].tensor; }

  dr_status corrupt(size_t i, uint32_t stream, uint64_t where, uint64_t what, const char* message) {
    return fail(error_, dr_fault{sizeof(dr_fault), DR_E_CORRUPT, stream, where, what, message}, tensor_of(i), nullptr);
  }

  // Makes the support ascend, with the values in its order, for all codecs: later steps need no validation.
  dr_status finish(size_t i, decoded_row& out) {
    const wire_row& row = f_.rows[i];
    const wire_plan& plan = plan_of(i);
    const decode_row& o = rows_[i];
    out = {o.support, o.values, row.universe, row.support, plan.dtype, plan.width, row.tensor, plan.tiles};
    if (row.mode == mode_dense) {
      if (!o.values)
        out.values = f_.data + row.offset + row.prefix;
      else if (row.sections())
        std::memcpy(o.values, f_.data + row.offset + row.prefix, row.sections());
      return DR_OK;
    }
    if (row.mode == mode_raw_index && row.count)
      std::memcpy(o.support, f_.data + row.offset + row.size[section_value] + row.size[section_order], 4 * row.support);
    if (row.support == 0 || row.count == 0) return DR_OK;
    if (plan.carries_order) return finish_keys(i, out);
    if (o.support && !plan.patch) {
      const uint32_t block = row.mode == mode_plan ? plan.index().block : 1;
      const uint64_t n = ceil_div(row.support, block);
      if (const uint64_t k = first_descent(o.support, n, ceil_div(row.universe, block)); k < n)
        return corrupt(i, DR_STREAM_INDEX, k, o.support[k], "indices do not ascend, or one is not below the universe");
      if (elements_of_blocks(o.support, n, block, row.universe) != row.support)
        return corrupt(i, DR_STREAM_INDEX, n - 1, o.support[n - 1],
                       "the last block is missing, or has too many elements");
      expand_blocks(o.support, n, block, row.universe);
    }
    if (!o.order) return DR_OK;
    if (const uint64_t k = first_misplaced(o.order, row.support, o.seen); k < row.support)
      return corrupt(i, DR_STREAM_ORDER, k, o.order[k], "not a permutation");
    scatter(row_bytes(plan), o.values, o.order, row.support, o.in_order);
    out.values = o.in_order;
    return DR_OK;
  }

  dr_status check_support(size_t i) {
    const wire_row& row = f_.rows[i];
    const decode_row& o = rows_[i];
    const uint64_t k = first_descent(o.support, row.support, row.universe);
    if (k == row.support) return DR_OK;
    return corrupt(i, DR_STREAM_INDEX, k, o.support[k], "indices do not ascend, or one is not below the universe");
  }

  // ---- Patches: the receiver's base is the one of the patch, and the result is that of its sender -------------

  dr_status check_base(size_t i) {
    const wire_row& row = f_.rows[i];
    const wire_plan& plan = plan_of(i);
    if (!plan.patch) return DR_OK;
    const decode_row& o = rows_[i];
    const uint64_t bytes = row_size(plan, row), chunks = base_chunks(bytes);
    if (o.known)
      std::memcpy(o.sums, o.known, chunks * sizeof(uint64_t));
    else
      base_sums(o.base, bytes, o.sums);
    const uint64_t here = fold_sums(o.sums, chunks), expected = load<uint64_t>(f_.data + row.offset);
    if (here == expected) return DR_OK;
    fail(error_, DR_E_ARGUMENT,
         "tensor %" PRIu64 ": its check is %016" PRIx64 "; the patch is for a base of check %016" PRIx64, tensor_of(i),
         here, expected);
    error_.tensor = tensor_of(i);
    error_.what = here;
    error_.reason = DR_REASON_WRONG_BASE;
    return DR_E_ARGUMENT;
  }

  dr_status check_result(size_t i, const decoded_row& out) {
    const wire_row& row = f_.rows[i];
    const wire_plan& plan = plan_of(i);
    if (!plan.patch) return DR_OK;
    const decode_row& o = rows_[i];
    const uint64_t bytes = row_size(plan, row);
    if (row.mode == mode_dense || (coded(row) && !o.support))
      base_sums(out.values, bytes, o.sums);
    else if (coded(row))
      move_sums(o.sums, value_size(plan.dtype), plan.width, o.support, row.support, o.based, out.values);
    const uint64_t here = fold_sums(o.sums, base_chunks(bytes));
    if (here == load<uint64_t>(f_.data + row.offset + 8)) return DR_OK;
    return corrupt(i, DR_STREAM_NONE, 0, here, "the base becomes other values than its sender had");
  }

  dr_status finish_keys(size_t i, decoded_row& out) {
    const wire_row& row = f_.rows[i];
    const decode_row& o = rows_[i];
    for (uint64_t k = 0; k < row.support; ++k)
      if (o.support[k] >= row.universe)
        return corrupt(i, DR_STREAM_INDEX, k, o.support[k], "a key is not below the universe");
    const uint64_t k = sort_by_keys(o.support, row.support, row_bytes(plan_of(i)), o.values, o.sorted, o.in_order);
    if (k < row.support)
      return corrupt(i, DR_STREAM_INDEX, static_cast<uint32_t>(o.sorted[k]), o.sorted[k] >> 32, "a key occurs twice");
    out.values = o.in_order;
    return DR_OK;
  }

  const frame_view& f_;
  decode_work w_;
  decode_row* rows_;
  dr_error& error_;
  stage_runner run_;
};

// Calls f(row, its memory in the outputs) for every row of a frame, until it returns false.
template <class F>
bool each_place(const frame_view& frame, std::span<const tensor_out> outs, F&& f) {
  bool continues = true;
  size_t next = 0;
  each_tensor(frame, [&](size_t begin, size_t end, uint64_t) {
    const tensor_out& o = outs[next++];
    uint64_t first = 0;
    for (size_t i = begin; continues && i < end; first += frame.rows[i++].universe)
      continues = f(i, o, at_element(o, first * width_of(o)));
  });
  return continues;
}

// ---- Patches --------------------------------------------------------------------------------------------------

// Finds the segments' bases, and the sums of their chunks, if the caller has them.
void find_bases(const frame_view& frame, std::span<const tensor_out> outs, decode_row* rows) {
  size_t next = 0;
  each_tensor(frame, [&](size_t begin, size_t end, uint64_t) {
    const tensor_out& o = outs[next++];
    const auto* base = static_cast<const std::byte*>(o.index_dtype ? o.base : o.values);
    for (uint64_t at = 0; begin < end;
         at += row_size(frame.plans[frame.rows[begin].plan], frame.rows[begin]), ++begin) {
      rows[begin].base = base + at;
      rows[begin].known = o.sums ? o.sums + at / base_chunk : nullptr;
      rows[begin].history = o.history ? o.history + at / value_size(o.dtype) : nullptr;
    }
  });
}

// Updates the caller's sums to those of the result. (The following steps cannot fail.)
void keep_sums(const frame_view& frame, const decode_row* rows) {
  for (size_t i = 0; i < frame.rows.size(); ++i)
    if (rows[i].known)
      std::memcpy(rows[i].known, rows[i].sums,
                  base_chunks(row_size(frame.plans[frame.rows[i].plan], frame.rows[i])) * sizeof(uint64_t));
}

// Updates the caller's histories.
void keep_history(const frame_view& frame, const decode_row* rows, const decoded_row* decoded) {
  for (size_t i = 0; i < frame.rows.size(); ++i) {
    const wire_plan& plan = frame.plans[frame.rows[i].plan];
    const decode_row& o = rows[i];
    const decoded_row& d = decoded[i];
    if (!o.history) continue;
    advance_history(o.history, d.universe, plan.dtype, plan.width, d.support, d.count,
                    d.support ? static_cast<const void*>(o.based) : o.base, d.values);
  }
}

// Writes the changed words to the bases themselves, or returns them as pairs.
void apply_patch(const frame_view& frame, decoded_frame rows, std::span<tensor_out> outs) {
  write_sparse(rows, outs);
  each_place(frame, outs, [&](size_t i, const tensor_out& o, std::byte* to) {
    const decoded_row& row = rows[i];
    if (o.index_dtype || !row.count) return true;
    if (row.support)
      scatter(row.row_bytes(), row.values, row.support, row.count, to);
    else
      std::memcpy(to, row.values, row.count * row.row_bytes());
    return true;
  });
  size_t next = 0;
  each_tensor(frame, [&](size_t begin, size_t end, uint64_t) {
    for (tensor_out& o = outs[next++]; begin < end; ++begin)
      if (!o.index_dtype) o.count += rows[begin].count;
  });
}

}  // namespace

bool decodes_in_place(const frame_view& frame, std::span<const tensor_out> outs) {
  const auto plan_of = [&](const wire_row& row) -> const wire_plan& { return frame.plans[row.plan]; };
  return std::ranges::all_of(frame.rows,
                             [&](const wire_row& row) {
                               const wire_plan& plan = plan_of(row);
                               return coded(row) && whole(plan, row) && !plan.value().has(DR_REORDERS) && !plan.tiles;
                             }) &&
         !is_cut(frame, outs.size()) && !is_patch(frame) &&
         each_place(frame, outs, [&](size_t i, const tensor_out& o, std::byte* to) {
           return !o.index_dtype && o.dtype == plan_of(frame.rows[i]).dtype &&
                  reinterpret_cast<uintptr_t>(to) % 16 == 0;
         });
}

dr_status decode_rows(std::span<const frame_view> frames, std::span<const tensor_out> outs, bool copies, pool& workers,
                      const decode_work& w, decoded_row* rows, std::span<const decoded_frame>& decoded,
                      dr_error& error) {
  if (!w.scratch) return fail(error, DR_E_INTERNAL, "decode: the workspace is too small");
  const bool patches = copies && is_patch(frames[0]);
  if (patches) find_bases(frames[0], outs, w.rows);
  if (copies && decodes_in_place(frames[0], outs))
    each_place(frames[0], outs, [&](size_t i, const tensor_out&, std::byte* to) {
      w.rows[i].values = to;
      return true;
    });
  size_t first = 0;
  for (size_t k = 0; k < frames.size(); ++k) {
    decoder d(frames[k], w, w.rows + first, workers, error);
    if (const dr_status s = d.run(rows + first)) {
      if (frames.size() > 1) {
        error.frame = k;
        prefix(error, "frame %zu: ", k);
      }
      return s;
    }
    w.frames[k] = {rows + first, frames[k].rows.size()};
    first += frames[k].rows.size();
  }
  if (patches) {
    keep_sums(frames[0], w.rows);
    keep_history(frames[0], w.rows, rows);
  }
  decoded = {w.frames, frames.size()};
  return DR_OK;
}

void deliver(const frame_view& frame, decoded_frame decoded, const merge_scratch* scratch, pool& workers,
             std::span<tensor_out> outs) {
  if (decodes_in_place(frame, outs)) {
    for (tensor_out& o : outs) o.count = o.universe;
    return;
  }
  for (tensor_out& o : outs) o.count = 0;
  if (is_patch(frame)) return apply_patch(frame, decoded, outs);
  merge_dense({&decoded, 1}, nullptr, merge_mode::copy, {}, scratch, workers, outs);
  if (!is_cut(frame, outs.size())) write_sparse(decoded, outs);
}

dr_status count_unions(std::span<const decoded_frame> frames, const merge_scratch* scratch, pool& workers,
                       std::span<const tensor_out> outs, dr_error& error) {
  count_union_rows(frames, scratch, workers, outs);
  for (size_t i = 0; i < outs.size(); ++i) {
    if (!outs[i].index_dtype) continue;
    const uint64_t n = union_rows(scratch, workers, i);
    if (n <= outs[i].capacity) continue;
    fail(error, DR_E_CAPACITY, "output %zu: capacity %" PRIu64 "; the union of the supports has %" PRIu64 " rows", i,
         outs[i].capacity, n);
    error.tensor = i;
    error.needed = n;
    return DR_E_CAPACITY;
  }
  return DR_OK;
}

void merge(std::span<const decoded_frame> frames, const float* weights, bool adds, const voters& votes,
           const merge_scratch* scratch, pool& workers, std::span<tensor_out> outs) {
  for (tensor_out& o : outs) o.count = 0;
  merge_dense(frames, weights, adds ? merge_mode::add : merge_mode::sum, votes, scratch, workers, outs);
  merge_unions(frames, weights, scratch, workers, outs);
  for (size_t i = 0; i < outs.size(); ++i)
    if (outs[i].index_dtype && votes(i))
      replace_by_signs(outs[i].dtype, outs[i].values, outs[i].count * width_of(outs[i]));
}

}  // namespace dr
