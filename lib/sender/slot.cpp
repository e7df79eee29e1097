#include "sender/slot.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <string>

#include "primitive/rng.hpp"
#include "primitive/value_type.hpp"

namespace dr {
namespace {

// The part of a head that is sent among numbers.
struct summed_head {
  uint64_t tag;
  uint32_t failures, failed, tensor, check;
};
static_assert(sizeof(summed_head) == 24);

uint32_t check_of(const summed_head& h) {
  const uint64_t failed = uint64_t{h.failures} << 32 | h.failed;
  return static_cast<uint32_t>(combine(combine(h.tag, failed), h.tensor) >> 32);
}

// A digit: an integer of half the bytes of a number, which the type holds exactly.
template <class Type>
using digit = std::conditional_t<sizeof(typename Type::bits) == 4, uint16_t, uint8_t>;
template <class Type>
constexpr size_t digits = sizeof(summed_head) / sizeof(digit<Type>);
static_assert(summed_head_size == 2 * sizeof(summed_head));

dr_status fail_of_rank(dr_error& error, size_t rank) {
  error.frame = rank;
  return error.code;
}

// Checks the fields of an undamaged head.
dr_status check_head(const slot_head& head, const slot_limits& limits, size_t ranks, uint64_t size, dr_error& error) {
  uint64_t max_size = prefix_size(limits.bounds.size() + limits.more_words);
  for (const uint64_t bound : limits.bounds) max_size += bound;
  if (head.longest < size || head.longest > max_size)
    return fail(error, DR_E_CORRUPT, "a slot of %" PRIu64 " bytes, its longest has %" PRIu64 ", any at most %" PRIu64,
                size, head.longest, max_size);
  const uint32_t low = head.flags & ((1u << slot_head::culprit_shift) - 1);
  if (low & ~(slot_head::not_finite | slot_head::refused) || head.reserved)
    return fail(error, DR_E_UNSUPPORTED, "its slot has flags 0x%x, reserved 0x%x: of a newer version", head.flags,
                head.reserved);
  if (!limits.of_sums && head.flags & ~slot_head::not_finite)
    return fail(error, DR_E_CORRUPT, "its slot has flags 0x%x, which are of a sum", head.flags);
  if (head.culprit() > ranks)
    return fail(error, DR_E_CORRUPT, "its slot has flags 0x%x: there is no rank %u among %zu", head.flags,
                head.culprit() - 1, ranks);
  if (head.tensor > limits.tensors)
    return fail(error, DR_E_CORRUPT, "its slot says that tensor %u is at fault, of %zu", head.tensor - 1,
                limits.tensors);
  if (head.flags & slot_head::not_finite && !limits.may_skip)
    return fail(error, DR_E_ARGUMENT, "asks to skip the step (flags 0x%x), which this sender does not", head.flags);
  return DR_OK;
}

std::string list_names(std::span<const uint32_t> ranks, const rank_names& names) {
  std::string out;
  for (const uint32_t rank : ranks) out += (out.empty() ? "" : ", ") + std::to_string(names[rank]);
  return out;
}

}  // namespace

void write_prefix(slot_head head, std::span<const uint64_t> sizes, void* slot) {
  auto* const at = static_cast<char*>(slot);
  std::memcpy(at + sizeof head, sizes.data(), sizes.size_bytes());
  head.check = check_of(head, at + sizeof head, sizes.size());
  std::memcpy(at, &head, sizeof head);
}

dr_status read_prefixes(std::span<const dr_bytes> slots, const slot_limits& limits, slot_list& out, dr_error& error) {
  const auto& bounds = limits.bounds;
  const size_t frames = bounds.size(), prefix = prefix_size(frames + limits.more_words);
  out.heads.resize(slots.size());
  out.sizes.resize(slots.size() * frames);
  out.longest = 0;
  out.skips = false;
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    slot_head& head = out.heads[rank];
    uint64_t* const sizes = out.sizes.data() + rank * frames;
    if (!slots[rank].data || slots[rank].size < prefix) {
      if (slots[rank].data)
        fail(error, DR_E_ARGUMENT, "slots: %zu bytes; a slot of this unit has %zu or more", slots[rank].size, prefix);
      else
        fail(error, DR_E_ARGUMENT, "slots: data is NULL");
      return fail_of_rank(error, rank);
    }
    std::memcpy(&head, slots[rank].data, sizeof head);
    if (frames) std::memcpy(sizes, static_cast<const char*>(slots[rank].data) + sizeof head, frames * sizeof *sizes);
    const auto* const words = static_cast<const char*>(slots[rank].data) + sizeof head;
    if (head.check != check_of(head, words, frames + limits.more_words)) {
      fail(error, DR_E_CORRUPT, "the header of its slot is damaged");
      return fail_of_rank(error, rank);
    }
    uint64_t size = prefix;
    for (size_t i = 0; i < frames; ++i) {
      size += sizes[i];
      if (sizes[i] <= bounds[i]) continue;
      fail(error, DR_E_CORRUPT, "a frame of %" PRIu64 " bytes, more than the %" PRIu64 " of any", sizes[i], bounds[i]);
      return fail_of_rank(error, rank);
    }
    if (check_head(head, limits, slots.size(), size, error)) return fail_of_rank(error, rank);
    out.longest = std::max(out.longest, head.longest);
    out.skips |= (head.flags & slot_head::not_finite) != 0;
  }
  return DR_OK;
}

void write_summed_head(const slot_head& head, dr_dtype type, size_t ranks, size_t rank, void* at) {
  summed_head h{head.tag, head.failures, head.failed, head.tensor, 0};
  h.check = check_of(h);
  std::memset(at, 0, summed_heads_size(ranks));
  with_type(type, [&](auto t) {
    using type_of = decltype(t);
    auto* const to = static_cast<typename type_of::bits*>(at) + rank * digits<type_of>;
    digit<type_of> from[digits<type_of>];
    std::memcpy(from, &h, sizeof h);
    for (size_t i = 0; i < digits<type_of>; ++i) to[i] = type_of::from_f32(from[i]);
  });
}

dr_status read_summed_heads(dr_dtype type, size_t ranks, const void* at, std::vector<slot_head>& out, dr_error& error) {
  out.assign(ranks, {});
  for (size_t rank = 0; rank < ranks; ++rank) {
    summed_head h;
    const bool whole = with_type(type, [&](auto t) {
      using type_of = decltype(t);
      const auto* const from = static_cast<const typename type_of::bits*>(at) + rank * digits<type_of>;
      digit<type_of> to[digits<type_of>];
      bool sound = true;
      for (size_t i = 0; i < digits<type_of>; ++i) {
        const float number = type_of::to_f32(from[i]);
        const bool is_digit = number >= 0 && number <= static_cast<float>(digit<type_of>(-1));
        to[i] = is_digit ? static_cast<digit<type_of>>(number) : digit<type_of>{0};
        sound &= is_digit && static_cast<float>(to[i]) == number;
      }
      std::memcpy(&h, to, sizeof h);
      return sound;
    });
    if (!whole || h.check != check_of(h)) {
      fail(error, DR_E_CORRUPT, "its head among the sums is damaged");
      return fail_of_rank(error, rank);
    }
    slot_head& head = out[rank];
    head.tag = h.tag;
    head.failures = h.failures;
    head.failed = h.failed;
    head.tensor = h.tensor;
  }
  return DR_OK;
}

dr_status compare_heads(std::span<const slot_head> heads, const rank_names& names, std::vector<uint32_t>& behind,
                        dr_error& error) {
  behind.clear();
  const auto unit_of = [](const slot_head& h) { return h.tag >> 32; };
  const auto step_of = [](const slot_head& h) { return static_cast<uint32_t>(h.tag); };
  for (uint32_t rank = 1; rank < heads.size(); ++rank)
    if (unit_of(heads[rank]) != unit_of(heads[0])) {
      fail(error, DR_E_ARGUMENT,
           "rank %u sends other tensors, or by another plan, than rank %u at this point: the ranks created different "
           "exchanges, or call them in another order",
           names[rank], names[0]);
      return fail_of_rank(error, rank);
    }
  // The ranks that are behind: a number that should be equal on all ranks is not.
  const auto find_behind = [&](auto&& is_behind) {
    for (uint32_t rank = 0; rank < heads.size(); ++rank)
      if (is_behind(heads[rank])) behind.push_back(rank);
  };
  const auto [first_step, last_step] = std::ranges::minmax(heads, {}, step_of);
  if (step_of(first_step) != step_of(last_step)) {
    const uint32_t last = step_of(last_step);
    find_behind([&](const slot_head& h) { return step_of(h) < last; });
    const auto source = static_cast<size_t>(std::ranges::find(heads, last, step_of) - heads.begin());
    fail(error, DR_E_ARGUMENT, "rank %u is at step %u%s, rank %u at step %u: load states of one step on all ranks",
         names[behind[0]], step_of(heads[behind[0]]),
         behind.size() > 1 ? (" (and others: " + list_names(behind, names) + ")").c_str() : "", names[source], last);
    error.where = UINT64_MAX;
    error.what = source;
  } else {
    const auto failures_of = [](const slot_head& h) { return h.failures; };
    const auto [fewest, largest] = std::ranges::minmax(heads, {}, failures_of);
    const uint32_t usual = fewest.failures;
    if (largest.failures == usual) return DR_OK;
    find_behind([&](const slot_head& h) { return h.failures > usual; });
    const auto source = static_cast<size_t>(std::ranges::find(heads, usual, failures_of) - heads.begin());
    const bool many = behind.size() > 1;
    fail(error, DR_E_ARGUMENT,
         "%s %s %s behind: %s did not complete step %u, which rank %u completed; copy parameters and the optimizer's "
         "state "
         "from rank %u to %s before you go on",
         many ? "ranks" : "rank", list_names(behind, names).c_str(), many ? "are" : "is", many ? "they" : "it",
         heads[behind[0]].failed, names[source], names[source], many ? "them" : "it");
    error.where = heads[behind[0]].failed;
    error.what = source;
  }
  error.reason = DR_REASON_OUT_OF_STEP;
  return fail_of_rank(error, behind[0]);
}

void slot_room::observe(uint64_t longest) {
  if (fixed_) return;
  const auto now = static_cast<double>(longest);
  if (level_ > 0 && longest > size_)
    margin_ = std::min(std::max(2 * margin_, 1.25 * (now / level_ - 1)), margin_max);
  else
    margin_ = std::max(margin_ * (1 - 1.0 / 64), margin_min);
  level_ = std::max(now, std::min(level_ - (level_ - now) / 8, now * (1 + margin_max)));
  size_ = std::min(round_slot(static_cast<uint64_t>(level_ * (1 + margin_))), bound_);
}

}  // namespace dr
