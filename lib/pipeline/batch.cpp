#include "pipeline/batch.hpp"

#include <algorithm>
#include <cinttypes>
#include <string_view>
#include <unordered_map>

#include "pipeline/encode.hpp"
#include "pipeline/row_bounds.hpp"
#include "pipeline/tensor_check.hpp"
#include "sparsify/select_device.hpp"

namespace dr {
namespace {

dr_status check_unit(const unit& u, const tensor_shape& shape, uint64_t tensor, dr_error& error) {
  const plan& p = *u.method;
  if (!p.patches() && !is_value_type(u.dtype))
    return bad_tensor(error, tensor, DR_E_ARGUMENT, u.dtype, "dtype %u is not f32, f16 or bf16", u.dtype);
  if (p.takes_base() && u.sparse)
    return bad_tensor(error, tensor, DR_E_UNSUPPORTED, 0, "%s requires dense tensors: a base has all rows",
                      p.sparsify.codec->name);
  for (const bound_stage& s : p.value) {
    if (s.codec->role == DR_ROLE_VALUE && p.value_choices.empty() && !(s.codec->dtypes & DR_DTYPE_BIT(u.dtype)))
      return bad_tensor(error, tensor, DR_E_ARGUMENT, u.dtype, "%s does not support %s values", s.codec->name,
                        dtype_name(u.dtype));
    if ((s.codec->traits & DR_REORDERS) && u.width != 1)
      return bad_tensor(error, tensor, DR_E_ARGUMENT, u.width, "%s reorders values, which requires width 1, not %u",
                        s.codec->name, u.width);
  }
  if ((shape.flags & DR_TENSOR_SUM_DUPLICATES) && clip_of(p) > 0)
    return bad_tensor(error, tensor, DR_E_UNSUPPORTED, shape.flags,
                      "feedback=%s(clip=…) does not support DR_TENSOR_SUM_DUPLICATES: the norm is that of the sums",
                      p.feedback.codec->name);
  if (p.has_tiles() && (shape.sparse() || shape.width != 1 || shape.dtype != DR_F32))
    return bad_tensor(error, tensor, DR_E_UNSUPPORTED, shape.dtype,
                      "transform=dct requires dense tensors of f32 with width 1, not %s%s of width %u",
                      shape.sparse() ? "sparse ones of " : "", dtype_name(shape.dtype), shape.width);
  if (p.has_tiles() && shape.rows > 1 && shape.universe % shape.rows)
    return bad_tensor(error, tensor, DR_E_ARGUMENT, shape.rows,
                      "universe %" PRIu64 " is not a multiple of its rows, %" PRIu64, shape.universe, shape.rows);
  if (u.sparse && p.sparsifier().how.block)
    return bad_tensor(error, tensor, DR_E_UNSUPPORTED, 0, "%s requires dense tensors: a sparse tensor has no blocks",
                      p.sparsify.codec->name);
  if (u.width != 1 && !p.sparsifier().how.passes_on)
    return bad_tensor(error, tensor, DR_E_ARGUMENT, u.width,
                      "%s requires width 1, not %u (wider rows: sparse tensors, or sparsify=%s)",
                      p.sparsify.codec->name, u.width, sparsifier_with(&sparsifier::passes_on));
  if (const uint64_t n = u.sparse ? shape.count : u.universe, max = p.sparsifier().how.elements_max; n > max)
    return bad_tensor(error, tensor, DR_E_UNSUPPORTED, n,
                      "%s supports at most %" PRIu64 " values of a tensor, not %" PRIu64, p.sparsify.codec->name, max,
                      n);
  return DR_OK;
}

// The distinct plans of a batch: plans of equal text are one plan, even with different handles.
class plan_list {
 public:
  explicit plan_list(std::vector<std::shared_ptr<const plan>>& plans) : plans_(plans) {}

  // Returns the first equal plan, usually that of the previous tensor.
  const plan* add(const std::shared_ptr<const plan>& p) {
    if (p.get() == last_) return found_;
    const auto [place, is_new] = by_text_.try_emplace(p->text, p.get());
    if (is_new) plans_.push_back(p);
    last_ = p.get();
    return found_ = place->second;
  }

 private:
  std::vector<std::shared_ptr<const plan>>& plans_;
  std::unordered_map<std::string_view, const plan*> by_text_;
  const plan *last_ = nullptr, *found_ = nullptr;
};

// (Of a single row or column, a matrix is a vector: the same tiles. One with too many columns for a frame is cut as one.)
tile_form tiles_of(const plan& p, const tensor_shape& shape) {
  if (!p.has_tiles()) return {};
  const uint64_t columns = shape.rows > 1 ? shape.universe / shape.rows : 0;
  return {tile_kind::cosines, static_cast<uint8_t>(p.log2_tile),
          columns > 1 && columns <= universe_max ? static_cast<uint32_t>(columns) : 0};
}

}  // namespace

dr_status prepare(const batch_request& request, std::span<const tensor_view> tensors,
                  std::span<const std::shared_ptr<const plan>> plans, batch& out, dr_error& error) {
  out = {};
  out.workers = request.workers;
  out.segment_rows = request.segment_rows ? request.segment_rows : universe_max;
  if (tensors.size() > UINT32_MAX / 2) return fail(error, DR_E_ARGUMENT, "%zu tensors in a batch", tensors.size());
  plan_list methods(out.plans);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (const dr_status s = read_shape(tensors[i], i, out.shapes.emplace_back(), error)) return s;
    const auto& own = plans[i] ? plans[i] : request.method;
    if (!own) return bad_tensor(error, i, DR_E_ARGUMENT, 0, "neither the tensor nor the call has a plan");
    const plan* const p = methods.add(own);
    if (p->transforms())
      return bad_tensor(error, i, DR_E_UNSUPPORTED, 0,
                        "`%s` makes factors, not frames: use dr_transform_create or an exchange", p->text.c_str());
    if (i && p->patches() != out.units[0].patches())
      return bad_tensor(error, i, DR_E_ARGUMENT, 0, "`%s` makes %s, and tensor 0's plan %s; a frame has one kind",
                        p->text.c_str(), p->patches() ? "patches" : "gradients",
                        p->patches() ? "gradients" : "patches");
    const tensor_shape& shape = out.shapes.back();
    if (p->votes) out.votes.resize(tensors.size()), out.votes[i] = 1;
    const bool joins = i > 0 && p->flat && out.units.back().method == p;
    if (p->flat && (shape.sparse() || shape.width != 1))
      return bad_tensor(error, i, DR_E_ARGUMENT, shape.width, "bucket=flat requires dense tensors of width 1");
    if (joins) {
      unit& u = out.units.back();
      if (u.dtype != shape.dtype)
        return bad_tensor(error, i, DR_E_ARGUMENT, shape.dtype, "bucket=flat requires tensors of one dtype");
      ++u.tensors;
      u.universe += shape.universe;
    } else {
      out.units.push_back({static_cast<uint32_t>(i), 1, 0, 0, shape.dtype, shape.width,
                           shape.sparse() && !p->keeps_feedback(), shape.universe, 0, 0, 0, p, false,
                           tiles_of(*p, shape)});
    }
  }
  for (unit& u : out.units) {
    if (const dr_status s = check_unit(u, out.shapes[u.first_tensor], u.first_tensor, error)) return s;
    u.source_max = u.sparse ? std::min(out.shapes[u.first_tensor].count, tensor_elements_max) : u.universe;
    u.selected_max = std::min(u.source_max, u.method->sparsifier().selected_max(u.universe));
    u.dense_above = u.method->sparsifier().dense_above(u.universe);
    out.has_large = out.has_large || u.universe > solve_most(false);
    if (const dr_status s = add_unit_rows(out, u, error)) return s;
    const bound_sparsifier sparsifier = u.method->sparsifier();
    // (A blind sparsifier selects zeros, too, and a frame stores the number of selected rows. What goes dense above some
    // number is counted first, and a device does not count what it sends whole.)
    u.whole = !u.sparse && u.method->regather && sparsifier.keeps_all() && !sparsifier.how.blind &&
              (u.patches() || u.dense_above >= u.universe) && out.wire[out.rows[u.first_row].plan].index().whole();
  }
  std::vector<row_bound> bounds;
  for (const batch_row& row : out.rows) bounds.push_back(row.bound);
  for (const bool tag : {false, true})
    if (const dr_status s = lay_out_header(out.wire, bounds, tag, out.layout[tag], error)) return s;
  // Codecs that auto chooses are laid out after the choice.
  if (out.chooses())
    for (header_layout& layout : out.layout) layout.frame_bound += header_bound(out, layout) - layout.header_size;
  for (header_layout& layout : out.layout) layout.frame_bound += payload_excess(out);
  out.workspace = encode_workspace(out);
  return DR_OK;
}

}  // namespace dr
