// Tile algorithms, written once: lanes that wait for one another at the end of every phase. On the CPU a phase is a
// loop over lanes, in an order that tests choose; on a GPU it is the threads of a block and a barrier (cuda/entry.cuh).
//
//   struct my_kernel {
//     static constexpr const char* name = "my_kernel";
//     static constexpr unsigned lanes = 256;     // threads of a block
//     static constexpr unsigned grid_phases = 1; // more: a cooperative launch, which no kernel here is: see wait()
//     struct args { … };                         // trivially copyable; at most 32764 bytes
//     struct shared { … };                       // trivially default constructible; uninitialised when a block begins
//     template <class Block> DR_HD static void run(Block& b, shared& s, const args& a, unsigned grid_phase);
//     // Optional: calls f(from, bytes) for memory that a block reads and that no earlier kernel of the call writes. A GPU
//     // brings it nearer while the kernel ahead still runs; it is a hint, and the bytes may change until the kernel's turn.
//     template <class F> DR_HD static void each_ahead(const args& a, uint32_t block, F&& f);
//   };
//
// Rules of `run`. Shared memory is written in phases only, and the output of a phase is read in later phases, or
// between them through b.get(s.x), which all lanes call. Code between phases is uniform: every lane follows the same
// path and has its own copy of the variables there, so a phase may read but not write them. Registers that outlive a
// phase are `typename Block::template each<T>`. What few lanes do with many barriers runs in `by_warp`: a block of 32
// lanes, whose barriers cost next to nothing. `parts` does the work of several smaller blocks, one after the other
// (fused_tile.hpp). Every store to global memory at an address that depends on data checks the bound of this address
// itself. Loops are bounded by constants or by bounds from the host. Nothing depends on the order of lanes or blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "core/host_device.hpp"
#include "deepreduce/codec.h"
#include "primitive/atomics.hpp"

namespace dr {

// Tests run the lanes of a block in several control flows, each with registers of its own, as the threads of a GPU have
// them (cuda/strands.hpp). The interface between these control flows.
class strand {
 public:
  // Ends a phase: waits for the others, unless a test omits this barrier.
  virtual void end_phase(const char* file, unsigned line) = 0;
  // The value of shared memory was read.
  virtual void end_get() = 0;
  // x: an element of `size` bytes for every lane. Sets the elements of other strands' lanes.
  virtual void complete(void* x, size_t size) = 0;
  // Sets x to its value in the strand of lane 0.
  virtual void follow(void* x, size_t size) = 0;
  virtual bool has_lane_0() const = 0;

 protected:
  ~strand() = default;
};

// How the CPU runs the blocks of a grid.
struct emulated_grid {
  uint32_t blocks = 0;
  std::span<const uint32_t> lane_order;  // those that run, in this order; empty: all, ascending
  std::span<std::byte> shared;           // poisoned before each block
  strand* others = nullptr;
};

inline constexpr unsigned warp_lanes = 32;

// Of the block's Lanes those below Used run.
template <unsigned Lanes, unsigned Used = Lanes>
class host_block {
 public:
  static constexpr unsigned lanes = Used;

  template <class T>
  struct each {
    T value[Lanes];
    T& operator[](unsigned lane) { return value[lane]; }
    const T& operator[](unsigned lane) const { return value[lane]; }
  };

  host_block(const emulated_grid& grid, uint32_t index) : host_block(grid, index, grid.blocks) {}
  host_block(const emulated_grid& grid, uint32_t index, uint32_t blocks)
      : grid_(grid), index_(index), blocks_(blocks) {}
  host_block(const host_block&) = delete;
  host_block& operator=(const host_block&) = delete;

  uint32_t index() const { return index_; }
  uint32_t blocks() const { return blocks_; }

  // Calls f(lane) for every lane, then waits for all.
  template <class F>
  void phase(F&& f, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    if (grid_.lane_order.empty())
      for (unsigned lane = 0; lane < Used; ++lane) f(lane);
    else
      for (const unsigned lane : grid_.lane_order)
        if (Used == Lanes || lane < Used) f(lane);
    if (grid_.others) grid_.others->end_phase(file, line);
  }

  // Replaces every lane's x by the sum over the lanes before it; returns the sum over all.
  template <class T>
  T exclusive_sum(each<T>& x) {
    complete(x);
    T total{};
    for (unsigned i = 0; i < Used; ++i) {
      const T own = x[i];
      x[i] = total;
      total = total + own;
    }
    return total;
  }
  template <class T>
  T sum(const each<T>& x) {
    complete(x);
    T total = x[0];
    for (unsigned i = 1; i < Used; ++i) total = total + x[i];
    return total;
  }
  template <class T>
  T max(const each<T>& x) {
    complete(x);
    T largest = x[0];
    for (unsigned i = 1; i < Used; ++i) largest = x[i] > largest ? x[i] : largest;
    return largest;
  }
  template <class T>
  T min(const each<T>& x) {
    complete(x);
    T least = x[0];
    for (unsigned i = 1; i < Used; ++i) least = x[i] < least ? x[i] : least;
    return least;
  }
  // Reads shared memory, the same value for all lanes; later phases may overwrite it.
  template <class T>
  T get(const T& shared) {
    const T value = shared;
    if (grid_.others) grid_.others->end_get();
    return value;
  }
  // A value that one lane computes, for all of them.
  template <class T, class F>
  T once(F&& f) {
    if (!grid_.others) return f();
    T value{};
    if (grid_.others->has_lane_0()) value = f();
    grid_.others->follow(&value, sizeof value);
    return value;
  }
  // f(warp): the block's first 32 lanes as a block of their own. Its result, for all lanes.
  template <class T, class F>
  T by_warp(F&& f) {
    static_assert(Used >= warp_lanes);
    host_block<Lanes, warp_lanes> warp(grid_, index_, blocks_);
    return f(warp);
  }
  // f(block) for each of `blocks` blocks of the first Part lanes; the other lanes go on. A barrier has to follow.
  template <unsigned Part, class F>
  void parts(uint32_t blocks, F&& f) {
    static_assert(Part <= Used);
    for (uint32_t i = 0; i < blocks; ++i) {
      host_block<Lanes, Part> block(grid_, i, blocks);
      f(block);
    }
  }

 private:
  template <class T>
  void complete(const each<T>& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    // The entries of other strands' lanes are unused here, so their change is unseen.
    if (grid_.others) grid_.others->complete(const_cast<T*>(x.value), sizeof(T));
  }

  const emulated_grid& grid_;
  const uint32_t index_, blocks_;
};

template <class K>
void run_on_host(void* grid, uint32_t block, uint32_t grid_phase, const void* args) {
  const auto& g = *static_cast<const emulated_grid*>(grid);
  host_block<K::lanes> b(g, block);
  K::run(b, *reinterpret_cast<typename K::shared*>(g.shared.data()), *static_cast<const typename K::args*>(args),
         grid_phase);
}

// The __global__ function of a kernel: defined in a .cu by DR_DEVICE_KERNEL (cuda/entry.cuh), so only with CUDA.
template <class K>
const void* device_entry();

// The description of a kernel for its launches.
template <class K>
inline constexpr dr_kernel kernel = {sizeof(dr_kernel),
                                     K::name,
                                     K::lanes,
                                     sizeof(typename K::args),
                                     sizeof(typename K::shared),
                                     K::grid_phases,
#if defined(DR_WITH_CUDA)
                                     &device_entry<K>,
#else
                                     nullptr,
#endif
                                     &run_on_host<K>,
                                     K::grid_phases > 1 ? 0 : DR_KERNEL_WAITS,
                                     0};

template <class K>
dr_status launch(const dr_exec& exec, uint64_t blocks, const typename K::args& args) {
  static_assert(std::is_trivially_copyable_v<typename K::args> && sizeof(typename K::args) <= 32764);
  if (blocks == 0) return DR_OK;
  if (blocks > 0x7fffffff) return DR_E_UNSUPPORTED;
  return exec.launch(exec.device, &kernel<K>, static_cast<uint32_t>(blocks), &args);
}

}  // namespace dr
