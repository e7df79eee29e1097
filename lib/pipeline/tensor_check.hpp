// The checks of tensors before their memory is read.
#pragma once

#include "pipeline/batch.hpp"

namespace dr {

// An error about a tensor; `what` is the value at fault.
[[gnu::format(printf, 5, 6)]] dr_status bad_tensor(dr_error& error, uint64_t tensor, dr_status code, uint64_t what,
                                                   const char* format, ...);

// ARGUMENT, UNSUPPORTED: no tensor has such a shape.
dr_status read_shape(const tensor_view& t, uint64_t i, tensor_shape& out, dr_error& error);

// ARGUMENT: DR_CALL_FIT, but a tensor's plan has no feedback.
dr_status check_fit(const batch& b, dr_error& error);

}  // namespace dr
