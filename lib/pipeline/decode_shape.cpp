#include <algorithm>
#include <atomic>

#include "core/codec_notes.hpp"
#include "pipeline/device_decode.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

uint64_t dense_size(const wire_plan& plan, uint64_t universe) { return universe * plan.width * value_size(plan.dtype); }

dr_status finish_shape(decode_shape& shape, bool& host_would_do, dr_error& error) {
  host_would_do = true;
  for (const wire_plan& plan : shape.wire) {
    if (plan.patch && (!is_value_type(plan.dtype) || plan.width != 1))
      return fail(
          error, DR_E_UNSUPPORTED,
          "frame: a patch of %s in rows of %u values runs on the CPU only; DR_PLACE_ALLOW_HOST decodes it there, "
          "with copies and a wait",
          dtype_name(plan.dtype), plan.width);
    if (plan.patch && plan.index().whole())
      return fail(
          error, DR_E_UNSUPPORTED,
          "frame: a patch of all elements (%s) runs on the CPU only; DR_PLACE_ALLOW_HOST decodes it there, with "
          "copies and a wait",
          plan.index().front().codec->name);
    if (plan.tiles)
      return fail(error, DR_E_UNSUPPORTED,
                  "frame: transform=dct runs on the CPU only; DR_PLACE_ALLOW_HOST decodes it there, with copies and a "
                  "wait");
    if (plan.index().block > 1 && plan.replaces_support())
      return fail(
          error, DR_E_UNSUPPORTED,
          "frame: %s of blocks runs on the CPU only; DR_PLACE_ALLOW_HOST decodes it there, with copies and a wait",
          plan.index().front().codec->name);
    for (const stage_list& list : plan.lists)
      for (uint32_t k = 0; k < list.count; ++k)
        if (!runs_on_cuda(list.stages[k]) || k > 0)
          return fail(error, DR_E_UNSUPPORTED,
                      "frame: %s%s runs on the CPU only; DR_PLACE_ALLOW_HOST decodes it there, with copies and a wait",
                      list.stages[k].codec->name, list.stages[k].codec->cuda ? " with these parameters" : "");
  }
  host_would_do = false;
  shape.header = device_header::of(shape.layout, shape.wire, shape.rows.empty() ? 0 : shape.rows[0].universe);
  return DR_OK;
}

}  // namespace

dr_status shape_of_batch(const batch& b, bool tagged, decode_shape& out, dr_error& error) {
  out = {};
  out.wire = b.wire;
  for (const batch_row& r : b.rows) {
    const listed_bound& l = r.listed;
    // (No encoder of the batch sends raw keys in place of all.)
    out.rows.push_back({r.plan,
                        r.plan,
                        r.universe,
                        l.count_max,
                        l.support_max,
                        l.payload,
                        l.count_max,
                        l.support_max,
                        !out.wire[r.plan].index().whole(),
                        dense_size(out.wire[r.plan], r.universe) <= r.bound.payload,
                        {},
                        r.first,
                        r.unit,
                        r.continues});
  }
  static std::atomic<uint64_t> last = 0;
  out.id = ++last;
  out.patches = b.patches();
  if (b.units.size() == 1 && b.units[0].tensors > 1) out.cuts = b.units[0].tensors;
  if (out.cuts && out.rows.size() > 1)
    return fail(error, DR_E_UNSUPPORTED, "batch: segments of a bucket (bucket=flat) have no CUDA path");
  out.layout = b.layout[tagged];
  if (tagged) {
    out.layout.has_tag = false;
    out.layout.header_size -= frame_tag_size;
  }
  bool host = false;
  return finish_shape(out, host, error);
}

dr_status shape_of_frame(const frame_view& f, size_t outs, decode_shape& out, bool& host_would_do, dr_error& error) {
  out = {};
  out.patches = is_patch(f);
  out.wire = f.plans;
  if (is_cut(f, outs)) out.cuts = static_cast<uint32_t>(outs);
  host_would_do = true;
  if (out.cuts && f.rows.size() > 1)
    return fail(error, DR_E_UNSUPPORTED,
                "frame: segments of one tensor for several outputs (bucket=flat) run on the CPU only; "
                "DR_PLACE_ALLOW_HOST decodes them there, with copies and a wait");
  uint64_t first = 0, before = 0;
  for (const wire_row& r : f.rows) {
    first = r.continues ? first + before : 0;
    before = r.universe;
    // The bounds of streams without a codec call are 0.
    const bool coded = r.mode == mode_plan && r.count != 0, dense = r.mode == mode_dense;
    out.rows.push_back({r.plan, r.entry, r.universe, r.count, dense ? 0 : r.support, r.payload(), coded ? r.count : 0,
                        r.support, r.mode == mode_raw_index || !f.plans[r.plan].index().whole(),
                        dense_size(f.plans[r.plan], r.universe) <= r.payload(), dense ? decltype(r.size){} : r.size,
                        first, r.tensor, r.continues});
  }
  out.layout = f.layout;
  return finish_shape(out, host_would_do, error);
}

void join_shapes(std::vector<decode_shape>& shapes) {
  if (shapes.size() < 2) return;
  decode_shape all = shapes[0];
  for (const decode_shape& s : shapes) {
    const header_layout &a = all.layout, &b = s.layout;
    if (a.short_form != b.short_form || a.short_width != b.short_width || a.table != b.table || a.width != b.width ||
        all.rows.size() != s.rows.size())
      return;
    for (size_t i = 0; i < s.rows.size(); ++i) {
      auto& x = all.rows[i];
      const auto& y = s.rows[i];
      if (x.plan != y.plan || x.entry != y.entry || x.universe != y.universe || x.continues != y.continues) return;
      x.count_max = std::max(x.count_max, y.count_max);
      x.support_max = std::max(x.support_max, y.support_max);
      x.payload = std::max(x.payload, y.payload);
      x.coded_max = std::max(x.coded_max, y.coded_max);
      x.decoded_max = std::max(x.decoded_max, y.decoded_max);
      x.lists |= y.lists;
      x.takes_dense |= y.takes_dense;
      for (uint32_t k = 0; k < section_count; ++k) x.size[k] = std::max(x.size[k], y.size[k]);
    }
  }
  shapes.assign(1, all);
}

}  // namespace dr
