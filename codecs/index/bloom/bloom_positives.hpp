// Positives of a filter in order, found by one worker or by all.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "codecs/index/bloom/bloom_query_kernel.hpp"
#include "deepreduce/codec.hpp"

namespace dr {

// A single large row is queried in parts of a fixed size, as many at a time as there are slots
// for a bit an element. Below 2^20 elements, 1 ms, rows are done side by side.
inline constexpr uint64_t bloom_large_universe = uint64_t{1} << 20;
inline constexpr uint64_t bloom_part_elements = 65536, bloom_worker_slots = 8;
inline constexpr uint64_t bloom_slot_words = bloom_part_elements / 64,
                          bloom_slots_size = 8 * bloom_slot_words * bloom_worker_slots;

// Calls sink(elements, n) with positives part by part, each part's ascending, until it returns false; the parts
// themselves in descending order if `backwards`. exec: to do it on all of its workers; NULL: here.
template <class Shape, class Sink>
void bloom_each_positive(const Shape& shape, const uint8_t* filter, uint64_t universe, bool backwards,
                         const dr_exec* exec, Sink&& sink) {
  const auto ask = bloom_ask_table(shape).best();
  uint32_t found[bloom_part + bloom_slack];
  // Pieces [first, end) of bloom_part elements: queries all of them.
  const auto pieces = [&](uint64_t first, uint64_t end, auto&& ask_piece) {
    const uint64_t n = ceil_div(end - first, bloom_part);
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t from = first + (backwards ? n - 1 - i : i) * bloom_part;
      const auto some = static_cast<uint32_t>(std::min<uint64_t>(bloom_part, end - from));
      if (!sink(static_cast<const uint32_t*>(found), ask_piece(from, some))) return false;
    }
    return true;
  };
  if (!exec) {
    pieces(0, universe,
           [&](uint64_t from, uint32_t some) { return ask(shape, filter, static_cast<uint32_t>(from), some, found); });
    return;
  }
  struct shared {
    decltype(ask) f;
    const Shape* shape;
    const uint8_t* filter;
    uint64_t universe, parts, begun;
    bool backwards;
    const dr_exec* exec;

    uint64_t part(uint64_t slot) const { return backwards ? parts - 1 - begun - slot : begun + slot; }
    uint64_t* bits(uint64_t slot) const {
      return reinterpret_cast<uint64_t*>(static_cast<std::byte*>(exec->scratch) +
                                         slot / bloom_worker_slots * exec->scratch_size) +
             slot % bloom_worker_slots * bloom_slot_words;
    }
  } all{ask, &shape, filter, universe, ceil_div(universe, bloom_part_elements), 0, backwards, exec};
  const auto ask_part = [](void* arg, size_t slot, size_t) {
    const shared& a = *static_cast<const shared*>(arg);
    uint64_t* const bits = a.bits(slot);
    std::memset(bits, 0, 8 * bloom_slot_words);
    uint32_t list[bloom_part + bloom_slack];
    const uint64_t first = a.part(slot) * bloom_part_elements, end = std::min(a.universe, first + bloom_part_elements);
    for (uint64_t from = first; from < end; from += bloom_part) {
      const auto some = static_cast<uint32_t>(std::min<uint64_t>(bloom_part, end - from));
      const uint32_t n = a.f(*a.shape, a.filter, static_cast<uint32_t>(from), some, list);
      for (uint32_t i = 0; i < n; ++i) bits[(list[i] - first) / 64] |= uint64_t{1} << (list[i] % 64);
    }
  };
  const uint64_t slots = exec->workers * bloom_worker_slots;
  for (; all.begun < all.parts; all.begun += slots) {
    const uint64_t n = std::min(slots, all.parts - all.begun);
    exec->parallel(exec->pool, n, ask_part, &all);
    for (uint64_t slot = 0; slot < n; ++slot) {
      const uint64_t first = all.part(slot) * bloom_part_elements;
      const bool more =
          pieces(first, std::min(universe, first + bloom_part_elements), [&](uint64_t from, uint32_t some) {
            uint32_t many = 0;
            for (uint64_t at = from; at < from + some; at += 64)
              for (uint64_t left = all.bits(slot)[(at - first) / 64]; left; left &= left - 1)
                found[many++] = static_cast<uint32_t>(at + static_cast<uint64_t>(std::countr_zero(left)));
            return many;
          });
      if (!more) return;
    }
  }
}

// The first `requested` positives, into `out` with room for `capacity`. Returns their number, at most capacity + 1 (too
// many).
template <class Shape>
uint64_t bloom_first_positives(const Shape& shape, const uint8_t* filter, uint64_t universe, const dr_exec* exec,
                               uint64_t requested, uint32_t* out, uint64_t capacity) {
  uint64_t found = 0;
  bloom_each_positive(shape, filter, universe, false, exec, [&](const uint32_t* list, uint32_t n) {
    const uint64_t some = std::min<uint64_t>(n, requested - found), fit = std::min(some, capacity - found);
    std::copy(list, list + fit, out + found);
    found += fit + (fit < some);
    return found < requested && found <= capacity;
  });
  return found;
}

// The last `requested` positives, at the end of `out`, which has room for them.
template <class Shape>
uint64_t bloom_last_positives(const Shape& shape, const uint8_t* filter, uint64_t universe, const dr_exec* exec,
                              uint64_t requested, uint32_t* out) {
  uint64_t found = 0;
  bloom_each_positive(shape, filter, universe, true, exec, [&](const uint32_t* list, uint32_t n) {
    const uint64_t some = std::min<uint64_t>(n, requested - found);
    std::copy(list + n - some, list + n, out + (requested - found - some));
    found += some;
    return found < requested;
  });
  return found;
}

}  // namespace dr
