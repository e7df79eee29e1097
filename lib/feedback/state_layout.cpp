#include "feedback/state_layout.hpp"

#include <sys/mman.h>

#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "core/registry.hpp"

namespace dr {
namespace {

// nullptr: no kind has the number.
const feedback_kind* find_kind(uint32_t number) {
  const dr_codec* const entry = find_codec(DR_ROLE_FEEDBACK, number + 1);
  return entry ? &feedback_of(*entry) : nullptr;
}

// An error about a state; `what` is the value at fault.
[[gnu::format(printf, 3, 4)]] dr_status bad_state(dr_error& error, uint64_t what, const char* format, ...) {
  char sentence[200];
  va_list args;
  va_start(args, format);
  std::vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  fail(error, DR_E_ARGUMENT, "state: %s", sentence);
  error.what = what;
  return DR_E_ARGUMENT;
}

dr_status check_aligned(const void* state, dr_error& error) {
  const auto at = reinterpret_cast<uintptr_t>(state);
  return at % 8 ? bad_state(error, at, "not aligned to 8 bytes") : DR_OK;
}

dr_status not_a_state(const residual_state& head, dr_error& error) {
  return bad_state(error, head.magic, "not a residual of this version (a fresh state is all zeros)");
}

// The learning rate is a divisor.
dr_status check_rate(const void* state, const residual_state& head, const feedback_kind& kind, dr_error& error) {
  if (!head.magic || !kind.rate) return DR_OK;
  const double rate = rate_of(state, head.elements);
  if (rate > 0 && std::isfinite(rate)) return DR_OK;
  return bad_state(error, 0, "its learning rate is %g, which is not above 0 and finite", rate);
}

}  // namespace

const feedback_kind& kind_of(const residual_state& head) { return *find_kind(head.kind); }

dr_status check_state(const void* state, uint64_t state_size, const feedback_kind& kind, uint64_t elements,
                      bool on_device, dr_error& error) {
  const uint64_t needed = state_size_of(kind, elements);
  if (!state) return bad_state(error, 0, "NULL; a plan with feedback needs %" PRIu64 " bytes (dr_state_size)", needed);
  if (const dr_status s = check_aligned(state, error)) return s;
  residual_state head{};
  if (!on_device && state_size >= sizeof head) {  // another kind of feedback is the first reason, before the size
    std::memcpy(&head, state, sizeof head);
    if (!head.is_fresh() && !head.is_of(kind.number())) {
      const feedback_kind* const other = head.magic == residual_state::magic_value ? find_kind(head.kind) : nullptr;
      if (!other) return not_a_state(head, error);
      return bad_state(error, head.kind, "it is of feedback=%s; the plan has feedback=%s", other->entry.name,
                       kind.entry.name);
    }
  }
  if (state_size < needed)
    return bad_state(error, state_size, "%" PRIu64 " bytes given, %" PRIu64 " needed", state_size, needed);
  if (head.magic && head.elements != elements)
    return bad_state(error, head.elements, "belongs to a tensor of %" PRIu64 " elements; this one has %" PRIu64,
                     head.elements, elements);
  return check_rate(state, head, kind, error);
}

dr_status read_state(const void* state, uint64_t state_size, residual_state& head, dr_error& error) {
  if (!state) return bad_state(error, 0, "NULL");
  if (state_size < sizeof head)
    return bad_state(error, state_size, "%" PRIu64 " bytes given, at least %zu needed", state_size, sizeof head);
  if (const dr_status s = check_aligned(state, error)) return s;
  std::memcpy(&head, state, sizeof head);
  if (head.is_fresh()) return DR_OK;
  const feedback_kind* const kind = head.magic == residual_state::magic_value ? find_kind(head.kind) : nullptr;
  if (!kind) return not_a_state(head, error);
  if (head.elements > (UINT64_MAX >> 4) || state_size < state_size_of(*kind, head.elements))
    return bad_state(error, head.elements, "%" PRIu64 " bytes given, too few for its %" PRIu64 " elements", state_size,
                     head.elements);
  return check_rate(state, head, *kind, error);
}

double rate_of(const void* state, uint64_t elements) {
  double rate;
  std::memcpy(&rate, residual_of(state) + elements, sizeof rate);
  return rate;
}

void set_rate(void* state, uint64_t elements, double rate) {
  std::memcpy(residual_of(state) + elements, &rate, sizeof rate);
}

void map_fresh([[maybe_unused]] void* state, [[maybe_unused]] uint64_t size) {
#ifdef MADV_POPULATE_WRITE
  constexpr uintptr_t page = 65536;  // or a part of it
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(state) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(state) + size) / page * page;
  if (begin + 16 * page > end) return;
  residual_state head;
  std::memcpy(&head, state, sizeof head);
  // (An old kernel does not support it; then the pages fault.)
  if (head.is_fresh()) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
#endif
}

}  // namespace dr
