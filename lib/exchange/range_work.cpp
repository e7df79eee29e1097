#include "exchange/range_work.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "api/state.hpp"
#include "deepreduce/exchange.h"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

uint64_t elements_of(const tensor_view& t) { return t.universe * (t.width ? t.width : 1); }

// dst += src, n values of a type, each sum rounded.
template <class Type>
void add_values(const void* src, void* dst, uint64_t n) {
  using bits = typename Type::bits;
  const auto* const from = static_cast<const bits*>(src);
  auto* const to = static_cast<bits*>(dst);
  for (uint64_t i = 0; i < n; ++i)
    to[i] = Type::from_f64(static_cast<double>(Type::to_f32(to[i])) + static_cast<double>(Type::to_f32(from[i])));
}

}  // namespace

std::vector<range_uses> uses_of(const program& p) {
  std::vector<range_uses> out(p.ranges);
  for (const step& s : p.steps) {
    range_uses& u = out[s.range];
    switch (s.what) {
      case DR_STEP_ENCODE: (s.exact ? u.encodes_exact : u.encodes) = true; break;
      case DR_STEP_SUM:
        (p.slots[p.inputs[s.first]].kind == frame_kind::exact ? u.sums_exact : u.sums) = true;
        u.summed = std::max(u.summed, s.count);
        break;
      case DR_STEP_ADD: u.adds = true; break;
      case DR_STEP_ENCODE_SUM:
        u.encodes_sum = true;
        u.sum_residual = s.residual;
        break;
      case DR_STEP_MERGE: u.merged = std::max(u.merged, s.count); break;
      default: break;
    }
  }
  return out;
}

dr_status range_work::prepare(const exchange_plans& plans, const exchange_memory& at, uint64_t first_key) {
  tensor_list list;
  for (const piece& p : pieces_) {
    tensor_view v = at.tensors[p.tensor];
    plans_.push_back(plans.of(v));
    if (!v.index_dtype) v.universe = p.rows;
    v.key = v.key ? v.key + p.first : first_key;
    ++first_key;
    v.plan = nullptr;
    elements_ += elements_of(v);
    views_.push_back(v);
    list.views.push_back(v);
    list.plans.push_back(plans_.back());
  }
  feedback_ = plans.method->keeps_feedback();
  // (Its states are at places that place() knows; to prepare a batch it is enough that there are some.)
  const target cpu{};
  batch_ = std::make_unique<placed_batch>();
  if (const dr_status s = batch_->place(c_.request_for(plans.method, 0), list, cpu, c_.error)) return s;
  if (!uses_.encodes_exact && !uses_.sums_exact) return DR_OK;
  std::fill(list.plans.begin(), list.plans.end(), plans.exact);
  exact_ = std::make_unique<placed_batch>();
  return exact_->place(c_.request_for(plans.exact, 0), list, cpu, c_.error);
}

void range_work::count_elements(std::span<const tensor_view> tensors) {
  for (const piece& p : pieces_) elements_ += p.rows * std::max(1u, tensors[p.tensor].width);
}

uint64_t range_work::place(std::byte* memory) {
  uint64_t used = 0;
  const auto take = [&](uint64_t size) {
    std::byte* const at = memory ? memory + used : nullptr;
    used += (size + arena::alignment - 1) / arena::alignment * arena::alignment;
    return at;
  };
  own_states_.clear(), sum_states_.clear(), sums_.clear();
  for (const tensor_view& v : views_) {
    const uint64_t n = elements_of(v), state = sizeof(uint64_t) * 2 + 4 * n;
    own_states_.push_back(feedback_ && uses_.has_own_residual() ? take(state) : nullptr);
    sum_states_.push_back(feedback_ && uses_.has_sum_residual() ? take(state) : nullptr);
    sums_.push_back(uses_.has_sum() ? take(n * value_size(v.dtype)) : nullptr);
  }
  return used;
}

std::byte* range_work::state_of(residual_kind which, size_t piece, uint64_t& size) const {
  size = sizeof(uint64_t) * 2 + 4 * elements_of(views_[piece]);
  const auto& states = which == residual_kind::sum ? sum_states_ : own_states_;
  return which == residual_kind::none || states.empty() ? nullptr : states[piece];
}

// Sets where tensors and outputs lie.
void range_work::point(const exchange_memory& at) {
  const auto make_out = [](const tensor_view& v, dr_dtype dtype, void* values) {
    tensor_out o{};
    o.struct_size = sizeof o;
    o.dtype = dtype;
    o.universe = v.universe;
    o.width = v.width ? v.width : 1;
    o.values = values;
    return o;
  };
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const piece& p = pieces_[i];
    const tensor_view& given = at.tensors[p.tensor];
    tensor_view& v = views_[i];
    const uint64_t first = given.index_dtype ? 0 : p.first * (v.width ? v.width : 1) * value_size(v.dtype);
    v.values = given.values ? static_cast<const std::byte*>(given.values) + first : nullptr;
    v.indices = given.indices;
    v.count = given.count;
    uint64_t size = 0;
    tensor_view of_gradient = v, of_sum = v;
    of_gradient.state = state_of(residual_kind::own, i, size);
    of_gradient.state_size = of_gradient.state ? size : 0;
    of_sum.values = sums_[i];
    of_sum.index_dtype = 0;
    of_sum.indices = nullptr;
    of_sum.count = 0;
    of_sum.state = state_of(uses_.sum_residual, i, size);
    of_sum.state_size = of_sum.state ? size : 0;
    tensor_out out = at.outs[p.tensor];
    out.values = out.values ? static_cast<std::byte*>(out.values) +
                                  (out.index_dtype ? 0 : p.first * (v.width ? v.width : 1) * value_size(out.dtype))
                            : nullptr;
    out.universe = v.universe;
    const auto residual_at = [](std::byte* state) { return state ? state + sizeof(uint64_t) * 2 : nullptr; };
    if (frames_) frames_->tensors[i] = of_gradient, frames_->outs[i] = out;
    if (exact_frames_) exact_frames_->tensors[i] = of_gradient;
    if (sum_) sum_->tensors[i] = of_sum, sum_->outs[i] = make_out(v, v.dtype, sums_[i]);
    if (exact_sum_) exact_sum_->outs[i] = make_out(v, v.dtype, sums_[i]);
    if (own_back_) own_back_->outs[i] = make_out(v, DR_F32, residual_at(own_states_[i]));
    if (exact_back_) exact_back_->outs[i] = make_out(v, DR_F32, residual_at(own_states_[i]));
    if (sum_back_) sum_back_->outs[i] = make_out(v, DR_F32, residual_at(sum_states_[i]));
  }
}

dr_status range_work::bind(const exchange_memory& at) {
  const auto make = [&](std::unique_ptr<bound_batch>& b, const std::unique_ptr<placed_batch>& batch, uint32_t frames) {
    b = std::make_unique<bound_batch>(c_, *batch);
    b->frames = std::max(1u, frames);
    b->tensors.resize(pieces_.size());
    b->outs.resize(pieces_.size());
  };
  make(frames_, batch_, uses_.merged);
  if (uses_.encodes_exact) make(exact_frames_, exact_, 1);
  if (uses_.sums || uses_.encodes_sum) make(sum_, batch_, uses_.summed);
  if (uses_.sums_exact) make(exact_sum_, exact_, uses_.summed);
  if (feedback_ && uses_.has_own_residual()) make(own_back_, batch_, uses_.summed);
  if (feedback_ && uses_.has_own_residual() && exact_) make(exact_back_, exact_, uses_.summed);
  if (feedback_ && uses_.has_sum_residual()) make(sum_back_, batch_, uses_.summed);
  return rebind(at);
}

dr_status range_work::rebind(const exchange_memory& at) {
  point(at);
  const auto bind = [](bound_batch& b, bool encodes, bool decodes) -> dr_status {
    if (encodes)
      if (const dr_status s = b.bind_tensors()) return s;
    return decodes ? b.bind_outputs() : DR_OK;
  };
  if (const dr_status s = bind(*frames_, uses_.encodes, uses_.merged)) return s;
  if (exact_frames_)
    if (const dr_status s = bind(*exact_frames_, true, false)) return s;
  if (sum_)
    if (const dr_status s = bind(*sum_, uses_.encodes_sum, uses_.sums)) return s;
  if (exact_sum_)
    if (const dr_status s = bind(*exact_sum_, false, true)) return s;
  if (own_back_)
    if (const dr_status s = bind(*own_back_, false, true)) return s;
  if (exact_back_)
    if (const dr_status s = bind(*exact_back_, false, true)) return s;
  return sum_back_ ? bind(*sum_back_, false, true) : DR_OK;
}

uint64_t range_work::workspace() const {
  uint64_t most = 0;
  each_bound([&](const bound_batch& b) { most = std::max<uint64_t>(most, b.workspace_size()); });
  return most;
}

void range_work::lend_workspace(void* memory) {
  each_bound([&](bound_batch& b) { b.lend_workspace(memory); });
}

dr_status range_work::encode(bool exact, encode_request& request, encode_result& made) {
  return (exact ? exact_frames_ : frames_)->encode(request, made);
}

dr_status range_work::encode_sum(encode_request& request, encode_result& made) { return sum_->encode(request, made); }

namespace {

dr_status merge_into(bound_batch& b, std::span<const dr_bytes> frames, const float* weights, bool adds) {
  decode_request request{frames, weights};
  request.adds = adds;
  return b.decode(request, dr_decode_options{}, nullptr);
}

}  // namespace

dr_status range_work::sum(bool exact, std::span<const dr_bytes> frames, const float* weights) {
  return merge_into(exact ? *exact_sum_ : *sum_, frames, weights, false);
}

void range_work::clear_sum() {
  for (size_t i = 0; i < views_.size(); ++i)
    std::memset(sums_[i], 0, elements_of(views_[i]) * value_size(views_[i].dtype));
}

void range_work::add_gradient() {
  for (size_t i = 0; i < views_.size(); ++i) {
    const tensor_view& v = views_[i];
    switch (v.dtype) {
      case DR_F16: add_values<f16_type>(v.values, sums_[i], elements_of(v)); break;
      case DR_BF16: add_values<bf16_type>(v.values, sums_[i], elements_of(v)); break;
      default: add_values<f32_type>(v.values, sums_[i], elements_of(v)); break;
    }
  }
}

dr_status range_work::merge(std::span<const dr_bytes> frames, const float* weights) {
  return merge_into(*frames_, frames, weights, false);
}

dr_status range_work::give_back(residual_kind which, frame_kind kind, std::span<const dr_bytes> frames,
                                const float* weights) {
  const auto& back = which == residual_kind::sum ? sum_back_ : kind == frame_kind::exact ? exact_back_ : own_back_;
  if (!back) return DR_OK;
  if (const dr_status s = merge_into(*back, frames, weights, true)) return s;
  // As after an encode: what is not finite stays out of later steps.
  for (const tensor_out& o : back->outs) {
    auto* const residual = static_cast<float*>(o.values);
    for (uint64_t i = 0; i < o.universe * o.width; ++i)
      if (!is_finite<f32_type>(std::bit_cast<uint32_t>(residual[i]))) residual[i] = 0;
  }
  return DR_OK;
}

}  // namespace dr
