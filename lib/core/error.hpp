// Errors as sentences: what, where, which value.
#pragma once

#include <cstdint>

#include "deepreduce/deepreduce.h"

namespace dr {

// Fills `error` (printf style) and returns `code`.
[[gnu::format(printf, 3, 4)]] dr_status fail(dr_error& error, dr_status code, const char* format, ...);

// The sentence of a job's fault. `tensor` is its position in the batch, `codec` who said so (may be nullptr).
dr_status fail(dr_error& error, const dr_fault& fault, uint64_t tensor, const char* codec);

// Copies what a caller's smaller or larger dr_error has room for.
void hand_over(const dr_error& from, dr_error* to);

const char* status_name(dr_status code);

}  // namespace dr
