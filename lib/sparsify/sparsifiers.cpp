#include "sparsify/sparsifiers.hpp"

#include <cfloat>
#include <span>

#include "deepreduce/codec.hpp"

namespace dr {
namespace {

constexpr double count_max = 9007199254740992.0;  // 2^53

constexpr dr_param topr_params[] = {param_real("ratio", "share of the elements that is kept (or give count)", 0, 1, 0),
                                    param_int("count", "elements that are kept", 0, count_max, 0)};
constexpr dr_param threshold_params[] = {
    {sizeof(dr_param), "value", "keeps |v| >= value, and never zeros", DR_PARAM_REAL, 1, 0, FLT_MAX, 0, nullptr},
    param_real("max_ratio", "more than this share of the elements: the tensor is sent dense", 0, 1, 1)};
constexpr dr_param random_params[] = {
    param_real("ratio", "share of the elements that is kept (or give count)", 0, 1, 0),
    param_int("count", "elements that are kept", 0, count_max, 0)};
constexpr dr_param dgc_params[] = {
    {sizeof(dr_param), "ratio", "share of the elements that is kept, to within 0.3 of it", DR_PARAM_REAL, 1, 0, 1, 0,
     nullptr},
    param_real("sample", "share of the elements that tells the threshold; at least 1024 of them", 0, 1, 0.01)};
constexpr dr_param residual_params[] = {param_real("beta", "weight of what earlier steps did not send", 0, 1, 1),
                                        param_real("gamma", "weight of the gradient", -FLT_MAX, FLT_MAX, 1)};

constexpr dr_codec entry(const char* name, const char* summary, uint32_t id, dr_role role,
                         std::span<const dr_param> params, uint32_t traits = 0) {
  return make_codec(name, summary, id, role, traits, nullptr, {.dtypes = all_value_dtypes, .params = params});
}

}  // namespace

constinit const dr_codec sparsify_none_entry =
    entry("none", "keeps what is not zero; takes rows of any width", sparsify_none, DR_ROLE_SPARSIFY, {});
constinit const dr_codec topr_entry = entry("topr", "the largest magnitudes, exactly; ties by lower index; never zeros",
                                            sparsify_topr, DR_ROLE_SPARSIFY, topr_params);
constinit const dr_codec threshold_entry = entry("threshold", "every magnitude from a threshold upward",
                                                 sparsify_threshold, DR_ROLE_SPARSIFY, threshold_params);
constinit const dr_codec random_entry =
    entry("random", "positions by chance, zeros too; the same on every rank (Random-k)", sparsify_random,
          DR_ROLE_SPARSIFY, random_params, DR_SHARED_RANDOM | DR_HOST_ONLY);
constinit const dr_codec dgc_entry =
    entry("dgc", "what reaches a threshold that a sample tells (Deep Gradient Compression)", sparsify_dgc,
          DR_ROLE_SPARSIFY, dgc_params, DR_SHARED_RANDOM | DR_HOST_ONLY);
constinit const dr_codec residual_entry =
    entry("residual", "error feedback: adds what earlier steps did not send (Seide et al. 2014; Stich et al. 2018)",
          feedback_residual, DR_ROLE_FEEDBACK, residual_params);

}  // namespace dr
