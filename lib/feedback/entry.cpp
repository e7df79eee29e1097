#include "feedback/entry.hpp"

#include <cfloat>

#include "deepreduce/codec.hpp"
#include "feedback/feedback_kernel.hpp"

namespace dr {
namespace {

constexpr dr_param residual_params[] = {param_real("beta", "weight of the residual", 0, 1, 1),
                                        param_real("gamma", "weight of the gradient", -FLT_MAX, FLT_MAX, 1)};
constexpr dr_param efsignsgd_params[] = {
    param_real("lr", "learning rate of this step: the residual is scaled by that of the step before over it", FLT_MIN,
               FLT_MAX, 0.1)};
constexpr dr_param dgc_params[] = {
    param_real("momentum", "of the velocity u", 0, 1, 0.9),
    param_real("clip", "the L2 norm that the gradient of a call is clipped to; 0: not clipped", 0, FLT_MAX, 0),
    param_choice("masking", "whether u becomes 0 where an element was sent", "off|on", 1)};
constexpr dr_param momentum_params[] = {
    param_real("beta", "weight of the momentum; of the gradient 1 - beta", 0, 1, 0.9)};

// The id of a kind, which is in states, is one less than its codec's.
constexpr dr_codec feedback_entry(const char* name, const char* summary, feedback_kind kind,
                                  std::span<const dr_param> params, uint32_t traits) {
  return make_codec(name, summary, static_cast<uint32_t>(kind) + 1, DR_ROLE_FEEDBACK, traits, nullptr,
                    {.dtypes = all_value_dtypes, .params = params});
}

}  // namespace

constinit const dr_codec residual_entry = feedback_entry(
    "residual", "error feedback: adds the residual of earlier steps (Seide et al. 2014; Stich et al. 2018)",
    feedback_kind::residual, residual_params, 0);
constinit const dr_codec efsignsgd_entry =
    feedback_entry("efsignsgd",
                   "error feedback in units of the update, lr times the gradient (Karimireddy et al. 2019; "
                   "Zheng et al. 2019)",
                   feedback_kind::efsignsgd, efsignsgd_params, DR_HOST_ONLY);
constinit const dr_codec dgc_memory_entry = feedback_entry(
    "dgc", "momentum correction and momentum factor masking of Deep Gradient Compression (Lin et al. 2017)",
    feedback_kind::dgc, dgc_params, DR_HOST_ONLY);
constinit const dr_codec momentum_entry =
    feedback_entry("momentum", "sends the momentum in place of the gradient, as Signum does (Bernstein et al. 2018)",
                   feedback_kind::momentum, momentum_params, DR_HOST_ONLY);

}  // namespace dr
