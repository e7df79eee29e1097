#include "codecs/sparsifiers.hpp"
#include "sparsify/select_device.hpp"

namespace dr {
namespace {

selection_result keep(const keep_call& call) {
  return keep_largest(call.source, share_target(call.params, call.universe), call.memory, call.crew);
}

void on_device(const dr_params& params, uint64_t universe, device_select_job& job) {
  job.kind = device_select_job::largest;
  job.target = share_target(params, universe);
}

}  // namespace

constinit const sparsifier topr_sparsifier = {
    .entry =
        sparsifier_entry("topr", "the largest magnitudes, exactly; ties by lower index; never zeros", 1, share_params),
    .keep = keep,
    .target = share_target,
    .check = check_share,
    .keeps_all = whole_share,
    .on_device = on_device};

}  // namespace dr
