#include <cfloat>

#include "codecs/sparsifiers.hpp"
#include "sparsify/select_device.hpp"

namespace dr {
namespace {

enum param : size_t { value, max_ratio };

constexpr dr_param threshold_params[] = {
    {sizeof(dr_param), "value", "selects |v| >= value, and never zeros", DR_PARAM_REAL, 1, 0, FLT_MAX, 0, nullptr},
    param_real("max_ratio", "the tensor is sent dense if more than this share of the elements is selected", 0, 1, 1)};

selection_result keep(const keep_call& call) {
  const uint32_t low = magnitude_from(call.source.dtype, param_value(call.params, value).number);
  return keep_from(call.source, low, call.memory, call.crew);
}

uint64_t dense_above(const dr_params& params, uint64_t universe) { return share_of(params, max_ratio, universe); }

bool keeps_all(const dr_params& params) { return !(param_value(params, value).number > 0); }

void on_device(const dr_params& params, uint64_t, device_select_job& job) {
  job.kind = device_select_job::from;
  job.threshold = param_value(params, value).number;
}

}  // namespace

constinit const sparsifier threshold_sparsifier = {
    .entry = sparsifier_entry("threshold", "every magnitude from a threshold upward", 2, threshold_params),
    .keep = keep,
    .dense_above = dense_above,
    .keeps_all = keeps_all,
    .on_device = on_device};

}  // namespace dr
