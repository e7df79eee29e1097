#include <utility>

#include "cuda/device.hpp"
#include "cuda/fused.hpp"
#include "primitive/bits.hpp"

namespace dr {
namespace {

// CUB's launches for a sort of keys of up to 64 bits: two clears, histograms and their sums; then, for each 8 bits and
// each portion, a clear and a kernel. (A portion has 2^28 - 1 pairs, down to a multiple of a tile. Few pairs take one
// kernel.) In addition device.cu may copy keys and values.
uint32_t nodes_of(const dr_sort& s) {
  const auto portions = static_cast<uint32_t>(ceil_div(s.n, uint64_t{1} << 27));
  return 4 + 2 * 8 * portions + 2;
}

dr_status launch_alone(device_queue& q, const dr_kernel& kernel, uint32_t blocks, const void* args, bool beside) {
  if (q.loads) q.loads->load(kernel);
  if (q.where)
    if (const dr_status status = q.where->launch(q.stream, kernel, blocks, args, beside)) return status;
  ++q.launches;
  ++q.nodes;
  return DR_OK;
}

dr_status launch(void* queue, const dr_kernel* kernel, uint32_t blocks, const void* args) {
  auto& q = *static_cast<device_queue*>(queue);
  bool beside = std::exchange(q.beside, false);
  if (q.fused) {
    if (q.fused->take(*kernel, blocks, args)) return DR_OK;
    if (const dr_status status = q.fused_end()) return status;
    beside = false;  // the fused launch ahead may hold what this one needs
  }
  return launch_alone(q, *kernel, blocks, args, beside);
}

dr_status sort(void* queue, const dr_sort* s) {
  auto& q = *static_cast<device_queue*>(queue);
  if (const dr_status status = q.fused_end()) return status;
  ++q.launches;
  q.nodes += nodes_of(*s);
  if (q.loads)
    if (const dr_status status = q.loads->load_sort(*s)) return status;
  return q.where ? q.where->sort(q.stream, *s) : DR_OK;
}

}  // namespace

const char* device_queue::reason() const {
  return where ? where->reason() : loads ? loads->reason() : "too large for one launch";
}

dr_status device_queue::fused_end() {
  const fused_call* const all = std::exchange(fused, nullptr);
  return all && !all->is_empty() ? launch_alone(*this, all->whole(), 1, all->args(), false) : DR_OK;
}

dr_exec device_queue::exec(void* scratch, uint64_t scratch_size) {
  dr_exec e{};
  e.struct_size = sizeof e;
  e.scratch = scratch;
  e.scratch_size = scratch_size;
  e.stream = stream;
  e.device = this;
  e.launch = launch;
  e.sort = sort;
  return e;
}

}  // namespace dr
