// The kinds of feedback.
#pragma once

#include "feedback/feedback_kind.hpp"

namespace dr {

extern const feedback_kind residual_feedback, efsignsgd_feedback, dgc_feedback, momentum_feedback;

}  // namespace dr
