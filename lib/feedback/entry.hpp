// Feedback as the registry lists it.
#pragma once

#include <cstddef>

#include "deepreduce/codec.h"

namespace dr {

enum residual_param : size_t { residual_beta, residual_gamma };
enum efsignsgd_param : size_t { efsignsgd_lr };
enum dgc_memory_param : size_t { dgc_momentum, dgc_clip, dgc_masking };
enum momentum_param : size_t { momentum_beta };
extern const dr_codec residual_entry, efsignsgd_entry, dgc_memory_entry, momentum_entry;

}  // namespace dr
