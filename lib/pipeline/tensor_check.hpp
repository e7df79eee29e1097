// Checks of tensors before their memory is read.
#pragma once

#include "pipeline/batch.hpp"
#include "pipeline/decode.hpp"

namespace dr {

// An error about a tensor; `what` is the value at fault.
[[gnu::format(printf, 5, 6)]] dr_status bad_tensor(dr_error& error, uint64_t tensor, dr_status code, uint64_t what,
                                                   const char* format, ...);

// ARGUMENT, UNSUPPORTED: the shape is invalid.
dr_status read_shape(const tensor_view& t, uint64_t i, tensor_shape& out, dr_error& error);

// ARGUMENT: `values` is NULL, or not aligned to its type.
dr_status check_values(const tensor_view& t, uint64_t i, dr_error& error);

// For outputs that are written while dense tensors are still read. ARGUMENT: an output overlaps another tensor, or its
// own tensor from another address on. ranges: of the outputs (list_ranges).
dr_status check_in_place(std::span<const tensor_view> tensors, std::span<const out_range> ranges, dr_error& error);

// ARGUMENT: DR_CALL_FIT, but a tensor's plan has no feedback.
dr_status check_fit(const batch& b, dr_error& error);

}  // namespace dr
