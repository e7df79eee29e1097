// tests/cuda/place.hpp on a CUDA device, by the runtime API alone. Whatever CUDA refuses is thrown as a sentence.
#pragma once

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <deepreduce/deepreduce.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace place {

inline constexpr bool on_cuda = true;

inline void must(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  (void)cudaGetLastError();
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(e));
}
#define DR_MUST(call) ::place::must(call, #call)

// Why there is no device, "" if there is.
inline std::string absent() {
  int n = 0;
  const cudaError_t e = cudaGetDeviceCount(&n);
  (void)cudaGetLastError();
  if (e == cudaSuccess && n > 0) return "";
  return std::string("no CUDA device") + (e == cudaSuccess ? "" : std::string(" (") + cudaGetErrorString(e) + ")");
}

inline std::string describe() {
  cudaDeviceProp p{};
  int driver = 0;
  DR_MUST(cudaGetDeviceProperties(&p, 0));
  DR_MUST(cudaDriverGetVersion(&driver));
  return std::string(p.name) + ", compute capability " + std::to_string(p.major) + "." + std::to_string(p.minor) +
         ", " + std::to_string(p.multiProcessorCount) + " multiprocessors, " + std::to_string(p.l2CacheSize >> 20) +
         " MiB of L2, CUDA driver " + std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10);
}

inline void* allocate(size_t size) {
  void* memory = nullptr;
  DR_MUST(cudaMalloc(&memory, size ? size : 1));
  return memory;
}
inline void release(void* memory) { (void)cudaFree(memory); }

// They wait on both sides: streams of ours do not wait for the default stream, and a copy from pageable memory may return too early.
inline void put(void* to, const void* from, size_t size) {
  DR_MUST(cudaDeviceSynchronize());
  if (size) DR_MUST(cudaMemcpy(to, from, size, cudaMemcpyHostToDevice));
  DR_MUST(cudaDeviceSynchronize());
}
inline void get(void* to, const void* from, size_t size) {
  DR_MUST(cudaDeviceSynchronize());
  if (size) DR_MUST(cudaMemcpy(to, from, size, cudaMemcpyDeviceToHost));
}
inline void fill(void* to, uint8_t byte, size_t size) {
  DR_MUST(cudaDeviceSynchronize());
  if (size) DR_MUST(cudaMemset(to, byte, size));
  DR_MUST(cudaDeviceSynchronize());
}

// What CUDA holds against this process once all is done; "" if nothing. A kernel that stepped out of bounds is seen here.
inline std::string trouble() {
  cudaError_t e = cudaDeviceSynchronize();
  if (e == cudaSuccess) e = cudaGetLastError();
  return e == cudaSuccess ? "" : cudaGetErrorString(e);
}

// A profiler that was started with --profile-from-start off sees what is enqueued in between.
inline void start_profile() { DR_MUST(cudaProfilerStart()); }
inline void stop_profile() { DR_MUST(cudaProfilerStop()); }

// One that does not wait for the default stream, so that nobody hides behind it.
class stream {
 public:
  explicit stream(int32_t = 0) { DR_MUST(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking)); }
  ~stream() { (void)cudaStreamDestroy(handle_); }
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;

  dr_place at(uint32_t flags = 0) const { return {sizeof(dr_place), DR_PLACE_CUDA, 0, handle_, flags, 0}; }
  void wait() const { DR_MUST(cudaStreamSynchronize(handle_)); }
  cudaStream_t handle() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

// What `calls` enqueue on a stream, recorded and not run. In this mode CUDA refuses whatever allocates or waits, on every thread.
class graph {
 public:
  template <class F>
  graph(const stream& s, F&& calls) {
    DR_MUST(cudaStreamBeginCapture(s.handle(), cudaStreamCaptureModeGlobal));
    try {
      calls();
    } catch (...) {
      (void)cudaStreamEndCapture(s.handle(), &graph_);
      (void)cudaGetLastError();
      if (graph_) (void)cudaGraphDestroy(graph_);
      throw;
    }
    DR_MUST(cudaStreamEndCapture(s.handle(), &graph_));
    DR_MUST(cudaGraphInstantiate(&ready_, graph_, 0));
    DR_MUST(cudaGraphUpload(ready_, s.handle()));
    s.wait();
  }
  ~graph() {
    if (ready_) (void)cudaGraphExecDestroy(ready_);
    if (graph_) (void)cudaGraphDestroy(graph_);
  }
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;

  void launch(const stream& s) const { DR_MUST(cudaGraphLaunch(ready_, s.handle())); }
  // Kernels in it. Copies and the like count, too: each is a launch.
  size_t kernels() const {
    size_t n = 0;
    DR_MUST(cudaGraphGetNodes(graph_, nullptr, &n));
    return n;
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

// Time on a stream between two marks.
class stopwatch {
 public:
  stopwatch() {
    DR_MUST(cudaEventCreate(&begin_));
    DR_MUST(cudaEventCreate(&end_));
  }
  ~stopwatch() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;

  void start(const stream& s) { DR_MUST(cudaEventRecord(begin_, s.handle())); }
  void stop(const stream& s) { DR_MUST(cudaEventRecord(end_, s.handle())); }
  // Waits for the second.
  double microseconds() const {
    float ms = 0;
    DR_MUST(cudaEventSynchronize(end_));
    DR_MUST(cudaEventElapsedTime(&ms, begin_, end_));
    return 1e3 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace place
