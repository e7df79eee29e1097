#include <cuda_runtime.h>
#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <stdexcept>
#include <string>
#if __has_include(<cub/device/device_topk.cuh>)
#include <thrust/iterator/transform_iterator.h>

#include <cuda/__execution/determinism.h>
#include <cuda/__execution/output_ordering.h>
#include <cuda/__execution/require.h>
#include <cub/device/device_topk.cuh>
#include <cuda/stream_ref>
#define DR_HAS_DEVICE_TOPK
#endif

#include "bench/gpu/gpu_peers.hpp"

namespace gpu_bench {
namespace {

void must(cudaError_t e, const char* what) {
  if (e != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(e));
}
cudaStream_t stream_of(void* s) { return static_cast<cudaStream_t>(s); }
unsigned blocks_for(uint64_t n) { return static_cast<unsigned>(std::clamp<uint64_t>((n + 255) / 256, 1, 132 * 16)); }

__global__ void dense_kernel(float* to, uint64_t n, input_kind kind, uint64_t seed) {
  for (uint64_t i = blockIdx.x * uint64_t{256} + threadIdx.x; i < n; i += gridDim.x * uint64_t{256})
    to[i] = element_at(kind, seed, i, n);
}
__global__ void pairs_kernel(int64_t* indices, float* values, uint64_t count, uint64_t universe, uint64_t seed) {
  for (uint64_t i = blockIdx.x * uint64_t{256} + threadIdx.x; i < count; i += gridDim.x * uint64_t{256}) {
    indices[i] = index_at(seed, i, count, universe);
    values[i] = element_at(input_kind::laplace, seed, i, count);
  }
}
__global__ void weights_kernel(uint16_t* before, uint16_t* after, uint64_t n, uint64_t seed) {
  for (uint64_t i = blockIdx.x * uint64_t{256} + threadIdx.x; i < n; i += gridDim.x * uint64_t{256})
    before[i] = weight_at(seed, i), after[i] = moved_at(seed, i);
}
__global__ void read_kernel(const uint4* from, uint64_t n, uint64_t* sink) {
  uint32_t sum = 0;
  uint64_t i = blockIdx.x * uint64_t{256} + threadIdx.x;
  const uint64_t stride = gridDim.x * uint64_t{256};
  for (; i + 3 * stride < n; i += 4 * stride) {
    const uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride], d = from[i + 3 * stride];
    sum += (a.x ^ a.y ^ a.z ^ a.w) + (b.x ^ b.y ^ b.z ^ b.w) + (c.x ^ c.y ^ c.z ^ c.w) + (d.x ^ d.y ^ d.z ^ d.w);
  }
  for (; i < n; i += stride) sum += from[i].x ^ from[i].y ^ from[i].z ^ from[i].w;
  if (sum == 0x12345678) *sink = sum;  // so that nothing of it is left out
}

__global__ void copy_kernel(uint4* to, const uint4* from, uint64_t n) {
  uint64_t i = blockIdx.x * uint64_t{256} + threadIdx.x;
  const uint64_t stride = gridDim.x * uint64_t{256};
  for (; i + 3 * stride < n; i += 4 * stride) {
    const uint4 a = __ldcs(from + i), b = __ldcs(from + i + stride), c = __ldcs(from + i + 2 * stride),
                d = __ldcs(from + i + 3 * stride);
    __stcs(to + i, a), __stcs(to + i + stride, b), __stcs(to + i + 2 * stride, c), __stcs(to + i + 3 * stride, d);
  }
  for (; i < n; i += stride) to[i] = from[i];
}
__global__ void add_kernel(float* to, const uint32_t* indices, const float* values, uint64_t count) {
  for (uint64_t i = blockIdx.x * uint64_t{256} + threadIdx.x; i < count; i += gridDim.x * uint64_t{256})
    to[indices[i]] += values[i];
}

__global__ void keys_kernel(const float* from, uint32_t* keys, uint32_t* indices, uint64_t n) {
  for (uint64_t i = blockIdx.x * uint64_t{256} + threadIdx.x; i < n; i += gridDim.x * uint64_t{256}) {
    keys[i] = __float_as_uint(from[i]) & 0x7fffffff;
    indices[i] = static_cast<uint32_t>(i);
  }
}
__global__ void gather_kernel(const float* from, const uint32_t* indices, const uint64_t* count, float* values,
                              uint64_t most) {
  const uint64_t k = count ? min(*count, most) : most;
  for (uint64_t i = blockIdx.x * uint64_t{256} + threadIdx.x; i < k; i += gridDim.x * uint64_t{256})
    values[i] = from[indices[i]];
}

template <class T>
struct array {
  explicit array(uint64_t n) { must(cudaMalloc(&at, std::max<uint64_t>(1, n * sizeof(T))), "cudaMalloc"); }
  ~array() { (void)cudaFree(at); }
  array(const array&) = delete;
  array& operator=(const array&) = delete;
  T* at = nullptr;
};

class by_sort final : public top_k {
 public:
  by_sort(uint64_t n, uint64_t k)
      : n_(n), k_(k), keys_(n), sorted_keys_(n), indices_(n), sorted_(n), values_(k), temp_(temp_size(n)) {}

  void enqueue(void* stream, const float* from) override {
    const cudaStream_t s = stream_of(stream);
    keys_kernel<<<blocks_for(n_), 256, 0, s>>>(from, keys_.at, indices_.at, n_);
    size_t size = temp_size(n_);
    must(cub::DeviceRadixSort::SortPairsDescending(temp_.at, size, keys_.at, sorted_keys_.at, indices_.at, sorted_.at,
                                                   static_cast<uint32_t>(n_), 0, 31, s),
         "cub::DeviceRadixSort");
    gather_kernel<<<blocks_for(k_), 256, 0, s>>>(from, sorted_.at, nullptr, values_.at, k_);
    must(cudaGetLastError(), "sort_top_k");
  }
  const uint32_t* indices() const override { return sorted_.at; }
  const float* values() const override { return values_.at; }

 private:
  static size_t temp_size(uint64_t n) {
    size_t size = 0;
    uint32_t* none = nullptr;
    must(cub::DeviceRadixSort::SortPairsDescending(nullptr, size, none, none, none, none, static_cast<uint32_t>(n), 0,
                                                   31),
         "cub::DeviceRadixSort");
    return size;
  }
  const uint64_t n_, k_;
  array<uint32_t> keys_, sorted_keys_, indices_, sorted_;
  array<float> values_;
  array<char> temp_;
};

#if defined(DR_HAS_DEVICE_TOPK)
struct magnitude {
  __host__ __device__ uint32_t operator()(uint32_t bits) const { return bits & 0x7fffffff; }
};

class by_top_k final : public top_k {
 public:
  by_top_k(uint64_t n, uint64_t k)
      : n_(n), k_(k), size_(run(nullptr, 0, nullptr, nullptr)), keys_(k), indices_(k), values_(k), temp_(size_) {}

  void enqueue(void* stream, const float* from) override {
    run(temp_.at, size_, from, stream);
    gather_kernel<<<blocks_for(k_), 256, 0, stream_of(stream)>>>(from, indices_.at, nullptr, values_.at, k_);
    must(cudaGetLastError(), "unordered_top_k");
  }
  const uint32_t* indices() const override { return indices_.at; }
  const float* values() const override { return values_.at; }

 private:
  // Returns the bytes that it asks for, without a place for them.
  size_t run(void* temp, size_t size, const float* from, void* stream) {
    const auto keys = thrust::make_transform_iterator(reinterpret_cast<const uint32_t*>(from), magnitude{});
    const auto wants = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
                                                cuda::execution::output_ordering::unsorted);
    const auto how = cuda::std::execution::env{cuda::stream_ref{stream_of(stream)}, wants};
    must(cub::DeviceTopK::MaxPairs(temp, size, keys, temp ? keys_.at : nullptr, thrust::counting_iterator<uint32_t>(0),
                                   temp ? indices_.at : nullptr, static_cast<int64_t>(n_), static_cast<int64_t>(k_),
                                   how),
         "cub::DeviceTopK");
    return size;
  }
  const uint64_t n_, k_;
  const size_t size_;
  array<uint32_t> keys_, indices_;
  array<float> values_;
  array<char> temp_;
};
#endif

struct at_least {
  const float* from;
  float threshold;
  __device__ bool operator()(uint32_t i) const { return fabsf(from[i]) >= threshold; }
};

class by_threshold final : public top_k {
 public:
  // Room for all, should the threshold be wrong: CUB writes what it finds.
  by_threshold(uint64_t n, uint64_t k, float threshold)
      : n_(n), k_(k), threshold_(threshold), indices_(n), values_(k), count_(1), temp_(temp_size(n)) {}

  void enqueue(void* stream, const float* from) override {
    const cudaStream_t s = stream_of(stream);
    size_t size = temp_size(n_);
    must(cub::DeviceSelect::If(temp_.at, size, thrust::counting_iterator<uint32_t>(0), indices_.at, count_.at,
                               static_cast<int64_t>(n_), at_least{from, threshold_}, s),
         "cub::DeviceSelect");
    gather_kernel<<<blocks_for(k_), 256, 0, s>>>(from, indices_.at, count_.at, values_.at, k_);
    must(cudaGetLastError(), "select_top_k");
  }
  const uint32_t* indices() const override { return indices_.at; }
  const float* values() const override { return values_.at; }

 private:
  static size_t temp_size(uint64_t n) {
    size_t size = 0;
    must(cub::DeviceSelect::If(nullptr, size, thrust::counting_iterator<uint32_t>(0), static_cast<uint32_t*>(nullptr),
                               static_cast<uint64_t*>(nullptr), static_cast<int64_t>(n), at_least{nullptr, 0}),
         "cub::DeviceSelect");
    return size;
  }
  const uint64_t n_, k_;
  const float threshold_;
  array<uint32_t> indices_;
  array<float> values_;
  array<uint64_t> count_;
  array<char> temp_;
};

}  // namespace

void fill_dense(void* stream, float* to, uint64_t n, input_kind kind, uint64_t seed) {
  dense_kernel<<<blocks_for(n), 256, 0, stream_of(stream)>>>(to, n, kind, seed);
  must(cudaGetLastError(), "fill_dense");
}
void fill_pairs(void* stream, int64_t* indices, float* values, uint64_t count, uint64_t universe, uint64_t seed) {
  pairs_kernel<<<blocks_for(count), 256, 0, stream_of(stream)>>>(indices, values, count, universe, seed);
  must(cudaGetLastError(), "fill_pairs");
}
void fill_weights(void* stream, uint16_t* before, uint16_t* after, uint64_t n, uint64_t seed) {
  weights_kernel<<<blocks_for(n), 256, 0, stream_of(stream)>>>(before, after, n, seed);
  must(cudaGetLastError(), "fill_weights");
}
void copy(void* stream, void* to, const void* from, uint64_t size) {
  must(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream_of(stream)), "copy");
}
void copy_by_kernel(void* stream, void* to, const void* from, uint64_t size) {
  copy_kernel<<<blocks_for(size / 64), 256, 0, stream_of(stream)>>>(static_cast<uint4*>(to),
                                                                    static_cast<const uint4*>(from), size / 16);
  must(cudaGetLastError(), "copy_by_kernel");
}
void add_pairs(void* stream, float* to, const uint32_t* indices, const float* values, uint64_t count) {
  add_kernel<<<blocks_for(count), 256, 0, stream_of(stream)>>>(to, indices, values, count);
  must(cudaGetLastError(), "add_pairs");
}
void clear(void* stream, void* to, uint64_t size) { must(cudaMemsetAsync(to, 0, size, stream_of(stream)), "clear"); }
void read_all(void* stream, const void* from, uint64_t size, uint64_t* sink) {
  read_kernel<<<blocks_for(size / 16), 256, 0, stream_of(stream)>>>(static_cast<const uint4*>(from), size / 16, sink);
  must(cudaGetLastError(), "read_all");
}
uint64_t cache_size() {
  int size = 0;
  must(cudaDeviceGetAttribute(&size, cudaDevAttrL2CacheSize, 0), "cache_size");
  return static_cast<uint64_t>(size);
}
std::unique_ptr<top_k> sort_top_k(uint64_t n, uint64_t k) { return std::make_unique<by_sort>(n, k); }
std::unique_ptr<top_k> unordered_top_k([[maybe_unused]] uint64_t n, [[maybe_unused]] uint64_t k) {
#if defined(DR_HAS_DEVICE_TOPK)
  return std::make_unique<by_top_k>(n, k);
#else
  return nullptr;
#endif
}
std::unique_ptr<top_k> select_top_k(uint64_t n, uint64_t k, float threshold) {
  return std::make_unique<by_threshold>(n, k, threshold);
}

}  // namespace gpu_bench
