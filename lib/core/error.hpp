// Errors as sentences: the object, the position, the value.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deepreduce/deepreduce.h"

namespace dr {

// The value before anything fails. The size is that of version 1's first header: callers copy what dr_last_error returns,
// size and all, into a dr_error that may have no more.
constexpr dr_error no_error() {
  return {offsetof(dr_error, reason), DR_OK, DR_STREAM_NONE, DR_NO_TENSOR, 0, 0, DR_NO_FRAME, 0, {}, DR_REASON_NONE, 0};
}

// Fills `error` (printf style) and returns `code`.
[[gnu::format(printf, 3, 4)]] dr_status fail(dr_error& error, dr_status code, const char* format, ...);

// The sentence of a job's fault. `tensor` is its position in the batch, `codec` the codec that reported it (may be
// nullptr).
dr_status fail(dr_error& error, const dr_fault& fault, uint64_t tensor, const char* codec);

// CAPACITY: too small; ARGUMENT: NULL with a size. Both say what is needed.
dr_status check_workspace(const void* workspace, uint64_t size, uint64_t needed, dr_error& error);

// Puts words before an error's sentence, and leaves its fields; returns its code.
[[gnu::format(printf, 2, 3)]] dr_status prefix(dr_error& error, const char* format, ...);

// What follows "tensor N" or "output N" at the beginning of a sentence; nullptr: it does not begin so.
const char* after_tensor(const char* sentence);

// Replaces control characters (of UTF-8: C0, DEL and C1) by '?': words of another machine go to terminals and logs.
void hide_controls(char* text, size_t n);

// Copies as many fields as the caller's dr_error has; none if its struct_size is not set.
void hand_over(const dr_error& from, dr_error* to);

const char* status_name(dr_status code);

}  // namespace dr
