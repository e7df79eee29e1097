// What is asked of tensors before anything is read of them.
#pragma once

#include "pipeline/batch.hpp"

namespace dr {

// A refusal of a tensor; `what` is the number that it is about.
[[gnu::format(printf, 5, 6)]] dr_status bad_tensor(dr_error& error, uint64_t tensor, dr_status code, uint64_t what,
                                                   const char* format, ...);

// ARGUMENT, UNSUPPORTED: no tensor has such a shape.
dr_status read_shape(const tensor_view& t, uint64_t i, tensor_shape& out, dr_error& error);

// ARGUMENT: a tensor has no feedback to which DR_CALL_FIT could leave what does not fit.
dr_status check_fit(const batch& b, dr_error& error);

}  // namespace dr
