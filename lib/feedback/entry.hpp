// Error feedback as the registry lists it.
#pragma once

#include <cstddef>

#include "deepreduce/codec.h"

namespace dr {

enum residual_param : size_t { residual_beta, residual_gamma };
extern const dr_codec residual_entry;

}  // namespace dr
