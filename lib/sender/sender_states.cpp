// What a sender holds between steps: residuals, which take back what never arrived, and states for checkpoints.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <limits>

#include "api/state.hpp"
#include "sender/rank_sender.hpp"

namespace dr {

// Calls f(state, its size, its plan) for each state of the unit, the caller's or the sender's.
template <class F>
void sender::for_each_state(const unit& u, F&& f) {
  for (const frame& part : u.frames)
    for (const range_work& r : part.ranges)
      for (size_t i = 0; i < r.pieces().size(); ++i)
        for (const residual_kind which : {residual_kind::own, residual_kind::sum}) {
          uint64_t size = 0;
          void* state = r.state_of(which, i, size);
          const uint32_t t = r.pieces()[i].tensor;
          if (!state && which == residual_kind::own && views_[t].state) {
            state = views_[t].state;
            size = r.state_bytes(which, i);
          }
          if (state) f(static_cast<std::byte*>(state), size, r.plan_of(which, i));
        }
}

void sender::remember(unit& u) {
  size_t next = 0;
  for_each_state(u, [&](const std::byte* state, uint64_t size, const plan&) {
    if (next == u.before.size()) u.before.emplace_back();
    u.before[next++].assign(state, state + size);
  });
}

void sender::skip(uint64_t step) {
  if (side_) return;  // (no rank asks for it)
  for (unit& u : units_) {
    if (u.step != step) continue;
    size_t next = 0;
    for_each_state(u, [&](std::byte* state, uint64_t size, const plan&) {
      if (next < u.before.size() && u.before[next].size() == size) std::memcpy(state, u.before[next].data(), size);
      ++next;
    });
    if (u.numbers) u.numbers->restore();
    if (u.rows) u.rows->merge_nan();
    for (const uint32_t i : u.list.tensors) {
      const uint64_t n = elements_out(u, i);
      if (u.rows || !given_outs_[i]) continue;  // (rows have outputs of their own)
      if (!is_rounded(i))
        std::fill_n(static_cast<float*>(given_outs_[i]), n, std::numeric_limits<float>::quiet_NaN());
      else
        std::fill_n(static_cast<uint16_t*>(given_outs_[i]), n,
                    static_cast<uint16_t>(tensors_[i].dtype == DR_F16 ? 0x7e00 : 0x7fc0));
    }
    u.step = UINT64_MAX;
  }
}

// The number of the step that others completed, of those that this rank took back. They completed one, since they notice in
// the next step that this rank is behind, and fail: so it is the last one, unless they failed in that, too. (Of three or more
// whose heads this rank could not read it may be one before these two, which no head says.)
uint64_t sender::completed_by_others() const {
  const bool failed_in_last =
      returned_ > 1 && failed_before_ != failed_ && others_failed_ == static_cast<uint32_t>(failed_);
  return failures_ - failed_in_last;
}

dr_status sender::take_back(uint64_t step) {
  // (All ranks know that they fail in a step in which they find one behind.)
  const bool notes = !is_behind_;
  const uint64_t completed = completed_by_others();
  failed_before_ = failed_;
  failures_ = (is_behind_ ? others_failures_ : failures_) + 1;
  failed_ = step;
  if (side_ && !is_dry()) return take_back_on_device(step);
  if (notes) {
    ++returned_;
    // What fails again and again must not take ever more memory.
    const auto is_older = [&](const auto& of) { return of.number + 1 < failures_; };
    for (unit& u : units_) {
      std::erase_if(u.returned, is_older);
      if (u.numbers) u.numbers->forget(is_older);
    }
  }
  dr_status status = DR_OK;
  for (unit& u : units_) {
    if (u.step == step && u.numbers) u.numbers->take_back(u.places, notes ? &failures_ : nullptr);
    if (u.step == step) {
      const auto back = [&](range_work& r, residual_kind which, frame_kind kind, const dr_bytes& bytes, float weight) {
        if (!bytes.size || !r.keeps_residual(which)) return;
        if (const dr_status lost = r.restore_residual(which, kind, {&bytes, 1}, &weight)) {
          prefix(c_.error,
                 "step %" PRIu64 ": what %.60s … %.60s sent is lost, it cannot go back to the residuals: ", step,
                 tensors_[u.list.tensors.front()].name.c_str(), tensors_[u.list.tensors.back()].name.c_str());
          if (!status) status = lost;
          return;
        }
        const auto* const from = static_cast<const std::byte*>(bytes.data);
        if (notes) u.returned.push_back({failures_, &r, which, kind, {from, from + bytes.size}, weight});
      };
      for (size_t f = 0; f < u.frames.size() && !u.numbers; ++f) {
        frame& part = u.frames[f];
        if (f < u.summed.size() && u.summed[f].size) {
          range_work& own = part.ranges[options_.rank];
          back(own, residual_kind::sum, frame_kind::sum, u.summed[f], 1);
          for (size_t i = 0; i < options_.ranks; ++i)
            back(own, residual_kind::sum, frame_kind::part, u.inputs[f * options_.ranks + i], -weight_of(part));
        }
        for (size_t slot = 0; slot < part.ranges.size() && slot < slots_of(u); ++slot)
          back(part.ranges[slot], residual_kind::own, frame_kind::part, u.sent[slot * u.frames.size() + f], 1);
      }
      u.step = UINT64_MAX;
    }
    if (is_behind_) withdraw(u, completed);
  }
  if (is_behind_) returned_ = 0;
  is_behind_ = false;
  return status;
}

// The encode let the residual decay, and with it what was taken back.
void sender::decay_returned(unit& u, const range_work& range, frame_kind kind) {
  const residual_kind which = kind == frame_kind::sum ? residual_kind::sum : residual_kind::own;
  for (returned_frame& t : u.returned)
    if (t.range == &range && t.which == which) t.weight *= decay_of(range.plan_of(which, 0));
}

// Others completed a step whose frames were taken back: makes the residuals what they would be if this rank had completed it,
// too.
void sender::withdraw(unit& u, uint64_t number) {
  if (u.numbers) u.numbers->withdraw(u.places, number);
  for (const returned_frame& t : u.returned) {
    if (t.number != number) continue;
    const float weight = -t.weight;
    const dr_bytes bytes{t.bytes.data(), t.bytes.size()};
    (void)t.range->restore_residual(t.which, t.kind, {&bytes, 1}, &weight);
  }
  u.returned.clear();
}

namespace {

residual_kind kind_of_state(uint32_t which) { return which == DR_STATE_SUM ? residual_kind::sum : residual_kind::own; }

}  // namespace

template <class F>
dr_status sender::for_each_piece(size_t tensor, uint32_t which, bool writes, F&& f) {
  const unit& u = units_[unit_of_[tensor]];
  for (const frame& part : u.frames)
    for (const range_work& r : part.ranges)
      for (size_t i = 0; i < r.pieces().size(); ++i) {
        if (r.pieces()[i].tensor != tensor) continue;
        uint64_t size = 0;
        std::byte* const at = r.state_of(kind_of_state(which), i, size);
        if (!at) continue;
        if (const dr_status s = f({r.pieces()[i], r.view_of(i), at, size})) return s;
      }
  if (!u.device) return DR_OK;
  std::vector<std::byte> copy;
  for (const auto& p : which == DR_STATE_SUM ? u.device->sums : u.device->parts)
    for (size_t i = 0; i < p->pieces.size(); ++i) {
      void* const at = p->views[i].state;
      if (p->pieces[i].tensor != tensor || !at) continue;
      copy.resize(p->state_bytes(i));
      if (!writes)
        if (const dr_status s = side_->copy_now(copy.data(), at, copy.size())) return s;
      if (const dr_status s = f({p->pieces[i], p->views[i], copy.data(), copy.size()})) return s;
      if (writes)
        if (const dr_status s = side_->copy_now(at, copy.data(), copy.size())) return s;
    }
  return DR_OK;
}

dr_status sender::check_state_call(size_t tensor, uint32_t which, const void* state, size_t size) const {
  dr_error& error = c_.error;
  if (which > DR_STATE_WARM) return fail(error, DR_E_ARGUMENT, "which: %u is not one of DR_STATE_*", which);
  const dr_sent_tensor known = tensor_info(tensor);
  const uint64_t needed = which == DR_STATE_WARM  ? known.warm_state
                          : which == DR_STATE_SUM ? known.sum_state
                                                  : known.state;
  if (size != needed || (!state && size))
    return fail(error, DR_E_ARGUMENT, "%.80s: its state has %" PRIu64 " bytes, not %zu", tensors_[tensor].name.c_str(),
                needed, size);
  if (borrows_state(tensor)) return fail(error, DR_E_ARGUMENT, "state: the caller has it (DR_SENDER_CALLER_STATES)");
  return DR_OK;
}

dr_status sender::check_finite(size_t tensor, const std::byte* values, size_t n) const {
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i * sizeof bits, sizeof bits);
    if (is_finite<f32_type>(bits)) continue;
    fail(c_.error, DR_E_ARGUMENT, "%.80s: value %zu of its state is not finite", tensors_[tensor].name.c_str(), i);
    c_.error.tensor = tensor;
    c_.error.where = i;
    return DR_E_ARGUMENT;
  }
  return DR_OK;
}

dr_status sender::read_state(size_t tensor, uint32_t which, void* state, size_t size) {
  if (const dr_status s = check_state_call(tensor, which, state, size)) return s;
  if (!size) return DR_OK;
  if (units_[unit_of_[tensor]].factors) return read_factor_state(tensor, which, state, size);
  if (side_)
    if (const dr_status s = return_late(units_[unit_of_[tensor]])) return s;
  std::memset(state, 0, size);
  const plan& method = *(which == DR_STATE_SUM ? sum_plans_ : plans_.methods)[tensor];
  bool filled = false;
  return for_each_piece(tensor, which, false, [&](const state_piece& p) -> dr_status {
    if (p.size == size) {  // the whole tensor
      std::memcpy(state, p.at, size);
      return DR_OK;
    }
    residual_state head;
    std::memcpy(&head, p.at, sizeof head);
    if (!head.magic) return DR_OK;  // a fresh one
    if (!filled)
      if (const dr_status s = fill_state(method, views_[tensor], nullptr, state, size, c_.error)) return s;
    filled = true;
    return copy_state({p.at, p.size, 0}, state, size, p.of.first, p.of.rows, c_.error);
  });
}

dr_status sender::write_state(size_t tensor, uint32_t which, const void* state, size_t size) {
  if (const dr_status s = check_state_call(tensor, which, state, size)) return s;
  if (!size) return DR_OK;
  if (units_[unit_of_[tensor]].factors) return write_factor_state(tensor, which, state, size);
  const plan& method = *(which == DR_STATE_SUM ? sum_plans_ : plans_.methods)[tensor];
  if (const dr_status s = fits_state(method, views_[tensor], state, size, c_.error))
    return prefix(c_.error, "%.80s: ", tensors_[tensor].name.c_str()), s;
  residual_state head;
  std::memcpy(&head, state, sizeof head);
  const size_t values = head.magic ? method.feedback_rule().kind.arrays() * head.elements : 0;
  if (const dr_status s = check_finite(tensor, static_cast<const std::byte*>(state) + sizeof head, values)) return s;
  if (side_)
    if (const dr_status s = return_late(units_[unit_of_[tensor]])) return s;
  return for_each_piece(tensor, which, true, [&](const state_piece& p) -> dr_status {
    if (!head.magic) return std::memset(p.at, 0, p.size), DR_OK;
    if (p.size == size) return std::memcpy(p.at, state, size), DR_OK;
    if (const dr_status s = fill_state(method, p.view, nullptr, p.at, p.size, c_.error)) return s;
    return copy_state({state, size, p.of.first}, p.at, p.size, 0, p.of.rows, c_.error);
  });
}

dr_status sender::resume(uint64_t failures, uint64_t failed) {
  for (unit& u : units_)
    if (u.device && !is_dry())
      if (const dr_status s = return_late(u)) return s;
  if (failures != failures_ || failed != failed_) settle();
  failures_ = failures;
  failed_ = failed;
  is_behind_ = false;
  for (unit& u : units_) u.step = UINT64_MAX;  // (what was encoded before is not of this run: no take_back has it)
  if (!side_ || is_dry()) return DR_OK;
  if (const dr_status s = side_->begin()) return s;
  const dr_status s =
      set_device_counts({side_->counts(), 0, 0, static_cast<uint32_t>(failures), static_cast<uint32_t>(failed), 0});
  const dr_status ended = side_->end();
  return s ? s : ended;
}

dr_status sender::use_stream(void* stream) {
  if (!side_) return fail(c_.error, DR_E_ARGUMENT, "stream: the sender's tensors are on the CPU");
  side_->move(stream);
  return DR_OK;
}

// On the CPU, state by state.
dr_status sender::scale_on_device(double factor) {
  std::vector<std::byte> copy;
  for (unit& u : units_) {
    if (const dr_status s = return_late(u)) return s;
    for (const device_parts* const parts : {&u.device->parts, &u.device->sums})
      for (const auto& p : *parts)
        for (size_t i = 0; i < p->pieces.size(); ++i) {
          // (The caller may have placed another one since the last encode.)
          void* const state = borrows_states(u) ? views_[p->pieces[i].tensor].state : p->views[i].state;
          if (!p->plans[i]->keeps_residual() || !state) continue;
          copy.resize(p->state_bytes(i));
          if (const dr_status s = side_->copy_now(copy.data(), state, copy.size())) return s;
          if (const dr_status s = scale_state(copy.data(), copy.size(), factor, c_.error)) return s;
          if (const dr_status s = side_->copy_now(state, copy.data(), copy.size())) return s;
        }
  }
  return DR_OK;
}

dr_status sender::scale(double factor) {
  if (!std::isfinite(factor)) return fail(c_.error, DR_E_ARGUMENT, "factor: %g is not finite", factor);
  dr_status status = DR_OK;
  if (is_dry()) return DR_OK;
  if (side_) return scale_on_device(factor);
  for (unit& u : units_) {
    for_each_state(u, [&](std::byte* state, uint64_t size, const plan& p) {
      if (!p.keeps_residual()) return;
      if (const dr_status s = scale_state(state, size, factor, c_.error); s && !status) status = s;
    });
    for (returned_frame& t : u.returned) t.weight *= static_cast<float>(factor);
    if (u.numbers) u.numbers->scale_returned(static_cast<float>(factor));
    if (u.factors)
      for (size_t i = 0; i < u.list.tensors.size(); ++i) scale_residual(u.factors->residual(i), factor);
  }
  return status;
}

}  // namespace dr
