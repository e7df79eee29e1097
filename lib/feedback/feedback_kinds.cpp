#include "feedback/feedback_kinds.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <span>

namespace dr {
namespace {

enum residual_param : size_t { residual_beta, residual_gamma };
constexpr dr_param residual_params[] = {param_real("beta", "weight of the residual", 0, 1, 1),
                                        param_real("gamma", "weight of the gradient", -FLT_MAX, FLT_MAX, 1)};

enum efsignsgd_param : size_t { efsignsgd_lr };
constexpr dr_param efsignsgd_params[] = {
    param_real("lr", "learning rate of this step: the residual is scaled by that of the step before over it", FLT_MIN,
               FLT_MAX, 0.1)};

enum dgc_param : size_t { dgc_momentum, dgc_clip, dgc_masking };
constexpr dr_param dgc_params[] = {
    param_real("momentum", "of the velocity u", 0, 1, 0.9),
    param_real("clip", "the L2 norm that the gradient of a call is clipped to; 0: not clipped", 0, FLT_MAX, 0),
    param_choice("masking", "whether u becomes 0 where an element was sent", "off|on", 1)};

enum momentum_param : size_t { momentum_beta };
constexpr dr_param momentum_params[] = {
    param_real("beta", "weight of the momentum; of the gradient 1 - beta", 0, 1, 0.9)};

double number(const dr_params& params, size_t i) { return param_value(params, i).number; }

feedback_weights residual_weights(const dr_params& p, const feedback_step&) {
  return {static_cast<float>(number(p, residual_beta)), static_cast<float>(number(p, residual_gamma))};
}

// A fresh state has nothing to scale. (A residual of 0 stays 0 with any ratio of rates.)
feedback_weights efsignsgd_weights(const dr_params& p, const feedback_step& step) {
  if (!(step.last_rate > 0)) return {1, 1};
  return {static_cast<float>(std::min<double>(step.last_rate / number(p, efsignsgd_lr), FLT_MAX)), 1};
}

// (If the norm is not finite, a value is not; its position is reported.)
feedback_weights dgc_weights(const dr_params& p, const feedback_step& step) {
  const double clip = number(p, dgc_clip);
  const bool clips = clip > 0 && step.norm > clip && std::isfinite(step.norm);
  return {static_cast<float>(number(p, dgc_momentum)), clips ? static_cast<float>(clip / step.norm) : 1};
}

feedback_weights momentum_weights(const dr_params& p, const feedback_step&) {
  const double beta = number(p, momentum_beta);
  return {static_cast<float>(beta), static_cast<float>(1 - beta)};
}

constexpr dr_codec feedback_entry(const char* name, const char* summary, uint32_t id, std::span<const dr_param> params,
                                  uint32_t traits = 0) {
  return make_codec(name, summary, id, DR_ROLE_FEEDBACK, traits, nullptr,
                    {.dtypes = all_value_dtypes, .params = params});
}

}  // namespace

constinit const feedback_kind residual_feedback = {
    .entry = feedback_entry("residual",
                            "error feedback: adds the residual of earlier steps (Seide et al. 2014; Stich et al. 2018)",
                            1, residual_params),
    .keeps_residual = true,
    .weights = residual_weights,
    .whole_param = "beta",  // a residual of 0 has no weight; the gradient has the one of the tensors beside it
    .weight_param = "gamma",
    .plain = true};

constinit const feedback_kind efsignsgd_feedback = {
    .entry = feedback_entry("efsignsgd",
                            "error feedback in units of the update, lr times the gradient (Karimireddy et al. 2019; "
                            "Zheng et al. 2019)",
                            2, efsignsgd_params, DR_HOST_ONLY),
    .keeps_residual = true,
    .weights = efsignsgd_weights,
    .rate = [](const dr_params& p) { return number(p, efsignsgd_lr); }};

// The residual is v, the velocity that was not sent; the momentum is u.
constinit const feedback_kind dgc_feedback = {
    .entry = feedback_entry(
        "dgc", "momentum correction and momentum factor masking of Deep Gradient Compression (Lin et al. 2017)", 3,
        dgc_params, DR_HOST_ONLY),
    .keeps_residual = true,
    .keeps_momentum = true,
    .weights = dgc_weights,
    .clip = [](const dr_params& p) { return number(p, dgc_clip); },
    .masks = [](const dr_params& p) { return number(p, dgc_masking) != 0; },
    .whole_param = "masking",
    .whole_value = "off"};

constinit const feedback_kind momentum_feedback = {
    .entry = feedback_entry("momentum",
                            "sends the momentum in place of the gradient, as Signum does (Bernstein et al. 2018)", 4,
                            momentum_params, DR_HOST_ONLY),
    .keeps_momentum = true,
    .weights = momentum_weights};

const char* plain_feedback() { return residual_feedback.entry.name; }

}  // namespace dr
