// The steps of a unit: encode, the sum of an owner, merge.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "core/arena.hpp"
#include "exchange/program.hpp"
#include "feedback/velocity.hpp"
#include "primitive/rng.hpp"
#include "primitive/value_type.hpp"
#include "sender/finite.hpp"
#include "sender/rank_sender.hpp"

namespace dr {
namespace {

template <class Type>
void round_values(const float* from, void* to, uint64_t n) {
  auto* const out = static_cast<typename Type::bits*>(to);
  for (uint64_t i = 0; i < n; ++i) out[i] = Type::from_f32(from[i]);
}

template <class Type>
void scale_values(const void* values, void* to, double factor, uint64_t n) {
  const auto* const from = static_cast<const typename Type::bits*>(values);
  auto* const out = static_cast<typename Type::bits*>(to);
  for (uint64_t i = 0; i < n; ++i)
    out[i] = Type::from_f32(static_cast<float>(factor * static_cast<double>(Type::to_f32(from[i]))));
}

}  // namespace

void drop_frame_number(dr_error& error) {
  constexpr const char word[] = "frame ";
  const char* at = error.message;
  if (std::strncmp(at, word, sizeof word - 1)) return;
  at += sizeof word - 1;
  const size_t digits = std::strspn(at, "0123456789");
  if (!digits || std::strncmp(at + digits, ": ", 2)) return;
  at += digits + 2;
  std::memmove(error.message, at, std::strlen(at) + 1);
}

dr_status sender::check_unit(size_t unit, bool sums, dr_error& error) const {
  if (unit >= units_.size())
    return fail(error, DR_E_ARGUMENT, "unit: %zu is not below the %zu units", unit, units_.size());
  if (is_dry())
    return fail(error, DR_E_UNSUPPORTED, "the sender was created with DR_SENDER_DRY: it encodes and merges nothing");
  const auto& u = units_[unit];
  if (sums && u.list.kind != DR_UNIT_OWNER && !(u.numbers && u.numbers->second()))
    return fail(error, DR_E_ARGUMENT, "unit %zu: there are no sums: its plans have no exchange=owner, and no factors",
                unit);
  return DR_OK;
}

dr_status sender::check_call(const dr_call& call) {
  if (call.flags || call.reserved || call.segment_rows || call.faults || call.tag)
    return fail(c_.error, DR_E_UNSUPPORTED, "call: a sender uses step, seeds and trace only; the rest must be 0");
  return DR_OK;
}

bool sender::are_finite(const unit& u) const {
  return std::ranges::all_of(u.list.tensors, [&](uint32_t i) {
    return are_all_finite(views_[i].dtype, views_[i].values, tensors_[i].elements);
  });
}

slot_head sender::head_of(const unit& u, uint64_t step) const {
  slot_head head;
  head.tag = tag_of(u, step);
  head.failures = static_cast<uint32_t>(failures_);
  head.failed = static_cast<uint32_t>(failed_);
  return head;
}

dr_status sender::clip() {
  if (!(clip_ > 0)) return DR_OK;
  double sum = 0;
  uint64_t bytes = 0;
  for (const uint32_t i : clipped_) {
    tensor_view& v = views_[i];
    if (v.values != given_[i]) {  // an earlier step was scaled
      v.values = given_[i];
      units_[unit_of_[i]].tensors_moved = true;
    }
    if (!v.values && v.universe)
      return fail(c_.error, DR_E_ARGUMENT, "%.80s: was not placed", tensors_[i].name.c_str());
    sum += squares_of(v.dtype, v.values, v.universe);
    bytes += round_up(v.universe * value_size(v.dtype), arena::alignment);
  }
  const double norm = std::sqrt(sum);
  if (!(norm > clip_) || !std::isfinite(norm)) return DR_OK;  // (encode reports a value that is not finite)
  scaled_.resize(bytes + arena::alignment);
  std::byte* to = scaled_.data() + (-reinterpret_cast<uintptr_t>(scaled_.data()) % arena::alignment);
  for (const uint32_t i : clipped_) {
    tensor_view& v = views_[i];
    with_type(v.dtype, [&](auto type) { scale_values<decltype(type)>(v.values, to, clip_ / norm, v.universe); });
    v.values = to;
    units_[unit_of_[i]].tensors_moved = true;
    to += round_up(v.universe * value_size(v.dtype), arena::alignment);
  }
  return DR_OK;
}

// Encodes one frame; if the data cannot be encoded, a status frame with the reason.
dr_status sender::encode_frame(unit& u, size_t f, size_t range, frame_kind kind, const dr_call& call, void* at,
                               uint64_t& size, dr_sent& result) {
  encode_request r;
  r.call.step = call.step;
  r.call.seed = call.seed;
  r.call.private_seed = kind == frame_kind::sum ? combine(call.private_seed, sum_draws) : call.private_seed;
  r.call.tag = tag_of(u, call.step);
  r.call.flags = DR_CALL_TAG;
  r.call.trace = call.trace;
  r.call.trace_user = call.trace_user;
  r.frame = static_cast<uint8_t*>(at);
  r.capacity = (kind == frame_kind::sum ? u.sum_bounds : u.bounds)[f];
  encode_result made;
  const dr_status status = u.frames[f].ranges[range].encode(kind, r, made);
  if (!status) {
    size = made.size;
    result.kept += made.kept;
    if (returned_ > 0) decay_returned(u, u.frames[f].ranges[range], kind);
    return DR_OK;
  }
  name_tensor(u.frames[f], range);
  size = write_status_frame(status, c_.error.message, true, r.call.tag, r.frame);
  result.fault = status;
  return status;
}

dr_status sender::check_room(const void* slots, size_t capacity, uint64_t needed) {
  if (slots && capacity >= needed) return DR_OK;
  if (slots)
    fail(c_.error, DR_E_CAPACITY, "slots: %zu bytes; %" PRIu64 " are needed", capacity, needed);
  else
    fail(c_.error, DR_E_ARGUMENT, "slots is NULL; %" PRIu64 " bytes are needed", needed);
  c_.error.needed = needed;
  return c_.error.code;
}

dr_status sender::check_placed(const unit& u, bool outputs) {
  for (const uint32_t i : u.list.tensors)
    if (!(outputs ? given_outs_[i] : views_[i].values) && tensors_[i].elements) {
      fail(c_.error, DR_E_ARGUMENT, "%.80s: %swas not placed", tensors_[i].name.c_str(), outputs ? "its output " : "");
      c_.error.tensor = i;
      return DR_E_ARGUMENT;
    }
  return DR_OK;
}

dr_status sender::encode(size_t unit, const dr_call& call, void* slots, size_t capacity, dr_sent& result) {
  if (const dr_status s = check_unit(unit, false, c_.error)) return s;
  if (const dr_status s = check_call(call)) return s;
  auto& u = units_[unit];
  const size_t n = slots_of(u), frames = u.frames.size(), prefix = prefix_size(frames);
  if (const dr_status s = check_room(slots, capacity, n * unit_info(unit).bound)) return s;
  if (u.rows) return encode_rows(u, call, slots, result);
  if (const dr_status s = check_placed(u, false)) return s;
  if (u.numbers) return encode_numbers(u, call, slots, result);
  if (u.device) return encode_device(u, call, slots, result);
  if (const dr_status s = bind_tensors(u)) return s;
  u.step = call.step;
  u.refuses = false;
  std::ranges::fill(u.sent, dr_bytes{});
  u.summed.clear();
  u.inputs.clear();
  bool skips = false;
  if (options_.flags & DR_SENDER_SKIP) {
    remember(u);
    skips = !are_finite(u);
  }
  std::vector<uint64_t>& sizes = slots_.sizes;
  sizes.assign(n * frames, 0);
  const auto slot_at = [&](size_t slot) { return static_cast<std::byte*>(slots) + slot * u.room.bound(); };
  std::byte* refusal = nullptr;
  uint64_t refusal_size = 0;
  uint32_t at_fault = 0;  // the tensor of the reason that receivers read
  for (size_t slot = 0; slot < n && !skips; ++slot) {
    std::byte* at = slot_at(slot) + prefix;
    for (size_t f = 0; f < frames; ++f) {
      uint64_t& size = sizes[slot * frames + f];
      if (u.frames[f].ranges[slot].empty()) continue;
      if (encode_frame(u, f, slot, frame_kind::part, call, at, size, result)) {
        if (n > 1 || !refusal) at_fault = tensor_at_fault();
        refusal = at;
        refusal_size = size;
      } else {
        u.sent[slot * frames + f] = {at, size};
      }
      at += size;
    }
  }
  if (refusal && skips_for(result.fault)) {
    skips = true;
    result.fault = DR_OK;
  } else if (refusal && n > 1) {
    // All owners must read the reason.
    const std::vector<std::byte> reason(refusal, refusal + refusal_size);
    for (size_t slot = 0; slot < n; ++slot) {
      std::byte* at = slot_at(slot) + prefix;
      for (size_t f = 0; f < frames; ++f) {
        dr_bytes& made = u.sent[slot * frames + f];
        const float one = 1;
        if (made.size)
          (void)u.frames[f].ranges[slot].restore_residual(residual_kind::own, frame_kind::part, {&made, 1}, &one);
        made = {};
      }
      for (size_t f = 0; f < frames; ++f) {
        std::memcpy(at, reason.data(), reason.size());
        at += sizes[slot * frames + f] = reason.size();
      }
    }
  }
  if (skips) {  // (u.sent stays: if the step fails, instead, what was encoded goes back)
    std::ranges::fill(sizes, 0);
    result.kept = 0;
  }
  slot_head head = head_of(u, call.step);
  head.flags = skips ? slot_head::not_finite : 0;
  head.tensor = skips ? 0 : at_fault;
  for (size_t slot = 0; slot < n; ++slot) {
    uint64_t size = prefix;
    for (size_t f = 0; f < frames; ++f) size += sizes[slot * frames + f];
    head.longest = std::max(head.longest, size);
    result.frames += size - prefix;
  }
  result.size = head.longest;
  for (size_t slot = 0; slot < n; ++slot)
    write_prefix(head, std::span(sizes).subspan(slot * frames, frames), slot_at(slot));
  return DR_OK;
}

// Reads the headers of all slots, before any frame.
dr_status sender::read_slots(unit& u, const dr_call& call, std::span<const dr_bytes> slots, bool of_sums,
                             dr_sent& result) {
  if (slots.size() != options_.ranks)
    return fail(c_.error, DR_E_ARGUMENT, "slots: %zu; the sender is one of %u ranks", slots.size(), options_.ranks);
  const slot_limits limits{of_sums ? u.sum_bounds : u.bounds, tensors_.size(), of_sums,
                           (options_.flags & DR_SENDER_SKIP) != 0};
  if (const dr_status s = read_prefixes(slots, limits, slots_, c_.error)) {
    name_rank(c_.error.frame);
    return s;
  }
  if (const dr_status s = compare(u, call)) return s;
  const uint64_t room = std::ranges::min(slots, {}, [](const dr_bytes& b) { return b.size; }).size;
  if (slots_.longest > room) {
    result.needed = slots_.longest;
    fail(c_.error, DR_E_CAPACITY, "slots: %" PRIu64 " bytes; the longest has %" PRIu64, room, slots_.longest);
    c_.error.needed = slots_.longest;
    return DR_E_CAPACITY;
  }
  (of_sums ? u.sum_room : u.room).observe(slots_.longest);
  settle();
  return DR_OK;
}

// Ranks agree on all steps before this one, as the heads of one unit show for all: nothing of them is withdrawn any more.
void sender::settle() {
  if (returned_ == 0) return;
  for (unit& u : units_) {
    u.returned.clear();
    if (u.numbers) u.numbers->forget();
  }
  returned_ = 0;
}

dr_status sender::compare(const unit& u, const dr_call& call) {
  if (const dr_status s = compare_heads(slots_.heads, {options_.numbers}, behind_, c_.error)) {
    const auto self = std::ranges::find(behind_, options_.rank);
    if (c_.error.where != UINT64_MAX && self != behind_.end()) {
      // When this step has ended its count is that of the others: the fault is reported once. Until then all units of the step
      // report it, so that none of them is merged.
      others_failures_ = slots_.heads[c_.error.what].failures;
      others_failed_ = slots_.heads[c_.error.what].failed;
      is_behind_ = true;
    }
    return s;
  }
  if (static_cast<uint32_t>(slots_.heads[0].tag) != static_cast<uint32_t>(call.step)) {
    fail(c_.error, DR_E_ARGUMENT, "slots: of step %u, and the call is of step %u",
         static_cast<uint32_t>(slots_.heads[0].tag), static_cast<uint32_t>(call.step));
    return DR_E_ARGUMENT;
  }
  if (slots_.heads[0].tag >> 32 != u.list.digest)
    return fail(c_.error, DR_E_ARGUMENT, "slots: of other tensors, or another plan, than this unit");
  return DR_OK;
}

// Checks received frames of one range: whole, sound, of this step and of these tensors. The error's frame is the position.
dr_status sender::judge(const unit& u, size_t f, size_t range, frame_kind kind, uint64_t step,
                        std::span<const dr_bytes> frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const dr_status status = u.frames[f].ranges[range].judge(kind, frames[i], tag_of(u, step), view_, c_.error);
    if (!status) continue;
    if (status == DR_E_PEER)
      fail(c_.error, status, "could not encode (%s): %s", status_name(view_.status),
           std::string(view_.message).c_str());
    c_.error.code = status;
    c_.error.frame = i;
    return status;
  }
  return DR_OK;
}

dr_status sender::sum(size_t unit, const dr_call& call, std::span<const dr_bytes> slots, void* slot, size_t capacity,
                      dr_sent& result) {
  if (const dr_status s = check_unit(unit, true, c_.error)) return s;
  if (const dr_status s = check_call(call)) return s;
  auto& u = units_[unit];
  const size_t frames = u.frames.size(), prefix = prefix_size(frames);
  if (const dr_status s = check_room(slot, capacity, unit_info(unit).sum_bound)) return s;
  if (u.numbers) return sum_numbers(u, call, slots, slot, result);
  if (u.device) return sum_device(u, call, slots, slot, result);
  if (const dr_status s = bind_tensors(u)) return s;
  slot_head head = head_of(u, call.step);
  std::vector<uint64_t> sizes(frames);
  auto* at = static_cast<std::byte*>(slot) + prefix;
  dr_status status = read_slots(u, call, slots, false, result);
  if (status == DR_E_CAPACITY) return status;
  // (All ranks find out that ranks are out of step. This one reports it in merge, after they have its sum; and that the header
  // of a slot is damaged, for then it does not know the size of the next slots, which the others have observed.)
  const bool out_of_step = status && c_.error.reason == DR_REASON_OUT_OF_STEP;
  const auto owns_nothing = [&] {
    return std::ranges::all_of(u.frames, [&](const frame& f) { return f.ranges[options_.rank].empty(); });
  };
  u.refuses = out_of_step || status == DR_E_CORRUPT;
  if (u.refuses) u.refusal = c_.error;
  if (out_of_step) {
    head.flags |= slot_head::refused;
  } else if (status && owns_nothing()) {  // no frame of its can say so
    head.flags |= slot_head::refused | static_cast<uint32_t>(c_.error.frame + 1) << slot_head::culprit_shift;
    result.fault = status;
  } else if (!status && slots_.skips) {
    head.flags |= slot_head::not_finite;
  }
  const std::vector<uint64_t> received = slots_.sizes;
  const bool idle = out_of_step || (!status && slots_.skips);
  std::vector<const std::byte*> next(slots.size());
  for (size_t i = 0; i < slots.size() && !status && !idle; ++i)
    next[i] = static_cast<const std::byte*>(slots[i].data) + prefix;
  u.summed.assign(frames, {});
  u.inputs.assign(frames * slots.size(), {});
  for (size_t f = 0; f < frames && !idle; ++f) {
    range_work& r = u.frames[f].ranges[options_.rank];
    if (r.empty()) continue;
    const std::span<dr_bytes> inputs = std::span(u.inputs).subspan(f * slots.size(), slots.size());
    dr_status s = status;
    if (!s) {
      for (size_t i = 0; i < slots.size(); ++i) {
        const uint64_t size = received[i * frames + f];
        inputs[i] = {next[i], size};
        next[i] += size;
      }
      s = judge(u, f, options_.rank, frame_kind::part, call.step, inputs);
      weights_.assign(slots.size(), weight_of(u.frames[f]));
      if (!s) s = r.sum(frame_kind::part, inputs, weights_.data());
      if (s) {
        drop_frame_number(c_.error);
        if (c_.error.frame < slots.size()) name_rank(c_.error.frame);
      }
    }
    if (s) {  // (of the inputs, or of an earlier frame: all frames that follow report the same)
      status = s;
      // (A status frame cannot have PEER: its message names the rank that could not encode.)
      sizes[f] = write_status_frame(s == DR_E_PEER ? dr_status{DR_E_ARGUMENT} : s, c_.error.message, true,
                                    tag_of(u, call.step), reinterpret_cast<uint8_t*>(at));
      result.fault = s;
      if (c_.error.frame < slots.size()) {
        head.flags |= static_cast<uint32_t>(c_.error.frame + 1) << slot_head::culprit_shift;
        head.tensor = s == DR_E_PEER ? slots_.heads[c_.error.frame].tensor : 0;
      }
    } else if (!encode_frame(u, f, options_.rank, frame_kind::sum, call, at, sizes[f], result)) {
      u.summed[f] = {at, sizes[f]};
    } else if (!head.tensor) {
      head.tensor = tensor_at_fault();
    }
    at += sizes[f];
  }
  result.size = head.longest = static_cast<uint64_t>(at - static_cast<std::byte*>(slot));
  result.frames = result.size - prefix;
  write_prefix(head, sizes, slot);
  return DR_OK;
}

dr_status sender::merge(size_t unit, const dr_call& call, std::span<const dr_bytes> slots, dr_sent& result) {
  if (const dr_status s = check_unit(unit, false, c_.error)) return s;
  if (const dr_status s = check_call(call)) return s;
  auto& u = units_[unit];
  if (u.refuses) {
    // (All ranks send the rest of slots of sums, or none does; and all observe them.)
    if (u.list.kind == DR_UNIT_OWNER && !u.device)
      if (const dr_status s = read_slots(u, call, slots, true, result); s == DR_E_CAPACITY) return s;
    c_.error = u.refusal;
    return c_.error.code;
  }
  if (u.rows) return merge_rows(u, call, slots, result);
  if (const dr_status s = check_placed(u, true)) return s;
  if (u.numbers) return merge_numbers(u, call, slots, result);
  if (u.device) return merge_device(u, call, slots, result);
  if (const dr_status s = bind_outputs(u)) return s;
  const bool of_sums = u.list.kind == DR_UNIT_OWNER;
  if (const dr_status s = read_slots(u, call, slots, of_sums, result)) return s;
  result.size = slots_.longest;
  const auto refused =
      std::ranges::find_if(slots_.heads, [](const slot_head& h) { return h.flags & slot_head::refused; });
  if (refused != slots_.heads.end()) {
    const auto rank = static_cast<size_t>(refused - slots_.heads.begin());
    fail(c_.error, DR_E_PEER, "%s",
         refused->culprit() ? "its slot is damaged, or of other tensors, where an owner without elements got it"
                            : "it found the ranks out of step");
    name_rank(refused->culprit() ? refused->culprit() - 1 : rank);
    return DR_E_PEER;
  }
  if (slots_.skips) {
    result.skips = 1;
    return DR_OK;
  }
  const size_t frames = u.frames.size(), prefix = prefix_size(frames);
  const frame_kind kind = of_sums ? frame_kind::sum : frame_kind::part;
  // A range has one frame, of its owner, or one of each rank.
  const size_t ranges = of_sums ? options_.ranks : 1, k = of_sums ? 1 : slots.size();
  frames_.assign(frames * slots.size(), {});
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    const auto* at = static_cast<const std::byte*>(slots[rank].data) + prefix;
    for (size_t f = 0; f < frames; ++f) {
      const uint64_t size = slots_.sizes[rank * frames + f];
      frames_[f * slots.size() + rank] = {at, size};
      at += size;
    }
  }
  // Calls f(frame, range, its frames) for each range that has elements.
  const auto for_each_range = [&](auto&& f) -> dr_status {
    for (size_t i = 0; i < frames; ++i)
      for (size_t j = 0; j < ranges; ++j) {
        const size_t range = of_sums ? j : u.list.kind == DR_UNIT_SCATTER ? options_.rank : 0;
        if (u.frames[i].ranges[range].empty()) continue;
        const std::span<const dr_bytes> of(frames_.data() + i * slots.size() + j, k);
        const dr_status s = f(i, range, of);
        if (!s) continue;
        drop_frame_number(c_.error);
        const size_t maker = of_sums ? j : k == 1 ? 0 : c_.error.frame;
        const uint32_t culprit = maker < slots.size() ? slots_.heads[maker].culprit() : 0;
        const plan& p = *plans_.methods[u.frames[i].tensors[0]];
        if (s != DR_E_PEER && !(p.flat && s == DR_E_CORRUPT)) name_tensor(u.frames[i], range);
        if (culprit && s == DR_E_PEER) {  // the owner's message names it
          fail(c_.error, s, "%s", std::string(view_.message).c_str());
          c_.error.frame = culprit - 1;
        } else if (maker < slots.size()) {
          name_rank(maker);
        }
        if (s == DR_E_PEER && maker < slots.size() && slots_.heads[maker].tensor - 1 < tensors_.size())
          c_.error.tensor = slots_.heads[maker].tensor - 1;
        return s;
      }
    return DR_OK;
  };
  arena memory(workspace_, workspace_size_);
  dr_status status = for_each_range([&](size_t f, size_t range, std::span<const dr_bytes> of) {
    const dr_status s = judge(u, f, range, kind, call.step, of);
    return s ? s : u.frames[f].ranges[range].decode(of, memory);
  });
  if (status) return status;
  status = for_each_range([&](size_t f, size_t range, std::span<const dr_bytes> of) {
    weights_.assign(k, of_sums ? 1.0f : weight_of(u.frames[f]));
    arena rest(workspace_ + memory.used(), workspace_size_ - memory.used());
    return u.frames[f].ranges[range].merge(of, weights_.data(), rest);
  });
  if (!status) round_outputs(u);
  return status;
}

void sender::round_outputs(const unit& u) {
  if (options_.flags & DR_SENDER_F32) return;
  for (const uint32_t i : u.list.tensors) {
    const uint64_t n = elements_out(u, i);
    const auto* const sums = static_cast<const float*>(outs_[i].values);
    if (tensors_[i].dtype != DR_F32)
      with_type(tensors_[i].dtype, [&](auto type) { round_values<decltype(type)>(sums, given_outs_[i], n); });
  }
}

}  // namespace dr
