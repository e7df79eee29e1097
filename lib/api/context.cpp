#include "api/context.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <system_error>

namespace dr {
namespace {

void* default_allocate(void*, size_t size, size_t alignment) {
  // Large workspaces in large pages, where the system has them: selected values are sparse, and pages of 4 KiB are many.
  constexpr size_t large_page = size_t{2} << 20;
  if (size >= 2 * large_page) alignment = large_page;
  const size_t whole = (size + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, whole);
#ifdef MADV_HUGEPAGE
  if (memory && alignment == large_page) madvise(memory, whole, MADV_HUGEPAGE);
#endif
  return memory;
}
void default_release(void*, void* memory, size_t) { std::free(memory); }

}  // namespace

context::context()
    : number([] {
        static std::atomic<uint64_t> latest = 0;
        return ++latest;
      }()) {}

context::~context() {
  drop_workspace();
  if (lost()) (void)workers.release();  // its threads are not here; waiting for them would never end
}

dr_status context::start(const dr_context_options& from, dr_error& to) {
  options = from;
  if (!options.allocate) {
    options.allocate = default_allocate;
    options.release = default_release;
  }
  try {
    workers = std::make_unique<pool>(std::max(1u, options.threads));
  } catch (const std::system_error& failure) {
    return fail(to, DR_E_MEMORY, "context: cannot start %u threads: %s", options.threads, failure.what());
  }
  return DR_OK;
}

dr_status context::fail_lost() {
  return fail(error, DR_E_ARGUMENT,
              "context: created before fork(), which copies none of its %u threads; create one in the child",
              workers->workers() - 1);
}

dr_status context::reserve(uint64_t size) {
  if (size <= workspace_.size()) return DR_OK;
  drop_workspace();
  void* const memory = size > SIZE_MAX / 4 ? nullptr : allocate(size);
  if (!memory) return fail(error, DR_E_MEMORY, "workspace: cannot allocate %" PRIu64 " bytes", size);
  workspace_ = {static_cast<std::byte*>(memory), static_cast<size_t>(size)};
  return DR_OK;
}

dr_status context::trim() {
  if (const dr_status s = on_device.trim(error)) return s;
  drop_workspace();
  const auto drop = [](auto&... lists) { ((lists = std::remove_reference_t<decltype(lists)>()), ...); };
  drop(tensors, outs, frames, rows, scratches, ranges, batches);
  return DR_OK;
}

void context::drop_workspace() {
  if (workspace_.data()) release(workspace_.data(), workspace_.size());
  workspace_ = {};
}

}  // namespace dr
