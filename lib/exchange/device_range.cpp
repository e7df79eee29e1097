#include "exchange/device_range.hpp"

#include <algorithm>
#include <cstring>

#include "api/state.hpp"
#include "pipeline/launch_own.hpp"

namespace dr {

dr_status check_device_exchange(const plan& method, const exchange_memory& at_memory, dr_error& error) {
  if (method.transforms())
    return fail(error, DR_E_UNSUPPORTED, "plan: an exchange of factors (`%.80s`) has no path on a device",
                method.text.c_str());
  for (size_t i = 0; i < at_memory.outs.size(); ++i) {
    if (!at_memory.outs[i].index_dtype) continue;
    fail(error, DR_E_UNSUPPORTED, "tensor %zu: its output is sparse, which has no path on a device", i);
    error.tensor = i;
    return DR_E_UNSUPPORTED;
  }
  return DR_OK;
}

// The words of the pipeline count tensors from the range's first, and advise what an exchange does not do.
dr_status device_range::name_tensor(dr_status s) const {
  if (char* const advice = std::strstr(c_.error.message, "; DR_PLACE_ALLOW_HOST")) *advice = 0;
  return of_.name_tensor(s);
}

dr_status device_range::prepare(const tensor_plans& plans, const exchange_memory& at_memory, bool alone) {
  tensor_list list;
  std::vector<std::shared_ptr<const plan>> of_sums;
  uint64_t outputs = 0;
  bool sparse = false;
  for (size_t i = 0; i < of_.pieces().size(); ++i) {
    const piece& p = of_.pieces()[i];
    list.views.push_back(of_.view_of(i));
    list.plans.push_back(plans.own[p.tensor]);
    of_sums.push_back(plans.sums[p.tensor]);
    sparse |= list.views.back().index_dtype != 0;
    outputs += p.rows * width_of(at_memory.tensors[p.tensor]) * value_size(at_memory.outs[p.tensor].dtype);
  }
  const auto place = [&](frame_kind kind) {
    batches_[at(kind)] = std::make_shared<placed_batch>();
    dr_status s = batches_[at(kind)]->place(c_.request_for(nullptr, 0), list, on_.where(), c_.error);
    if (!s) s = batches_[at(kind)]->load_decode(c_.error, true);
    return s ? name_tensor(s) : s;
  };
  if (const dr_status s = place(frame_kind::part)) return s;
  batches_[at(frame_kind::sum)] = batches_[at(frame_kind::part)];
  if (uses_.has_frames_of_sums() && (sparse || of_sums != list.plans)) {
    for (tensor_view& v : list.views) v.index_dtype = 0, v.indices = nullptr, v.count = 0, v.flags = 0;
    list.plans = of_sums;
    if (const dr_status s = place(frame_kind::sum)) return s;
  }
  for (const dr_kernel* const k : {&kernel<round_values_of<jobs_few>>, &kernel<round_values_of<jobs_many>>,
                                   &kernel<add_values_to<jobs_few>>, &kernel<add_values_to<jobs_many>>})
    on_.where().where->load(*k);  // loads it: a launch must not
  const auto room = [&](frame_kind kind, uint32_t frames, uint64_t& most) {
    size_t size = 0;
    const dr_status s = batch_of(kind).decode_room(std::max(1u, frames), size, c_.error);
    most = std::max<uint64_t>(most, size);
    return s;
  };
  for (const frame_kind kind : {frame_kind::part, frame_kind::sum}) {
    if (uses_.encodes[at(kind)]) workspace_size_ = std::max(workspace_size_, batch_of(kind).encode_room());
    bool decodes = uses_.sums[at(kind)];
    for (const auto& restored : uses_.restores) decodes |= restored[at(kind)];
    if (decodes)
      if (const dr_status s = room(kind, uses_.summed, workspace_size_)) return s;
  }
  if (uses_.merged)
    if (const dr_status s = room(merged_kind(), uses_.merged, decode_room_)) return s;
  twice_ = !alone && decode_room_ >= outputs;
  return DR_OK;
}

void device_range::place(std::byte* memory, uint64_t& states, std::byte* sums, uint64_t& summed) {
  const auto take = [](std::byte* from, uint64_t& used, uint64_t size) {
    std::byte* const at = from && size ? from + used : nullptr;
    used += round_up(size, arena::alignment);
    return at;
  };
  for (auto& list : states_) list.clear();
  sums_.clear(), rounded_.clear(), before_.clear();
  for (size_t i = 0; i < of_.pieces().size(); ++i) {
    for (const residual_kind which : {residual_kind::own, residual_kind::sum}) {
      const bool keeps = of_.plan_of(which, i).keeps_feedback() && uses_.has(which);
      states_[at(which)].push_back(take(memory, states, keeps ? of_.state_bytes(which, i) : 0));
    }
    const tensor_view v = of_.view_of(i);
    const uint64_t elements = uses_.has_sum() || host_ ? v.universe * width_of(v) : 0;
    sums_.push_back(host_ ? reinterpret_cast<std::byte*>(host_->at(number_, i)) : take(sums, summed, 4 * elements));
    rounded_.push_back(take(sums, summed, v.dtype == DR_F32 ? 0 : value_size(v.dtype) * elements));
    const bool keeps = uses_.has_sum() && of_.plan_of(uses_.residual, i).keeps_feedback();
    before_.push_back(take(sums, summed, keeps ? of_.state_bytes(uses_.residual, i) : 0));
  }
}

dr_status device_range::check(const exchange_memory& at_memory) {
  bound& b = next_;
  b.views.clear(), b.summed.clear(), b.outs.clear(), b.sums.clear();
  for (auto& list : b.residuals) list.clear();
  for (size_t i = 0; i < of_.pieces().size(); ++i) {
    const piece& p = of_.pieces()[i];
    const tensor_view& given = at_memory.tensors[p.tensor];
    const uint64_t width = width_of(given), first = given.index_dtype ? 0 : p.first * width * value_size(given.dtype);
    const auto keep = [&](residual_kind which, tensor_view& v) {
      v.state = states_[at(which)][i];
      v.state_size = v.state ? of_.state_bytes(which, i) : 0;
    };
    tensor_view v = of_.view_of(i);
    v.values = given.values ? static_cast<const std::byte*>(given.values) + first : nullptr;
    v.indices = given.indices;
    v.count = given.count;
    if (host_) v.values = v.dtype == DR_F32 ? sums_[i] : rounded_[i];
    keep(residual_kind::own, v);
    b.views.push_back(v);
    v.index_dtype = 0, v.indices = nullptr, v.count = 0, v.flags = 0;
    v.values = v.dtype == DR_F32 ? sums_[i] : rounded_[i];
    keep(uses_.residual, v);
    b.summed.push_back(v);
    tensor_out o = at_memory.outs[p.tensor];
    if (o.values) o.values = static_cast<std::byte*>(o.values) + p.first * width * value_size(o.dtype);
    o.universe = p.rows;
    b.outs.push_back(o);
    const auto of_f32 = [&](void* values) {
      tensor_out f{};
      f.struct_size = sizeof f;
      f.dtype = DR_F32;
      f.width = static_cast<uint32_t>(width);
      f.universe = p.rows;
      f.values = values;
      return f;
    };
    b.sums.push_back(of_f32(sums_[i]));
    for (const residual_kind which : {residual_kind::own, residual_kind::sum}) {
      std::byte* const state = states_[at(which)][i];
      b.residuals[at(which)].push_back(of_f32(state ? residual_of(state) : nullptr));
    }
  }
  if (const dr_status s = check_tensors(batch_of(frame_kind::part), b.views, true, c_.error)) return name_tensor(s);
  const dr_status s = host_ ? dr_status{DR_OK} : batch_of(merged_kind()).check_outputs(b.outs, c_.error);
  return s ? name_tensor(s) : s;
}

void device_range::make_room() {
  jobs_.reserve(of_.pieces().size());
  added_.reserve(of_.pieces().size());
  device_queue dry;                                                        // counts launches
  auto* const nowhere = reinterpret_cast<std::byte*>(uintptr_t{1} << 32);  // never read
  const auto decodes = [&](frame_kind kind, uint32_t frames, std::span<const tensor_out> outs) {
    const std::vector<dr_bytes> some(std::max(1u, frames));
    judged_frames judged;
    decode_request request{some};
    request.adds = true;
    (void)judge_on_device(batch_of(kind).frames, request, outs, dry, nowhere, UINT64_MAX, nullptr,
                          c_.on_device.decoding, judged, c_.error);
  };
  for (const frame_kind kind : {frame_kind::part, frame_kind::sum}) {
    bool used = uses_.sums[at(kind)];
    for (const auto& restored : uses_.restores) used |= restored[at(kind)];
    if (used) decodes(kind, uses_.summed, now_.sums);
    uint32_t launches = 0;
    if (uses_.encodes[at(kind)])
      (void)count_device_launches(batch_of(kind), batch_of(kind).on_device, nullptr, c_.on_device.encoding, launches,
                                  c_.error);
  }
  if (uses_.merged) decodes(merged_kind(), uses_.merged, now_.outs);
}

// to: nullptr: the values themselves.
dr_status device_range::round_values(std::span<const tensor_out> from, const std::vector<std::byte*>* to) {
  jobs_.clear();
  for (size_t i = 0; i < from.size(); ++i) {
    const uint64_t elements = from[i].universe * from[i].width;
    void* const there = to ? (*to)[i] : from[i].values;
    if (!elements || !there) continue;
    const uint32_t dtype = to ? of_.view_of(i).dtype : uint32_t{DR_F32};
    jobs_.push_back({static_cast<const float*>(from[i].values), there, elements, 0, dtype});
  }
  device_queue queue = on_.queue();
  return check_device(launch_own<round_values_of>(
                          queue, jobs_, [](const sum_job& j) { return ceil_div(j.elements, uint64_t{sum_tile}); },
                          [&](auto& args) { args.tidies = !to, args.reserved = 0; }),
                      *on_.where().where, c_.error);
}

dr_status device_range::copy_states(const std::vector<std::byte*>& to, const std::vector<std::byte*>& from) {
  for (size_t i = 0; i < before_.size(); ++i)
    if (before_[i])
      if (const dr_status s = on_.copy(to[i], from[i], of_.state_bytes(uses_.residual, i))) return s;
  return DR_OK;
}

dr_status device_range::undo_encode(frame_kind kind) {
  return kind == frame_kind::sum ? copy_states(states_[at(uses_.residual)], before_) : dr_status{DR_OK};
}

dr_status device_range::encode(frame_kind kind, encode_request& request) {
  const bool of_sum = kind == frame_kind::sum;
  if (of_sum) {
    if (const dr_status s = copy_states(before_, states_[at(uses_.residual)])) return s;
    if (const dr_status s = round_values(now_.sums, &rounded_)) return s;
  }
  if (!of_sum && host_)
    if (const dr_status s = round_values(now_.sums, &rounded_)) return s;
  request.where = on_.where();
  request.call.checked = true;
  encode_result made;  // (its result comes later)
  return encode_placed(c_, batch_of(kind), request, of_sum ? now_.summed : now_.views, workspace_, workspace_size_,
                       made);
}

dr_status device_range::sum(frame_kind kind, std::span<const dr_bytes> frames, const float* weights,
                            dr_result* result) {
  device_queue queue = on_.queue();
  return decode_on_device(batch_of(kind).frames, {frames, weights}, now_.sums, queue, workspace_, workspace_size_,
                          result, c_.on_device.decoding, c_.error);
}

dr_status device_range::clear_sum() {
  for (const tensor_out& o : now_.sums)
    if (o.values)
      if (const dr_status s = on_.clear(o.values, 4 * o.universe * o.width)) return s;
  return DR_OK;
}

dr_status device_range::add_gradient() {
  added_.clear();
  for (size_t i = 0; i < now_.views.size(); ++i) {
    const tensor_view& v = now_.views[i];
    const uint64_t elements = v.universe * width_of(v);
    if (elements) added_.push_back({v.values, static_cast<float*>(now_.sums[i].values), elements, 0, v.dtype});
  }
  device_queue queue = on_.queue();
  return check_device(launch_own<add_values_to>(
                          queue, added_, [](const add_job& j) { return ceil_div(j.elements, uint64_t{sum_tile}); }),
                      *on_.where().where, c_.error);
}

dr_status device_range::decode(std::span<const dr_bytes> frames, const float* weights, dr_result* result) {
  device_queue queue = on_.queue();
  return judge_on_device(batch_of(merged_kind()).frames, {frames, weights}, now_.outs, queue, decode_workspace_,
                         decode_room_, result, c_.on_device.decoding, judged_, c_.error);
}

dr_status device_range::merge(std::span<const dr_bytes> frames, const float* weights) {
  if (twice_)
    if (const dr_status s = decode(frames, weights, nullptr)) return s;
  device_queue queue = on_.queue();
  return deliver_on_device(batch_of(merged_kind()).frames, {frames, weights}, now_.outs, judged_, queue, c_.error);
}

dr_status device_range::restore_residual(residual_kind which, frame_kind kind, std::span<const dr_bytes> frames,
                                         const float* weights) {
  if (!of_.keeps_residual(which)) return DR_OK;
  const std::vector<tensor_out>& residuals = now_.residuals[at(which)];
  decode_request request{frames, weights};
  request.adds = true;
  device_queue queue = on_.queue();
  if (const dr_status s = decode_on_device(batch_of(kind).frames, request, residuals, queue, workspace_,
                                           workspace_size_, nullptr, c_.on_device.decoding, c_.error))
    return s;
  // As after an encode: values that are not finite stay out of later steps.
  return round_values(residuals, nullptr);
}

dr_status device_range::explain_decode(frame_kind kind, const dr_result& r) const {
  const placed_batch& b = batch_of(kind);
  dr_result row = r;
  if (row.tensor < b.rows.size()) row.tensor = b.units[b.rows[row.tensor].unit].first_tensor;
  (void)fail_as_device(b, row, c_.error);
  c_.error.frame = r.frame;
  return c_.error.code = r.status;
}

}  // namespace dr
