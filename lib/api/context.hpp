// The state that the calls of a context share: threads, memory, the last error.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "api/batch_cache.hpp"
#include "api/device_memory.hpp"
#include "core/pool.hpp"
#include "pipeline/decode.hpp"

namespace dr {

struct context {
  dr_context_options options{};
  std::unique_ptr<pool> workers;
  pool serial{1};
  dr_error error = no_error();
  std::atomic<bool> in_use = false;  // by a call
  const uint64_t number;             // unique among the contexts of the process, from 1
  device_memory on_device;
  // Of the call under way. They keep their room, so that steady state allocates nothing.
  tensor_list tensors;
  std::vector<tensor_out> outs;
  std::vector<frame_view> frames;
  std::vector<decoded_row> rows;
  std::vector<merge_scratch> scratches;
  std::vector<out_range> ranges;
  batch_cache batches;

  context();
  ~context();
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  // Starts the threads. MEMORY.
  dr_status start(const dr_context_options& from, dr_error& to);
  // In a forked child: the context has threads, and they stayed behind.
  bool lost() const { return workers && workers->lost(); }
  dr_status fail_lost();

  // A batch has scratch for the workers that it was prepared for.
  pool& workers_for(const batch& b) { return workers->workers() <= b.workers ? *workers : serial; }
  batch_request request_for(std::shared_ptr<const plan> method, uint64_t segment_rows) const {
    return {std::move(method), segment_rows, workers->workers()};
  }

  // Host memory of the caller's allocator, aligned for an arena; or nullptr.
  void* allocate(size_t size) { return options.allocate(options.user, size, arena::alignment); }
  void release(void* memory, size_t size) { options.release(options.user, memory, size); }
  // Host workspace of at least so many bytes. It grows and stays. MEMORY.
  dr_status reserve(uint64_t size);
  std::span<std::byte> workspace() const { return workspace_; }
  // Frees the memory that is cached for the next call.
  dr_status trim();

 private:
  void drop_workspace();

  std::span<std::byte> workspace_;
};

}  // namespace dr
