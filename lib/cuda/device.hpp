// What the pipeline asks of a GPU, and the two that there are: CUDA's (device.cu) and one that the CPU emulates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/error.hpp"

namespace dr {

class device {
 public:
  virtual ~device() = default;

  // Stream-ordered: they enqueue, and neither allocate nor wait.
  virtual dr_status launch(void* stream, const dr_kernel& kernel, uint32_t blocks, const void* args) = 0;
  virtual dr_status sort(void* stream, const dr_sort& sort) = 0;
  virtual dr_status clear(void* stream, void* to, uint64_t size) = 0;
  virtual dr_status copy(void* stream, void* to, const void* from, uint64_t size) = 0;

  // Not in prepared calls.
  virtual dr_status wait(void* stream) = 0;
  virtual void* allocate(uint64_t size) = 0;  // aligned to 256, or nullptr
  virtual void release(void* memory) = 0;

  // Blocks of a cooperative launch that run at once.
  virtual uint32_t resident_blocks(const dr_kernel& kernel) = 0;
  // Why the last call of this thread failed.
  virtual const char* reason() const = 0;
};

// UNSUPPORTED (built without CUDA), DEVICE (no such device). Lives as long as the process.
dr_status find_device(const dr_place& place, device*& out, dr_error& error);

// A call's launches, in order on one stream; or, without a device, how many there would be.
struct device_queue {
  device* where = nullptr;
  void* stream = nullptr;
  uint32_t launches = 0;

  // For codecs and for the pipeline's own kernels alike.
  dr_exec exec(void* scratch = nullptr, uint64_t scratch_size = 0);
};

// ---- Emulation --------------------------------------------------------------------------------------------

// For tests, of this process: what the emulator is told beside its seed, and what it has seen.
struct emulator_control {
  uint32_t threads = 1;                  // that run blocks at the same time
  const char* planted_kernel = nullptr;  // leaves out one barrier of this kernel:
  uint32_t planted_phase = 0;            // the one behind this phase, from 1
  // Told of every launch.
  std::function<void(const dr_kernel&, uint32_t blocks, uint32_t phases)> seen;
};
emulator_control& emulator();

}  // namespace dr
