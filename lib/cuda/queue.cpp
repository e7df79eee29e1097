#include "cuda/device.hpp"

namespace dr {
namespace {

dr_status launch(void* queue, const dr_kernel* kernel, uint32_t blocks, const void* args) {
  auto& q = *static_cast<device_queue*>(queue);
  ++q.launches;
  if (q.loads) (void)q.loads->resident_blocks(*kernel);
  return q.where ? q.where->launch(q.stream, *kernel, blocks, args) : DR_OK;
}

dr_status sort(void* queue, const dr_sort* s) {
  auto& q = *static_cast<device_queue*>(queue);
  ++q.launches;
  if (q.loads) q.loads->load_sort();
  return q.where ? q.where->sort(q.stream, *s) : DR_OK;
}

}  // namespace

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
