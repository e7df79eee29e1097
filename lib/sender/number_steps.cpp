// The steps of a unit whose numbers an all-reduce adds up: halves, factors.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "api/state.hpp"
#include "primitive/value_type.hpp"
#include "sender/rank_sender.hpp"

namespace dr {

// Their states are as those of frames, in a range.
dr_status sender::prepare_halves(unit& u) {
  std::vector<number_tensor> list;
  for (auto& tensors : u.list.frames) {
    frame& f = u.frames.emplace_back();
    f.tensors = tensors;
    piece_list pieces;
    for (const uint32_t i : tensors) {
      pieces.push_back({i, 0, tensors_[i].elements});
      list.push_back({tensors_[i].dtype, 1, tensors_[i].elements});
    }
    range_uses uses;
    uses.restores[at(residual_kind::own)][at(frame_kind::part)] = true;
    uses.summed = 1;
    uses.borrows_states = borrows_states(u);
    range_work& r = f.ranges.emplace_back(c_, std::move(pieces), uses);
    if (const dr_status s = r.prepare({plans_.methods, sum_plans_, nullptr}, memory(), 1, true)) {
      name_tensor(f, 0);
      return s;
    }
  }
  const plan& method = *plans_.methods[u.list.tensors[0]];
  auto made = std::make_unique<half_unit>(c_);
  if (const dr_status s = made->create(half_of(method), method.keeps_residual(), options_.ranks, output_scale(), list))
    return s;
  u.numbers = std::move(made);
  return DR_OK;
}

dr_status sender::prepare_factors(unit& u) {
  std::vector<number_tensor> list;
  for (const uint32_t i : u.list.tensors) list.push_back({tensors_[i].dtype, tensors_[i].rows, tensors_[i].elements});
  const plan& method = *plans_.methods[u.list.tensors[0]];
  auto made = std::make_unique<factor_unit>(c_);
  const uint64_t below = dense_below_of(method, options_.rules.dense_below);
  if (const dr_status s = made->create(method, below, options_.seed, options_.ranks, output_scale(), list)) {
    if (c_.error.tensor < list.size()) name_tensor(u.list.tensors[c_.error.tensor]);
    return s;
  }
  u.factors = made.get();
  u.numbers = std::move(made);
  return DR_OK;
}

// Where the state of the feedback of halves is, with its head.
std::byte* sender::state_at(unit& u, uint32_t tensor) {
  const plan& method = *plans_.methods[tensor];
  if (u.factors || !method.keeps_feedback()) return nullptr;
  auto* state = static_cast<std::byte*>(views_[tensor].state);
  if (!borrows_states(u))
    for (const frame& f : u.frames)
      for (size_t i = 0; i < f.tensors.size(); ++i)
        if (uint64_t size = 0; f.tensors[i] == tensor) state = f.ranges[0].state_of(residual_kind::own, i, size);
  residual_state head;
  std::memcpy(&head, state, sizeof head);
  if (head.magic) return state;
  head = dr::head_of(method.feedback_rule().kind, tensors_[tensor].elements);
  std::memcpy(state, &head, sizeof head);
  return state;
}

dr_status sender::encode_numbers(unit& u, const dr_call& call, void* slot, dr_sent& result) {
  number_unit& n = *u.numbers;
  const uint64_t size = n.first() * value_size(n.type());
  if (reinterpret_cast<uintptr_t>(slot) % value_size(n.type()))
    return fail(c_.error, DR_E_ARGUMENT, "slots: not aligned to their numbers");
  for (const uint32_t i : u.list.tensors)
    if (borrows_state(i))
      if (const dr_status s =
              fits_state(*plans_.methods[i], views_[i], views_[i].state,
                         state_size_of(plans_.methods[i]->feedback_rule().kind, tensors_[i].elements), c_.error))
        return prefix(c_.error, "%.80s: ", tensors_[i].name.c_str()), s;
  u.step = call.step;
  u.refuses = u.skips = false;
  u.zeros_reason.clear();
  u.places.clear();
  for (const uint32_t i : u.list.tensors)
    u.places.push_back({views_[i].values, nullptr, is_rounded(i) ? tensors_[i].dtype : dr_dtype{DR_F32}, nullptr});
  const bool may_skip = options_.flags & DR_SENDER_SKIP;
  if (may_skip) {
    remember(u);
    n.remember();
  }
  for (size_t i = 0; i < u.places.size(); ++i) u.places[i].state = state_at(u, u.list.tensors[i]);
  slot_head head = head_of(u, call.step);
  if (const dr_status s = n.begin(u.places, slot)) {
    std::memset(slot, 0, size);
    const bool known = c_.error.tensor < u.list.tensors.size();
    const uint32_t tensor = u.list.tensors[known ? c_.error.tensor : 0];
    name_tensor(tensor);
    head.tensor = tensor + 1;
    u.zeros_reason = c_.error.message;
    if (!may_skip) result.fault = s;
  } else {
    for (const uint32_t i : u.list.tensors) result.kept += tensors_[i].elements;
    if (returned_ > 0) n.scale_returned(decay_of(*plans_.methods[u.list.tensors[0]]));
  }
  write_summed_head(head, n.type(), options_.ranks, options_.rank, static_cast<std::byte*>(slot) + size);
  result.size = result.frames = first_size(u);
  return DR_OK;
}

dr_status sender::check_step(const unit& u, const dr_call& call) {
  if (u.step == call.step) return DR_OK;
  return fail(c_.error, DR_E_ARGUMENT, "unit: step %" PRIu64 " was not encoded", uint64_t{call.step});
}

dr_status sender::check_sum(const unit& u, std::span<const dr_bytes> slots, uint64_t size) {
  if (slots.size() != 1) return fail(c_.error, DR_E_ARGUMENT, "slots: %zu; the sum of all ranks' is one", slots.size());
  if (!slots[0].data || slots[0].size < size)
    return fail(c_.error, DR_E_ARGUMENT, "slots: %zu bytes; the sum has %" PRIu64, slots[0].size, size);
  if (reinterpret_cast<uintptr_t>(slots[0].data) % value_size(u.numbers->type()))
    return fail(c_.error, DR_E_ARGUMENT, "slots: not aligned to their numbers");
  return DR_OK;
}

// Reads the heads in the sum of the first numbers.
dr_status sender::read_numbers(unit& u, const dr_call& call, const dr_bytes& slot) {
  number_unit& n = *u.numbers;
  const auto* const heads = static_cast<const std::byte*>(slot.data) + n.first() * value_size(n.type());
  if (const dr_status s = read_summed_heads(n.type(), options_.ranks, heads, slots_.heads, c_.error)) {
    name_rank(c_.error.frame);
    return s;
  }
  if (const dr_status s = compare(u, call)) return s;
  settle();
  const auto bad = std::ranges::find_if(slots_.heads, [](const slot_head& h) { return h.tensor != 0; });
  if (bad == slots_.heads.end()) return DR_OK;
  if (options_.flags & DR_SENDER_SKIP) {
    u.skips = true;
    return DR_OK;
  }
  const auto rank = static_cast<size_t>(bad - slots_.heads.begin());
  const uint32_t tensor = bad->tensor - 1;
  if (rank == options_.rank && !u.zeros_reason.empty())
    fail(c_.error, DR_E_PEER, "%s", u.zeros_reason.c_str());
  else
    fail(c_.error, DR_E_PEER, "%.80s: could not encode: a value of the gradient%s is not finite (infinite or NaN)",
         tensor < tensors_.size() ? tensors_[tensor].name.c_str() : "?",
         plans_.methods[u.list.tensors[0]]->keeps_feedback() ? ", with its residual," : "");
  name_rank(rank);
  if (tensor < tensors_.size()) c_.error.tensor = tensor;
  return DR_E_PEER;
}

dr_status sender::sum_numbers(unit& u, const dr_call& call, std::span<const dr_bytes> slots, void* slot,
                              dr_sent& result) {
  number_unit& n = *u.numbers;
  if (const dr_status s = check_sum(u, slots, first_size(u))) return s;
  if (const dr_status s = check_step(u, call)) return s;
  result.size = result.frames = n.second() * value_size(n.type());
  dr_status status = read_numbers(u, call, slots[0]);
  if (!status && !u.skips) {
    if (!n.waits_for(1))
      return fail(c_.error, DR_E_ARGUMENT, "unit: the sum of step %" PRIu64 " was given already", uint64_t{call.step});
    status = n.next(slots[0].data, slot);
    // The sum is not finite: it is the same on all ranks.
    if (status && (options_.flags & DR_SENDER_SKIP)) {
      u.skips = true;
      status = DR_OK;
    } else if (!status) {
      return DR_OK;
    }
  }
  // Merge reports it: the others may wait in the second all-reduce.
  std::memset(slot, 0, result.size);
  if (status) {
    u.refuses = true;
    u.refusal = c_.error;
    result.fault = status;
  }
  return DR_OK;
}

dr_status sender::merge_numbers(unit& u, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result) {
  number_unit& n = *u.numbers;
  const uint64_t size = n.second() ? n.second() * value_size(n.type()) : first_size(u);
  if (const dr_status s = check_sum(u, slots, size)) return s;
  if (const dr_status s = check_step(u, call)) return s;
  result.size = size;
  if (!n.second())
    if (const dr_status s = read_numbers(u, call, slots[0])) return s;
  if (!u.skips) {
    const uint32_t last = n.second() ? 2 : 1;
    if (!n.waits_for(last))
      return fail(c_.error, DR_E_ARGUMENT, "unit: step %" PRIu64 " was merged already, or its sums were not given",
                  uint64_t{call.step});
    for (size_t i = 0; i < u.places.size(); ++i) u.places[i].out = given_outs_[u.list.tensors[i]];
    const dr_status s = n.finish(u.places, slots[0].data);
    if (!s) return DR_OK;
    if (!(options_.flags & DR_SENDER_SKIP)) return s;
    u.skips = true;
  }
  result.skips = 1;
  return DR_OK;
}

// ---- States of factors ------------------------------------------------------------------------------------

std::span<float> sender::factor_state(size_t tensor, uint32_t which) const {
  const factor_unit& f = *units_[unit_of_[tensor]].factors;
  const size_t at = position_of_[tensor];
  return which == DR_STATE_WARM ? f.warm_start(at) : which == DR_STATE_OWN ? f.residual(at) : std::span<float>();
}

dr_status sender::read_factor_state(size_t tensor, uint32_t which, void* state, size_t size) const {
  const std::span<float> from = factor_state(tensor, which);
  auto* to = static_cast<std::byte*>(state);
  if (which == DR_STATE_OWN) {
    // Without a residual it is a fresh state, as of a plan that sends frames.
    if (std::ranges::all_of(from, [](float x) { return x == 0; })) return std::memset(state, 0, size), DR_OK;
    const residual_state head = dr::head_of(plans_.methods[tensor]->feedback_rule().kind, from.size());
    std::memcpy(to, &head, sizeof head);
    to += sizeof head;
  }
  std::memcpy(to, from.data(), from.size_bytes());
  return DR_OK;
}

dr_status sender::write_factor_state(size_t tensor, uint32_t which, const void* state, size_t size) {
  const std::span<float> to = factor_state(tensor, which);
  const auto* from = static_cast<const std::byte*>(state);
  if (which == DR_STATE_OWN) {
    const feedback_kind& kind = plans_.methods[tensor]->feedback_rule().kind;
    if (const dr_status s = check_state(state, size, kind, to.size(), false, c_.error))
      return prefix(c_.error, "%.80s: ", tensors_[tensor].name.c_str()), s;
    residual_state head;
    std::memcpy(&head, from, sizeof head);
    if (!head.magic) return std::ranges::fill(to, 0.0f), DR_OK;
    from += sizeof head;
  }
  if (const dr_status s = check_finite(tensor, from, to.size())) return s;
  std::memcpy(to.data(), from, to.size_bytes());
  if (which == DR_STATE_WARM) units_[unit_of_[tensor]].factors->settle_warm_start(position_of_[tensor]);
  return DR_OK;
}

}  // namespace dr
