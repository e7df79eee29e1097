#include "codecs/sparsifiers.hpp"
#include "sparsify/select_device.hpp"

namespace dr {
namespace {

selection_result keep(const keep_call& call) { return keep_from(call.source, 1, call.memory, call.crew); }
bool keeps_all(const dr_params&) { return true; }
void on_device(const dr_params&, uint64_t, device_select_job& job) { job.kind = device_select_job::nonzero; }

}  // namespace

constinit const sparsifier none_sparsifier = {
    .entry = sparsifier_entry("none", "selects all nonzeros; accepts rows of any width", default_sparsifier, {}),
    .keep = keep,
    .keeps_all = keeps_all,
    .on_device = on_device,
    .passes_on = true};

}  // namespace dr
