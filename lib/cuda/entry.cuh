// The GPU side of primitive/block.hpp: threads as lanes, and the macros by which .cu files compile a kernel for CUDA.
#pragma once

#include <cooperative_groups.h>

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "primitive/block.hpp"
#include "primitive/tile_job.hpp"

namespace dr {

// A value of each lane: a thread has its own.
template <class T>
struct lane_value {
  T value;
  __device__ T& operator[](unsigned) { return value; }
  __device__ const T& operator[](unsigned) const { return value; }
};

// What a warp and a block have alike. Own: reduce(x, f), over its lanes.
template <class Own>
class device_lanes {
 public:
  template <class T>
  using each = lane_value<T>;

  template <class T>
  __device__ T sum(const lane_value<T>& x) {
    return own().reduce(x.value, [](T a, T b) { return a + b; });
  }
  template <class T>
  __device__ T max(const lane_value<T>& x) {
    return own().reduce(x.value, [](T a, T b) { return a > b ? a : b; });
  }
  template <class T>
  __device__ T min(const lane_value<T>& x) {
    return own().reduce(x.value, [](T a, T b) { return a < b ? a : b; });
  }

 private:
  __device__ Own& own() { return static_cast<Own&>(*this); }
};

// The first warp of a block, whose lanes wait for one another only.
class device_warp : public device_lanes<device_warp> {
 public:
  static constexpr unsigned lanes = warp_lanes;

  template <class F>
  __device__ void phase(F&& f) {
    f(threadIdx.x);
    __syncwarp();
  }
  template <class T>
  __device__ T exclusive_sum(lane_value<T>& x) {
    const T own = x.value;
    T sum = own;
#pragma unroll
    for (unsigned d = 1; d < lanes; d *= 2) {
      const T other = __shfl_up_sync(whole, sum, d);
      if (threadIdx.x >= d) sum = sum + other;
    }
    x.value = sum - own;
    return __shfl_sync(whole, sum, lanes - 1);
  }
  template <class T>
  __device__ T get(const T& shared) {
    const T value = shared;
    __syncwarp();
    return value;
  }
  template <class T, class F>
  __device__ T once(F&& f) {
    T value{};
    if (threadIdx.x == 0) value = f();
    return __shfl_sync(whole, value, 0);
  }

 private:
  friend device_lanes<device_warp>;
  static constexpr unsigned whole = ~0u;

  template <class T, class F>
  __device__ T reduce(T x, F&& f) {
#pragma unroll
    for (unsigned d = lanes / 2; d > 0; d /= 2) x = f(x, __shfl_xor_sync(whole, x, d));
    return x;
  }
};

// What a block and a part of one have alike. Own: barrier(), of its lanes.
template <class Own>
class device_group : public device_lanes<Own> {
 public:
  template <class F>
  __device__ void phase(F&& f) {
    f(threadIdx.x);
    Own::barrier();
  }
  template <class T>
  __device__ T get(const T& shared) {
    const T value = shared;
    Own::barrier();
    return value;
  }
  template <class T, class F>
  __device__ T once(F&& f) {
    __shared__ T value;
    if (threadIdx.x == 0) value = f();
    return shown(value);
  }
  template <class T, class F>
  __device__ T by_warp(F&& f) {
    __shared__ T value;
    if (threadIdx.x < warp_lanes) {
      device_warp warp;
      const T own = f(warp);
      if (threadIdx.x == 0) value = own;
    }
    return shown(value);
  }

 protected:
  // What lane 0 has just written, for all lanes; it may be overwritten afterwards.
  template <class T>
  __device__ static T shown(const T& value) {
    Own::barrier();
    const T own = value;
    Own::barrier();
    return own;
  }
};

// The first Lanes threads of a block, as block `index` of `blocks`. (CUB's collectives of a block are for all of its threads.)
template <unsigned Lanes>
class device_part : public device_group<device_part<Lanes>> {
 public:
  static constexpr unsigned lanes = Lanes;

  __device__ device_part(uint32_t index, uint32_t blocks) : index_(index), blocks_(blocks) {}
  __device__ uint32_t index() const { return index_; }
  __device__ uint32_t blocks() const { return blocks_; }
  __device__ static void barrier() { asm volatile("bar.sync 1, %0;" ::"n"(Lanes) : "memory"); }

  template <class T>
  __device__ T exclusive_sum(lane_value<T>& x) {
    using scan = cub::WarpScan<T>;
    __shared__ typename scan::TempStorage temp[warps];
    __shared__ T of_warp[warps];
    const unsigned own = threadIdx.x / warp_lanes;
    T sum;
    scan(temp[own]).ExclusiveSum(x.value, x.value, sum);
    if (threadIdx.x % warp_lanes == 0) of_warp[own] = sum;
    barrier();
    T before{}, total{};
    for (unsigned i = 0; i < warps; ++i) {
      if (i == own) before = total;
      total = total + of_warp[i];
    }
    barrier();
    x.value = before + x.value;
    return total;
  }

 private:
  friend device_lanes<device_part>;
  static constexpr unsigned warps = Lanes / warp_lanes;
  static_assert(Lanes % warp_lanes == 0);

  template <class T, class F>
  __device__ T reduce(T x, F&& f) {
    using reduction = cub::WarpReduce<T>;
    __shared__ typename reduction::TempStorage temp[warps];
    __shared__ T of_warp[warps];
    const unsigned own = threadIdx.x / warp_lanes;
    const T result = reduction(temp[own]).Reduce(x, f);
    if (threadIdx.x % warp_lanes == 0) of_warp[own] = result;
    barrier();
    T all = of_warp[0];
    for (unsigned i = 1; i < warps; ++i) all = f(all, of_warp[i]);
    barrier();
    return all;
  }

  const uint32_t index_, blocks_;
};

template <unsigned Lanes>
class device_block : public device_group<device_block<Lanes>> {
 public:
  static constexpr unsigned lanes = Lanes;

  __device__ uint32_t index() const { return blockIdx.x; }
  __device__ uint32_t blocks() const { return gridDim.x; }
  __device__ static void barrier() { __syncthreads(); }

  template <class T>
  __device__ T exclusive_sum(lane_value<T>& x) {
    using scan = cub::BlockScan<T, Lanes, cub::BLOCK_SCAN_WARP_SCANS>;
    __shared__ typename scan::TempStorage temp;
    T total;
    scan(temp).ExclusiveSum(x.value, x.value, total);
    barrier();
    return total;
  }
  template <unsigned Part, class F>
  __device__ void parts(uint32_t blocks, F&& f) {
    static_assert(Part <= Lanes);
    if (threadIdx.x >= Part) return;
    for (uint32_t i = 0; i < blocks; ++i) {
      device_part<Part> block(i, blocks);
      f(block);
    }
  }

 private:
  friend device_lanes<device_block>;

  template <class T, class F>
  __device__ T reduce(T x, F&& f) {
    using reduction = cub::BlockReduce<T, Lanes>;
    __shared__ typename reduction::TempStorage temp;
    __shared__ T all;
    const T result = reduction(temp).Reduce(x, f);
    if (threadIdx.x == 0) all = result;
    return this->shown(all);
  }
};

// Blocks of K that a multiprocessor has room for, if K bounds its registers so; else 0: no bound.
template <class K>
constexpr unsigned resident_of() {
  if constexpr (requires { K::resident; })
    return K::resident;
  else
    return 0;
}

template <class K>
__global__ void __launch_bounds__(K::lanes, resident_of<K>())
    entry(const __grid_constant__ typename K::args args, [[maybe_unused]] const uint32_t beside) {
  __shared__ alignas(16) unsigned char shared[sizeof(typename K::shared)];
  device_block<K::lanes> block;
#if __CUDA_ARCH__ >= 900
  // (Prefetches go to the L2, through which all writes go, so they may come too early.)
  if constexpr (requires { K::each_ahead(args, 0u, [](const void*, uint64_t) {}); })
    K::each_ahead(args, blockIdx.x, [](const void* from, uint64_t bytes) {
      constexpr uint64_t line = 128;
      for (uint64_t at = threadIdx.x * line; at < bytes; at += K::lanes * line)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(from) + at));
    });
  // The next kernel's blocks may be scheduled after all of this kernel's are; none reads or writes before the previous
  // kernel has ended, so the order of the stream holds. `beside`: this kernel needs nothing of the one ahead, which may
  // stand beside another one itself, only of those before the first of such a run: they have ended, because that one lets
  // the others start after its own wait. What follows waits for this kernel, so its end has to wait for the one ahead.
  if (beside)
    // What those before have written must not come from an older line of this processor's L1.
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  else
    asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  jitter();
  for (unsigned phase = 0; phase < K::grid_phases; ++phase) {
    if (phase) {
      cooperative_groups::this_grid().sync();
      jitter();
    }
    K::run(block, *reinterpret_cast<typename K::shared*>(shared), args, phase);
  }
#if __CUDA_ARCH__ >= 900
  if (beside) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace dr

// Compiles kernel K (any number of template arguments) for the GPU.
#define DR_DEVICE_KERNEL(...)                                      \
  template <>                                                      \
  const void* dr::device_entry<__VA_ARGS__>() {                    \
    return reinterpret_cast<const void*>(&dr::entry<__VA_ARGS__>); \
  }

// Kernel template K over jobs that share a Common: both sizes of arguments.
#define DR_DEVICE_JOB_KERNEL(K, ...)                            \
  DR_DEVICE_KERNEL(K<dr::tile_args<__VA_ARGS__, dr::jobs_few>>) \
  DR_DEVICE_KERNEL(K<dr::tile_args<__VA_ARGS__, dr::jobs_many>>)
