// The benchmark's own work: inputs, copies as a baseline, and top-k as users of CUB write it. gpu_peers.cu is for CUDA;
// gpu_peers_emulated.cpp emulates it by plain loops, so that the benchmark can be rehearsed without a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "bench/gpu/gpu_inputs.hpp"

namespace gpu_bench {

// Streams are cudaStream_t. All enqueue; memory is the device's.
void fill_dense(void* stream, float* to, uint64_t n, input_kind kind, uint64_t seed);
void fill_pairs(void* stream, int64_t* indices, float* values, uint64_t count, uint64_t universe, uint64_t seed);
void fill_weights(void* stream, uint16_t* before, uint16_t* after, uint64_t n, uint64_t seed);
void copy(void* stream, void* to, const void* from, uint64_t size);
void clear(void* stream, void* to, uint64_t size);
// The same by a kernel of 16-byte loads and stores, `size` a multiple of 16.
void copy_by_kernel(void* stream, void* to, const void* from, uint64_t size);
// to[indices[i]] += values[i], as torch's index_add_ of distinct indices does at best.
void add_pairs(void* stream, float* to, const uint32_t* indices, const float* values, uint64_t count);
// Reads `size` bytes, a multiple of 16, in order; writes a word to `sink` where they are unlikely numbers.
void read_all(void* stream, const void* from, uint64_t size, uint64_t* sink);

uint64_t cache_size();  // L2, in bytes

// The k largest by magnitude, as indices and values, in any order.
class top_k {
 public:
  virtual ~top_k() = default;
  virtual void enqueue(void* stream, const float* from) = 0;
  virtual const uint32_t* indices() const = 0;
  virtual const float* values() const = 0;
};
// Sorts all of it: cub::DeviceRadixSort of (size, index), then the first k are gathered.
std::unique_ptr<top_k> sort_top_k(uint64_t n, uint64_t k);
// cub::DeviceTopK, whose result has no order and ties of any index, then a gather; nullptr without its header (CCCL 3.2).
std::unique_ptr<top_k> unordered_top_k(uint64_t n, uint64_t k);
// All of at least `threshold`, at most k: cub::DeviceSelect, then a gather. The minimum for a selection with a known
// threshold.
std::unique_ptr<top_k> select_top_k(uint64_t n, uint64_t k, float threshold);

}  // namespace gpu_bench
