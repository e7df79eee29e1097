// Whether a batch runs on a GPU, and the beginning of a call there.
#include <algorithm>
#include <cinttypes>

#include "pipeline/begin.hpp"
#include "pipeline/device_encode.hpp"

namespace dr {

dr_status check_device_batch(const batch& b, bool& host_would_do, dr_error& error) {
  host_would_do = true;
  constexpr const char* host_only = " runs on the CPU only; DR_PLACE_ALLOW_HOST runs it there, with copies and a wait";
  const auto lacks = [&](uint32_t tensor, const char* what, const char* name) {
    fail(error, DR_E_UNSUPPORTED, "tensor %u: %s%s", tensor, name, what);
    error.tensor = tensor;
    return DR_E_UNSUPPORTED;
  };
  for (const unit& u : b.units) {
    if (u.patches() && !is_value_type(u.dtype))
      return lacks(u.first_tensor,
                   ": patches of this type run on the CPU only; DR_PLACE_ALLOW_HOST runs them there, "
                   "with copies and a wait",
                   dtype_name(u.dtype));
    if (u.patches() && u.width != 1)
      return lacks(u.first_tensor,
                   ": patches of rows of several values run on the CPU only; DR_PLACE_ALLOW_HOST runs "
                   "them there, with copies and a wait",
                   u.method->sparsifier().how.entry.name);
    if (const stage_list& index = b.wire[b.rows[u.first_row].plan].index(); u.patches() && index.whole())
      return lacks(
          u.first_tensor,
          ": patches of all elements run on the CPU only; DR_PLACE_ALLOW_HOST runs them there, with copies and "
          "a wait",
          index.front().codec->name);
    if (const sparsifier& s = u.method->sparsifier().how; !s.on_device && !s.patches)
      return lacks(u.first_tensor, host_only, s.entry.name);
    if (const bound_sparsifier s = u.method->sparsifier(); s.how.on_device && s.block() == 0)
      return lacks(u.first_tensor,
                   "(block=auto) runs on the CPU only, block=1 to 32 on CUDA, too; DR_PLACE_ALLOW_HOST runs it there, "
                   "with copies and a wait",
                   s.how.entry.name);
    if (u.method->keeps_feedback() && (u.method->feedback.codec->traits & DR_HOST_ONLY))
      return lacks(u.first_tensor, host_only, u.method->feedback.codec->name);
    if (u.tiles) return lacks(u.first_tensor, host_only, "transform=dct");
    if (u.method->votes) return lacks(u.first_tensor, host_only, "merge=vote");
    if (u.universe > universe_max) return lacks(u.first_tensor, "2^32 rows and more have no CUDA path", "");
    if (u.rows > 1 && u.method->sparsifier().how.block)
      return lacks(u.first_tensor, " of a tensor in segments have no CUDA path", u.method->sparsifier().how.entry.name);
    if (u.rows > 1 && u.tensors > 1)
      return lacks(u.first_tensor, "segments of a bucket (bucket=flat) have no CUDA path", "");
    if (u.rows > 1 && u.patches() && u.dense_above < u.universe)
      return lacks(u.first_tensor, ": max_ratio of patches in segments has no CUDA path",
                   u.method->sparsifier().how.entry.name);
    const tensor_shape& shape = b.shapes[u.first_tensor];
    if ((shape.sparse() || shape.width != 1) && u.method->keeps_feedback())
      return lacks(u.first_tensor, "feedback of a sparse tensor, or of rows of several values, has no CUDA path", "");
    if (shape.sparse() && !u.method->sparsifier().how.passes_on)
      return lacks(u.first_tensor, "sparsifying a sparse tensor has no CUDA path", "");
    if (shape.flags & DR_TENSOR_SUM_DUPLICATES)
      return lacks(u.first_tensor, "DR_TENSOR_SUM_DUPLICATES has no CUDA path: indices must ascend", "");
    if (shape.sparse() && shape.count > u.universe)
      return lacks(u.first_tensor, "count exceeds universe: on CUDA indices must ascend", "");
  }
  for (size_t i = 0; i < b.rows.size() && !b.patches(); ++i)
    if (const uint64_t listed = select_lists(device_select_job_of(b, i)); listed >= select_lists_limit) {
      const unit& u = b.units[b.rows[i].unit];
      fail(error, DR_E_UNSUPPORTED,
           "tensor %u: %s lists up to %" PRIu64 " elements; on CUDA fewer than %" PRIu64
           "; DR_PLACE_ALLOW_HOST runs it on the CPU, with copies and a wait",
           u.first_tensor, u.method->sparsifier().how.entry.name, listed, select_lists_limit);
      error.tensor = u.first_tensor;
      return DR_E_UNSUPPORTED;
    }
  for (const batch_row& r : b.rows)
    if (!r.choices.empty())
      return lacks(b.units[r.unit].first_tensor,
                   "auto runs on the CPU only; DR_PLACE_ALLOW_HOST runs it there, with copies and a wait", "");
  for (const batch_row& r : b.rows)
    if (const wire_plan& plan = b.wire[r.plan]; plan.index().block > 1 && plan.replaces_support())
      return lacks(b.units[r.unit].first_tensor,
                   " of blocks runs on the CPU only; DR_PLACE_ALLOW_HOST runs it there, with copies and a wait",
                   plan.index().front().codec->name);
  for (size_t i = 0; i < b.rows.size(); ++i)
    for (const stage_list& list : b.wire[b.rows[i].plan].lists)
      for (uint32_t k = 0; k < list.count; ++k)
        if (!runs_on_cuda(list.stages[k]) || k > 0)
          return lacks(b.units[b.rows[i].unit].first_tensor,
                       list.stages[k].codec->cuda
                           ? " with these parameters runs on the CPU only; DR_PLACE_ALLOW_HOST runs it there, with "
                             "copies and a wait"
                           : host_only,
                       list.stages[k].codec->name);
  host_would_do = false;
  return DR_OK;
}

device_prepared device_prepared::of(const batch& b) {
  const uint64_t universe = b.rows.empty() ? 0 : b.rows[0].universe;
  return {{device_header::of(b.layout[0], b.wire, universe), device_header::of(b.layout[1], b.wire, universe)},
          device_encode_layout::of(b)};
}

dr_status begin_on_device(const dr_exec& exec, std::byte* zero, uint64_t zero_size, std::byte* to,
                          std::span<const uint8_t> blob) {
  uint64_t at = 0;
  do {
    const uint64_t size = std::min(blob.size() - at, begin_many);
    const dr_status s = with_begin_size(size, [&]<uint64_t N>(std::integral_constant<uint64_t, N>) {
      const auto args = begin_args<N>(zero, at ? 0 : zero_size, to + at, blob.subspan(at, size));
      return launch<begin_call<N>>(exec, begin_blocks(args), args);
    });
    if (s) return s;
    at += size;
  } while (at < blob.size());
  return DR_OK;
}

}  // namespace dr
