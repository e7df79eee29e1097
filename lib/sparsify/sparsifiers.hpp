// Sparsifiers and feedback as the registry lists them. Their work is select.hpp's and feedback's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deepreduce/codec.h"

namespace dr {

enum sparsifier_id : uint32_t {
  sparsify_none = 0,
  sparsify_topr = 1,
  sparsify_threshold = 2,
  sparsify_random = 3,
  sparsify_dgc = 4
};
enum topr_param : size_t { topr_ratio, topr_count };
enum threshold_param : size_t { threshold_value, threshold_max_ratio };
enum random_param : size_t { random_ratio, random_count };
enum dgc_param : size_t { dgc_ratio, dgc_share };
enum feedback_id : uint32_t { feedback_none = 0, feedback_residual = 1 };
enum residual_param : size_t { residual_beta, residual_gamma };

extern const dr_codec sparsify_none_entry, topr_entry, threshold_entry, random_entry, dgc_entry, residual_entry;

}  // namespace dr
