// The pipeline's interface of a GPU, and its two implementations: CUDA (device.cu) and an emulator on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "core/error.hpp"

namespace dr {

class device {
 public:
  virtual ~device() = default;

  // Stream-ordered: these functions enqueue, and neither allocate nor wait.
  // beside: the kernel needs nothing that the launch before it writes, nor one beside which that stands, so all of them may
  // run side by side (codec.h, DR_KERNEL_WAITS).
  virtual dr_status launch(void* stream, const dr_kernel& kernel, uint32_t blocks, const void* args, bool beside) = 0;
  virtual dr_status sort(void* stream, const dr_sort& sort) = 0;
  virtual dr_status clear(void* stream, void* to, uint64_t size) = 0;
  virtual dr_status copy(void* stream, void* to, const void* from, uint64_t size) = 0;
  // An event is the point of a stream where it was last recorded; before the first record it is complete. To wait for
  // it touches no other stream: the recorded one may be destroyed by then, or its handle may belong to another stream.
  virtual dr_status record(void* event, void* stream) = 0;
  virtual dr_status follow(void* stream, void* event) = 0;  // later work on the stream waits for the event

  // Not used in prepared calls.
  virtual dr_status wait(void* stream) = 0;
  virtual dr_status wait_event(void* event) = 0;
  virtual void* make_event() = 0;  // or nullptr
  virtual void drop_event(void* event) = 0;
  virtual void* allocate(uint64_t size) = 0;  // aligned to 256, or nullptr
  virtual void release(void* memory) = 0;
  // Memory of the host to which `copy` is asynchronous; or nullptr.
  virtual void* allocate_host(uint64_t size) = 0;
  virtual void release_host(void* memory) = 0;
  // Whether wait_event would return at once. Enqueues nothing, and does not wait.
  virtual bool is_done(void* event) = 0;

  // Loads the kernel, because a capture must not.
  virtual void load(const dr_kernel& kernel) = 0;
  virtual uint32_t processors() const = 0;
  // Loads the kernels of `sort`, and asks whether such a sort fits its temp; UNSUPPORTED if not.
  virtual dr_status load_sort(const dr_sort& sort) = 0;
  // Why the last call of this thread failed.
  virtual const char* reason() const = 0;
};

// UNSUPPORTED (built without CUDA), DEVICE (no such device). The device exists until the process ends.
extern const bool built_with_cuda;
dr_status find_device(const dr_place& place, device*& out, dr_error& error);

// The error of CUDA's runtime that found no device, with its reason `why`. Versions as CUDA counts them: 13.0 is 13000;
// without a driver 0.
dr_status fail_without_device(int runtime, int driver, const char* why, dr_error& error);
// Whether a driver runs what was built with this runtime. Versions as above.
bool is_driver_of(int runtime, int driver);

class fused_call;

// A call's launches, in order on one stream. Without a device it counts them (and loads their kernels on `loads`,
// because a capture must not load).
struct device_queue {
  device* where = nullptr;
  device* loads = nullptr;
  void* stream = nullptr;
  uint32_t launches = 0;  // a sort is one
  bool beside = false;    // of the next launch, if it may run beside the one before it
  uint32_t nodes = 0;     // bound of the kernels, clears and copies: the nodes of a CUDA graph
  // Not NULL: launches are one as far as it takes them. Launched before the first that it does not take, or by fused_end.
  fused_call* fused = nullptr;

  // Why the last launch or sort failed.
  const char* reason() const;
  // For codecs and for the pipeline's own kernels alike.
  dr_exec exec(void* scratch = nullptr, uint64_t scratch_size = 0);
  dr_status fused_end();
};

// ---- Emulation --------------------------------------------------------------------------------------------

// The next action of a kernel after a phase: another phase; uniform code that reads the output of phases (get, once);
// or a barrier of its own (a collective, the end).
enum class phase_then { phase, uniform, barrier };

// For tests, per process: settings of the emulator beside its seed, and its counters.
struct emulator_control {
  uint32_t threads = 1;  // run blocks concurrently
  uint32_t strands = 0;  // control flows that share the lanes of a block (cuda/strands.hpp); 0: a loop
  // Launches are seen and not run, and memory is not touched: it may be any address.
  bool only_counts = false;
  // Not 0: strands run in another order after every barrier, and blocks that run concurrently begin late.
  uint64_t jitter = 0;
  // Launches that may run beside the one before them run before it, the last one first.
  bool swaps = false;
  // The kernel of which launches fail.
  const char* refused_kernel = nullptr;
  // Bytes of temp that a sort asks for, in place of dr_sort_temp.
  std::function<uint64_t(uint64_t n)> sort_temp = {};
  // Strands omit the barrier after this phase of this kernel, as if it were missing.
  const char* planted_kernel = nullptr;
  const char* planted_file = nullptr;
  unsigned planted_line = 0;
  // Events are not done until something waits for them: as on a GPU that has not come so far.
  bool lags = false;
  // Called for every access to a stream, with its event if there is one.
  std::function<void(const char* what, void* stream, void* event)> stream_seen;
  // Called for every launch; by strands, for every phase.
  std::function<void(const dr_kernel&, uint32_t blocks)> seen;
  std::function<void(const dr_kernel&, const char* file, unsigned line, phase_then)> phase_seen;
};
emulator_control& emulator();

}  // namespace dr
