#include "feedback/entry.hpp"

#include <cfloat>

#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr dr_param params[] = {param_real("beta", "weight of the residual", 0, 1, 1),
                               param_real("gamma", "weight of the gradient", -FLT_MAX, FLT_MAX, 1)};

}  // namespace

constinit const dr_codec residual_entry =
    make_codec("residual", "error feedback: adds the residual of earlier steps (Seide et al. 2014; Stich et al. 2018)",
               1, DR_ROLE_FEEDBACK, 0, nullptr, {.dtypes = all_value_dtypes, .params = params});

}  // namespace dr
