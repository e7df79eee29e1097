// CUDA behind cuda/device.hpp. Runtime API only, linked statically, so the library loads where there is no driver.
#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cub/device/device_radix_sort.cuh>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/device.hpp"

namespace dr {
namespace {

thread_local cudaError_t last = cudaSuccess;
thread_local const char* why = nullptr;  // of a failure that is not CUDA's

dr_status status(cudaError_t e) {
  if (e == cudaSuccess) return DR_OK;
  last = e;
  why = nullptr;
  (void)cudaGetLastError();  // cleared, so that no other library reads it
  return e == cudaErrorMemoryAllocation ? DR_E_MEMORY : DR_E_DEVICE;
}

// f calls CUDA on this device. The caller's current device is restored afterwards.
template <class F>
dr_status on_device(int number, F&& f) {
  int before = number;
  cudaError_t e = cudaGetDevice(&before);
  const bool changes = e == cudaSuccess && before != number;
  if (changes) e = cudaSetDevice(number);
  if (e == cudaSuccess) e = f();
  if (changes) (void)cudaSetDevice(before);
  return status(e);
}

// Whether it may be launched while the kernel before it runs. (A plug-in's may be of an older interface.)
bool waits_itself(const dr_kernel& kernel) {
  return kernel.struct_size >= offsetof(dr_kernel, flags) + sizeof kernel.flags && kernel.flags & DR_KERNEL_WAITS;
}

class cuda_device final : public device {
 public:
  cuda_device(int number, int processors, int major)
      : number_(number), processors_(processors), starts_early_(major >= 9) {}

  dr_status launch(void* stream, const dr_kernel& kernel, uint32_t blocks, const void* args, bool beside) override {
    if (!kernel.device) return DR_E_UNSUPPORTED;
    const bool early = starts_early_ && waits_itself(kernel);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(kernel.lanes);
    config.stream = static_cast<cudaStream_t>(stream);
    cudaLaunchAttribute how{};
    if (kernel.grid_phases > 1) {
      how.id = cudaLaunchAttributeCooperative;
      how.val.cooperative = 1;
    } else {
      how.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      how.val.programmaticStreamSerializationAllowed = 1;
    }
    config.attrs = &how;
    config.numAttrs = kernel.grid_phases > 1 || early ? 1 : 0;
    uint32_t second = early && beside;  // (of a kernel that has one)
    void* arguments[] = {const_cast<void*>(args), &second};
    return here([&] { return cudaLaunchKernelExC(&config, kernel.device(), arguments); });
  }

  dr_status sort(void* stream, const dr_sort& s) override {
    if (s.n > 0x7fffffff) return DR_E_UNSUPPORTED;
    cub::DoubleBuffer<uint64_t> keys(s.keys, s.other_keys);
    cub::DoubleBuffer<uint32_t> values(s.values, s.other_values);
    size_t temp = 0;
    const auto n = static_cast<uint32_t>(s.n);
    const auto run = [&](void* at) {
      return here([&] {
        return cub::DeviceRadixSort::SortPairs(at, temp, keys, values, n, 0, static_cast<int>(s.bits),
                                               static_cast<cudaStream_t>(stream));
      });
    };
    if (const dr_status e = run(nullptr)) return e;
    if (temp > s.temp_size) return too_little_temp();
    temp = s.temp_size;
    if (const dr_status e = run(s.temp)) return e;
    if (keys.Current() != s.keys)
      if (const dr_status e = copy(stream, s.keys, keys.Current(), 8 * s.n)) return e;
    if (values.Current() != s.values) return copy(stream, s.values, values.Current(), 4 * s.n);
    return DR_OK;
  }

  dr_status clear(void* stream, void* to, uint64_t size) override {
    return here([&] { return cudaMemsetAsync(to, 0, size, static_cast<cudaStream_t>(stream)); });
  }
  dr_status copy(void* stream, void* to, const void* from, uint64_t size) override {
    return here([&] { return cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)); });
  }
  dr_status record(void* event, void* stream) override {
    return here([&] { return cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)); });
  }
  dr_status follow(void* stream, void* event) override {
    return here(
        [&] { return cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0); });
  }
  dr_status wait(void* stream) override {
    return here([&] { return cudaStreamSynchronize(static_cast<cudaStream_t>(stream)); });
  }
  dr_status wait_event(void* event) override {
    return here([&] { return cudaEventSynchronize(static_cast<cudaEvent_t>(event)); });
  }
  void* make_event() override {
    cudaEvent_t event = nullptr;
    return here([&] { return cudaEventCreateWithFlags(&event, cudaEventDisableTiming); }) ? nullptr : event;
  }
  void drop_event(void* event) override {
    (void)here([&] { return cudaEventDestroy(static_cast<cudaEvent_t>(event)); });
  }
  void* allocate(uint64_t size) override {
    void* memory = nullptr;
    return here([&] { return cudaMalloc(&memory, size); }) ? nullptr : memory;
  }
  void release(void* memory) override {
    (void)here([&] { return cudaFree(memory); });
  }
  void* allocate_host(uint64_t size) override {
    void* memory = nullptr;
    return here([&] { return cudaHostAlloc(&memory, size, cudaHostAllocPortable); }) ? nullptr : memory;
  }
  void release_host(void* memory) override {
    (void)here([&] { return cudaFreeHost(memory); });
  }
  bool is_done(void* event) override {
    return here([&] { return cudaEventQuery(static_cast<cudaEvent_t>(event)); }) == DR_OK;
  }
  void load(const dr_kernel& kernel) override {
    cudaFuncAttributes read;
    if (!kernel.device || here([&] { return cudaFuncGetAttributes(&read, kernel.device()); })) return;
    // Code for less than 9.0, which the driver compiles for this device, does not wait for the kernel ahead (entry.cuh).
    if (read.ptxVersion < 90) starts_early_ = false;
  }
  uint32_t processors() const override { return static_cast<uint32_t>(processors_); }
  // CUB does not export its kernels, so they are loaded by running them: few and many pairs use different ones. No
  // other stream waits.
  dr_status load_sort(const dr_sort& asked) override {
    size_t temp = 0;
    if (asked.n > 0x7fffffff) return DR_OK;  // a call may have fewer
    cub::DoubleBuffer<uint64_t> keys;
    cub::DoubleBuffer<uint32_t> values;
    if (const dr_status e = here([&] {
          return cub::DeviceRadixSort::SortPairs(nullptr, temp, keys, values, static_cast<uint32_t>(asked.n), 0,
                                                 static_cast<int>(asked.bits));
        }))
      return e;
    if (temp > asked.temp_size) return too_little_temp();
    std::lock_guard lock(loading_);
    if (sort_loaded_) return DR_OK;
    constexpr uint64_t most = 16384;
    void* const memory = allocate(24 * most + dr_sort_temp(most));
    cudaStream_t own = nullptr;
    if (memory && here([&] { return cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking); }) == DR_OK) {
      dr_sort s{};
      s.struct_size = sizeof s;
      s.bits = 64;
      s.keys = static_cast<uint64_t*>(memory);
      s.other_keys = s.keys + most;
      s.values = reinterpret_cast<uint32_t*>(s.other_keys + most);
      s.other_values = s.values + most;
      s.temp = s.other_values + most;
      s.temp_size = dr_sort_temp(most);
      sort_loaded_ = clear(own, memory, 24 * most) == DR_OK;
      for (const uint64_t n : {uint64_t{1}, most}) {
        s.n = n;
        sort_loaded_ = sort_loaded_ && sort(own, s) == DR_OK;
      }
      (void)wait(own);
      (void)here([&] { return cudaStreamDestroy(own); });
    }
    if (memory) release(memory);
    return DR_OK;
  }
  const char* reason() const override { return why ? why : cudaGetErrorString(last); }

 private:
  // dr_sort_temp follows from the tiles of CUB's policies; one with smaller tiles would ask for more.
  static dr_status too_little_temp() {
    why = "CUB's sort asks for more memory than dr_sort_temp";
    return DR_E_UNSUPPORTED;
  }
  template <class F>
  dr_status here(F&& f) const {
    return on_device(number_, f);
  }
  const int number_, processors_;
  std::atomic<bool> starts_early_;
  std::mutex loading_;
  bool sort_loaded_ = false;
};

}  // namespace

dr_status find_cuda_device(int32_t number, device*& out, dr_error& error) {
  static std::mutex mutex;
  static auto& all = *new std::vector<std::unique_ptr<device>>;  // contexts may end after main
  std::lock_guard lock(mutex);
  if (all.empty()) {
    // Returns 35 or 100 without a driver, 35 with one of an older major version.
    int count = 0, runtime = 0, driver = 0;
    const cudaError_t e = cudaGetDeviceCount(&count);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaDriverGetVersion(&driver);
    if (e != cudaSuccess || !is_driver_of(runtime, driver)) {
      (void)cudaGetLastError();
      return fail_without_device(runtime, driver, cudaGetErrorString(e), error);
    }
    all.resize(static_cast<size_t>(count));
  }
  if (number < 0 || static_cast<size_t>(number) >= all.size())
    return fail(error, DR_E_DEVICE, "place: CUDA device %d is not one of the %zu present", number, all.size());
  auto& d = all[static_cast<size_t>(number)];
  if (!d) {
    int processors = 0, major = 0;
    cudaError_t e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, number);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, number);
    if (e != cudaSuccess) {
      (void)cudaGetLastError();
      return fail(error, DR_E_DEVICE, "place: CUDA device %d: %s", number, cudaGetErrorString(e));
    }
    if (major < 8)
      return fail(error, DR_E_UNSUPPORTED, "place: CUDA device %d has compute capability %d; at least 8.0 is required",
                  number, major);
    d = std::make_unique<cuda_device>(number, processors, major);
  }
  out = d.get();
  return DR_OK;
}

}  // namespace dr
