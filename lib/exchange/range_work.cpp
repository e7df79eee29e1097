#include "exchange/range_work.hpp"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "api/frame_checks.hpp"
#include "api/state.hpp"
#include "deepreduce/exchange.h"
#include "primitive/value_rows.hpp"

namespace dr {
namespace {

uint64_t elements_of(const tensor_view& t) { return t.universe * width_of(t); }

// sum[i] += values[i].
template <class Type>
void add_values(const void* values, float* sum, uint64_t n) {
  const auto* const from = static_cast<const typename Type::bits*>(values);
  for (uint64_t i = 0; i < n; ++i) sum[i] += Type::to_f32(from[i]);
}

template <class Type>
uint64_t finite_values(const void* values, uint64_t n) {
  const auto* const from = static_cast<const typename Type::bits*>(values);
  uint64_t i = 0;
  while (i < n && is_finite<Type>(from[i])) ++i;
  return i;
}

}  // namespace

std::vector<range_uses> uses_of(const program& p) {
  std::vector<range_uses> out(p.ranges);
  const auto inputs = [&](const step& s) { return p.slots[p.inputs[s.first]].kind; };
  for (const step& s : p.steps) {
    range_uses& u = out[s.range];
    switch (s.what) {
      case DR_STEP_ENCODE:
        // (In a ring or hierarchy the encode of a gradient alone is handled like a sum.)
        u.encodes[at(s.exact ? frame_kind::exact : frame_kind::part)] = true;
        u.restores[at(s.residual)][at(p.slots[s.slot].kind)] = true;
        break;
      case DR_STEP_SUM:
        u.sums[at(inputs(s))] = true;
        u.summed = std::max(u.summed, s.count);
        break;
      case DR_STEP_ENCODE_SUM:
        u.encodes[at(frame_kind::sum)] = true;
        u.residual = s.residual;
        u.restores[at(s.residual)][at(frame_kind::sum)] = u.restores[at(s.residual)][at(inputs(s))] = true;
        break;
      case DR_STEP_MERGE:
        if (!s.count) break;  // of what ranks of a host gathered
        u.merges[at(inputs(s))] = true;
        u.merged = std::max(u.merged, s.count);
        break;
      default: break;
    }
  }
  return out;
}

dr_status range_work::prepare(const tensor_plans& plans, const exchange_memory& at_memory, uint64_t first_key,
                              bool alone) {
  tensor_list list;
  bool sparse = false;
  for (const piece& p : pieces_) {
    tensor_view v = at_memory.tensors[p.tensor];
    plans_.push_back(plans.own[p.tensor]);
    sum_plans_.push_back(plans.sums[p.tensor]);
    sparse |= v.index_dtype != 0;
    if (!v.index_dtype) v.universe = p.rows;
    v.key = v.key ? v.key + p.first : first_key;
    ++first_key;
    v.plan = nullptr;
    elements_ += elements_of(v);
    views_.push_back(v);
    list.views.push_back(v);
    list.plans.push_back(plans_.back());
  }
  const auto place = [&](frame_kind kind) {
    batches_[at(kind)] = std::make_shared<placed_batch>();
    const dr_status s = batches_[at(kind)]->place(c_.request_for(nullptr, 0), list, target{}, c_.error);
    if (!s) limits_[at(kind)] = limits_of(*batches_[at(kind)]);
    return s;
  };
  if (const dr_status s = place(frame_kind::part)) return s;
  batches_[at(frame_kind::sum)] = batches_[at(frame_kind::part)];
  limits_[at(frame_kind::sum)] = limits_[at(frame_kind::part)];
  if (uses_.has_frames_of_sums() && (sparse || sum_plans_ != plans_)) {
    for (tensor_view& v : list.views) v.index_dtype = 0, v.indices = nullptr, v.count = 0, v.flags = 0;
    list.plans = sum_plans_;
    if (const dr_status s = place(frame_kind::sum)) return s;
  }
  if (uses_.encodes[at(frame_kind::exact)] || uses_.sums[at(frame_kind::exact)]) {
    std::fill(list.plans.begin(), list.plans.end(), plans.exact);
    if (const dr_status s = place(frame_kind::exact)) return s;
  }
  return choose_twice(at_memory, alone);
}

// Decoded frames are stored until the ranks agree, which costs memory, and time to write and read it. For sparse frames
// that is little. Where it is as much as the outputs, it is faster to decode twice, range by range, in the caches (unless
// there is one range only).
dr_status range_work::choose_twice(const exchange_memory& at_memory, bool alone) {
  uint64_t bytes = 0, stored = 0;
  for (size_t i = 0; i < pieces_.size(); ++i)
    bytes += elements_of(views_[i]) * value_size(at_memory.outs[pieces_[i].tensor].dtype);
  for (const frame_kind kind : {frame_kind::part, frame_kind::sum}) {
    decode_memory needed;
    if (!uses_.merges[at(kind)]) continue;
    if (const dr_status s = decode_workspace(batch_of(kind), std::max(1u, uses_.merged), needed, c_.error)) return s;
    stored = std::max(stored, needed.stored);
  }
  twice_ = !alone && stored >= bytes;
  return DR_OK;
}

dr_status range_work::judge(frame_kind kind, const dr_bytes& frame, uint64_t tag, frame_view& view,
                            dr_error& error) const {
  view.clear();
  dr_decode_options tagged{};
  tagged.flags = DR_DECODE_TAG;
  tagged.tag = tag;
  const placed_batch& b = batch_of(kind);
  const uint64_t header_max = frame_view::memory_of(b.wire.size(), b.rows.size(), b.layout[1].table.size());
  dr_status status = read_sound_frame(frame, view, error, header_max);
  if (status == DR_E_CAPACITY) status = DR_E_CORRUPT;  // a header that is not of these tensors
  if (!status && view.frame_size != frame.size)
    status = fail(error, DR_E_CORRUPT, "frame: %" PRIu64 " bytes in a message of %zu", view.frame_size, frame.size);
  if (!status) status = check_tag(view, tagged, error);
  if (!status) status = dr::check_frame(b, view, error);
  return status ? status : check_limits(b, limits_[at(kind)], view, error);
}

uint64_t range_work::support_max(size_t piece, uint64_t frames) const {
  const placed_batch& b = batch_of(frame_kind::part);
  uint64_t rows = 0;
  const auto before = [&](const batch_row& r) {
    return b.units[r.unit].first_tensor + b.units[r.unit].tensors <= piece;
  };
  for (auto r = std::ranges::partition_point(b.rows, before);
       r != b.rows.end() && b.units[r->unit].first_tensor <= piece; ++r)
    rows += sent_max(b, *r);
  return std::min<uint64_t>(views_[piece].universe, rows > UINT64_MAX / frames ? UINT64_MAX : rows * frames);
}

dr_status range_work::name_tensor(dr_status s) const {
  dr_error& e = c_.error;
  if (!s || e.tensor >= pieces_.size()) return s;
  const dr_error was = e;
  const uint32_t tensor = pieces_[was.tensor].tensor;
  if (const char* const rest = after_tensor(was.message))
    std::snprintf(e.message, sizeof e.message, "%s %u%s", was.message[0] == 't' ? "tensor" : "output", tensor, rest);
  e.tensor = tensor;
  return s;
}

void range_work::count_elements(std::span<const tensor_view> tensors) {
  for (const piece& p : pieces_) elements_ += p.rows * std::max(1u, tensors[p.tensor].width);
}

uint64_t range_work::place(std::byte* memory) {
  uint64_t used = 0;
  const auto place = [&](uint64_t size) {
    std::byte* const at = memory ? memory + used : nullptr;
    used += (size + arena::alignment - 1) / arena::alignment * arena::alignment;
    return at;
  };
  for (auto& list : states_) list.clear();
  sums_.clear();
  for (size_t i = 0; i < views_.size(); ++i) {
    for (const residual_kind which : {residual_kind::own, residual_kind::sum}) {
      const uint64_t size = keeps_state(which, i) ? state_bytes(which, i) : 0;
      states_[at(which)].push_back(size ? place(size) : nullptr);
    }
    sums_.push_back(uses_.has_sum() ? place(4 * elements_of(views_[i])) : nullptr);
  }
  return used;
}

std::byte* range_work::state_of(residual_kind which, size_t piece, uint64_t& size) const {
  const auto& states = states_[at(which)];
  if (states.empty() || !states[piece]) return nullptr;
  size = state_bytes(which, piece);
  return states[piece];
}

bool range_work::keeps_state(residual_kind which, size_t piece) const {
  if (which == residual_kind::own && uses_.borrows_states) return false;
  return plan_of(which, piece).keeps_feedback() && uses_.has(which);
}

uint64_t range_work::state_bytes(residual_kind which, size_t piece) const {
  return state_size_of(plan_of(which, piece).feedback_rule().kind, elements_of(views_[piece]));
}

void* range_work::state_at(residual_kind which, size_t piece) const {
  if (which == residual_kind::own && uses_.borrows_states) return views_[piece].state;
  return states_[at(which)][piece];
}

void range_work::make_bindings() {
  const auto make = [&](binding& b, size_t kind, uint32_t frames) {
    b = std::make_unique<bound_batch>(c_, *batches_[kind]);
    b->frames = std::max(1u, frames);
  };
  for (size_t kind = 0; kind < frame_kinds; ++kind) {
    if (uses_.encodes[kind]) make(encode_[kind], kind, 1);
    if (uses_.sums[kind]) make(sum_[kind], kind, uses_.summed);
    if (uses_.merges[kind]) make(merge_, kind, uses_.merged);
    for (size_t which = 0; which < residual_kinds; ++which)
      if (keeps_residual(static_cast<residual_kind>(which)) && uses_.restores[which][kind])
        make(restore_[which][kind], kind, uses_.summed);
  }
}

dr_status range_work::bind(const exchange_memory& at_memory) {
  make_bindings();
  return rebind(at_memory);
}

dr_status range_work::bind_tensors(const exchange_memory& at_memory) {
  return set_tensors(
      at_memory, [](bound_batch& b) { return b.bind_tensors(); }, [](bound_batch& b) { return b.bind_outputs(); });
}

dr_status range_work::bind_outputs(const exchange_memory& at_memory) {
  return set_outputs(at_memory, [](bound_batch& b) { return b.bind_outputs(); });
}

dr_status range_work::rebind(const exchange_memory& at_memory) {
  const dr_status s = bind_tensors(at_memory);
  return s ? s : bind_outputs(at_memory);
}

void range_work::bind_again(const exchange_memory& at_memory) {
  const auto again = [](bound_batch& b) { return b.bind_outputs_again(); };
  (void)set_tensors(
      at_memory, [](bound_batch&) { return dr_status{DR_OK}; }, again);
  (void)set_outputs(at_memory, again);
}

namespace {

// Binds outputs, where values_of(i, output) says.
template <class F, class Bind>
dr_status bind_outs(bound_batch* b, std::span<const tensor_view> views, F&& values_of, Bind&& bind) {
  if (!b) return DR_OK;
  b->outs.assign(views.size(), {});
  for (size_t i = 0; i < views.size(); ++i) {
    tensor_out& o = b->outs[i];
    o.struct_size = sizeof o;
    o.dtype = DR_F32;
    o.width = static_cast<uint32_t>(width_of(views[i]));
    values_of(i, o);
    o.universe = views[i].universe;
  }
  return bind(*b);
}

}  // namespace

// Sets where tensors lie, and binds what reads them or keeps a part of them.
template <class F>
dr_status range_work::set_tensors(const exchange_memory& at_memory, F&& bind_encode, auto&& bind_decode) {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const piece& p = pieces_[i];
    const tensor_view& given = at_memory.tensors[p.tensor];
    const uint64_t first = given.index_dtype ? 0 : p.first * width_of(given) * value_size(given.dtype);
    views_[i].values = given.values ? static_cast<const std::byte*>(given.values) + first : nullptr;
    views_[i].base = given.base ? static_cast<const std::byte*>(given.base) + first : nullptr;
    views_[i].indices = given.indices;
    views_[i].count = given.count;
    views_[i].state = given.state;
  }
  for (const frame_kind kind : {frame_kind::part, frame_kind::exact, frame_kind::sum}) {
    const bool of_sum = kind == frame_kind::sum;
    if (bound_batch* const b = encode_[at(kind)].get()) {
      const residual_kind which = of_sum ? uses_.residual : residual_kind::own;
      b->tensors = views_;
      for (size_t i = 0; i < views_.size(); ++i) {
        tensor_view& v = b->tensors[i];
        if (of_sum) v.index_dtype = 0, v.indices = nullptr, v.count = 0, v.flags = 0, v.values = sums_[i];
        v.state = which == residual_kind::none ? nullptr : state_at(which, i);
        v.state_size = v.state ? state_bytes(which, i) : 0;
      }
      if (const dr_status s = bind_encode(*b)) return s;
    }
    const auto to_sum = [&](size_t i, tensor_out& o) { o.values = sums_[i]; };
    if (const dr_status s = bind_outs(sum_[at(kind)].get(), views_, to_sum, bind_decode)) return s;
    for (const residual_kind which : {residual_kind::own, residual_kind::sum})
      if (const dr_status s = bind_outs(
              restore_[at(which)][at(kind)].get(), views_,
              [&](size_t i, tensor_out& o) { o.values = residual_of(state_at(which, i)); }, bind_decode))
        return s;
  }
  return DR_OK;
}

template <class F>
dr_status range_work::set_outputs(const exchange_memory& at_memory, F&& bind_decode) {
  return bind_outs(
      merge_.get(), views_,
      [&](size_t i, tensor_out& o) {
        const tensor_out& given = at_memory.outs[pieces_[i].tensor];
        const uint64_t first = given.index_dtype ? 0 : pieces_[i].first * o.width * value_size(given.dtype);
        o = given;
        o.values = o.values ? static_cast<std::byte*>(o.values) + first : nullptr;
      },
      bind_decode);
}

dr_status range_work::measure_workspace(uint64_t& bytes) const {
  const auto add = [&](const binding& b, bool encodes) -> dr_status {
    size_t size = 0;
    if (!b) return DR_OK;
    if (encodes)
      size = b->batch.encode_room();
    else if (const dr_status s = b->batch.decode_room(b->frames, size, c_.error))
      return s;
    bytes = std::max<uint64_t>(bytes, size);
    return DR_OK;
  };
  for (const binding& b : encode_)
    if (const dr_status s = add(b, true)) return s;
  for (const binding& b : sum_)
    if (const dr_status s = add(b, false)) return s;
  for (const auto& list : restore_)
    for (const binding& b : list)
      if (const dr_status s = add(b, false)) return s;
  return add(merge_, false);
}

template <class F>
void range_work::for_each_binding(F&& f) const {
  const auto visit = [&](const binding& b) {
    if (b) f(*b);
  };
  for (const binding& b : encode_) visit(b);
  for (const binding& b : sum_) visit(b);
  visit(merge_);
  for (const auto& list : restore_)
    for (const binding& b : list) visit(b);
}

uint64_t range_work::workspace() const {
  uint64_t largest = 0;
  for_each_binding([&](const bound_batch& b) { largest = std::max<uint64_t>(largest, b.workspace_size()); });
  return largest;
}

void range_work::lend_workspace(void* memory) {
  for_each_binding([&](bound_batch& b) { b.lend_workspace(memory); });
}

namespace {

// coefficients: the output is a residual, which is of what frames have.
dr_status merge_into(bound_batch& b, std::span<const dr_bytes> frames, const float* weights, bool adds,
                     bool coefficients) {
  decode_request request{frames, weights};
  request.adds = adds;
  request.verified = true;  // on arrival, or they are this rank's own
  dr_decode_options options{};
  options.flags = coefficients ? uint32_t{DR_DECODE_COEFFICIENTS} : 0;
  return b.decode(request, options, nullptr);
}

}  // namespace

dr_status range_work::encode(frame_kind kind, encode_request& request, encode_result& made) {
  if (kind == frame_kind::sum) round_sum();
  return encode_[at(kind)]->encode(request, made);
}

bool range_work::find_not_finite(size_t& piece, uint64_t& element) const {
  const auto needs_finite = [](const bound_stage& b) { return (b.codec->traits & DR_NEEDS_FINITE) != 0; };
  for (piece = 0; piece < views_.size(); ++piece) {
    const plan& p = *plans_[piece];
    // (value=auto leaves out what cannot have such values.)
    if (p.value_choices.empty() ? std::ranges::none_of(p.value, needs_finite)
                                : !std::ranges::all_of(p.value_choices, needs_finite))
      continue;
    const tensor_view& v = views_[piece];
    const uint64_t n = elements_of(v);
    element = with_type(v.dtype, [&](auto type) { return finite_values<decltype(type)>(v.values, n); });
    if (element < n) return true;
  }
  return false;
}

dr_status range_work::sum(frame_kind kind, std::span<const dr_bytes> frames, const float* weights) {
  return merge_into(*sum_[at(kind)], frames, weights, false, false);
}

void range_work::clear_sum() {
  for (size_t i = 0; i < views_.size(); ++i) std::memset(sums_[i], 0, 4 * elements_of(views_[i]));
}

void range_work::add_gradient() {
  for (size_t i = 0; i < views_.size(); ++i) {
    const tensor_view& v = views_[i];
    auto* const sum = reinterpret_cast<float*>(sums_[i]);
    with_type(v.dtype, [&](auto type) { add_values<decltype(type)>(v.values, sum, elements_of(v)); });
  }
}

// A sum beyond the type's range becomes infinite, as in the type's own addition, not the type's largest value.
template <class T>
static void round_to(float* sum, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i)
    if (std::abs(sum[i]) > T::largest) sum[i] = T::to_f32(T::from_f32(sum[i]));
  round_values_at<T>.best()(sum, n, sum);
}

void range_work::round_sum() {
  for (size_t i = 0; i < views_.size(); ++i) {
    const tensor_view& v = views_[i];
    auto* const sum = reinterpret_cast<float*>(sums_[i]);
    if (v.dtype != DR_F32) with_type(v.dtype, [&](auto type) { round_to<decltype(type)>(sum, elements_of(v)); });
  }
}

dr_status range_work::decode_memory_of(decode_memory& needed) const {
  if (const dr_status s = merge_->measure_ahead(needed)) return s;
  if (twice_) needed = {0, needed.stored + needed.transient};
  return DR_OK;
}

dr_status range_work::decode(std::span<const dr_bytes> frames, arena& memory) {
  arena taken = memory;
  if (const dr_status s = merge_->decode_ahead(frames, taken, decoded_)) return s;
  if (!twice_) memory = taken;
  return DR_OK;
}

dr_status range_work::merge(std::span<const dr_bytes> frames, const float* weights, arena& memory) {
  if (twice_)
    if (const dr_status s = merge_->decode_ahead(frames, memory, decoded_)) return s;
  return merge_->merge_decoded(decoded_, weights, memory);
}

dr_status range_work::restore_residual(residual_kind which, frame_kind kind, std::span<const dr_bytes> frames,
                                       const float* weights) {
  const binding& back = restore_[at(which)][at(kind)];
  if (!back) return DR_OK;
  if (const dr_status s = merge_into(*back, frames, weights, true, true)) return s;
  // As after an encode: values that are not finite stay out of later steps.
  for (const tensor_out& o : back->outs) {
    auto* const residual = static_cast<float*>(o.values);
    for (uint64_t i = 0; i < o.universe * o.width; ++i)
      if (!is_finite<f32_type>(std::bit_cast<uint32_t>(residual[i]))) residual[i] = 0;
  }
  return DR_OK;
}

}  // namespace dr
