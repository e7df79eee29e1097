#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "bench/gpu/gpu_peers.hpp"

namespace gpu_bench {
namespace {

class plain_top_k final : public top_k {
 public:
  plain_top_k(uint64_t n, uint64_t k) : order_(n), indices_(k), values_(k) {}
  void enqueue(void*, const float* from) override {
    std::iota(order_.begin(), order_.end(), 0u);
    std::partial_sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(indices_.size()), order_.end(),
                      [&](uint32_t a, uint32_t b) { return std::fabs(from[a]) > std::fabs(from[b]); });
    std::copy_n(order_.begin(), indices_.size(), indices_.begin());
    for (size_t i = 0; i < indices_.size(); ++i) values_[i] = from[indices_[i]];
  }
  const uint32_t* indices() const override { return indices_.data(); }
  const float* values() const override { return values_.data(); }

 private:
  std::vector<uint32_t> order_, indices_;
  std::vector<float> values_;
};

}  // namespace

void fill_dense(void*, float* to, uint64_t n, input_kind kind, uint64_t seed) {
  for (uint64_t i = 0; i < n; ++i) to[i] = element_at(kind, seed, i, n);
}
void fill_pairs(void*, int64_t* indices, float* values, uint64_t count, uint64_t universe, uint64_t seed) {
  for (uint64_t i = 0; i < count; ++i) {
    indices[i] = index_at(seed, i, count, universe);
    values[i] = element_at(input_kind::laplace, seed, i, count);
  }
}
void fill_weights(void*, uint16_t* before, uint16_t* after, uint64_t n, uint64_t seed) {
  for (uint64_t i = 0; i < n; ++i) before[i] = weight_at(seed, i), after[i] = moved_at(seed, i);
}
void copy(void*, void* to, const void* from, uint64_t size) { std::memcpy(to, from, size); }
void clear(void*, void* to, uint64_t size) { std::memset(to, 0, size); }
void read_all(void*, const void* from, uint64_t size, uint64_t* sink) {
  const auto* const words = static_cast<const uint64_t*>(from);
  *sink = std::accumulate(words, words + size / 8, uint64_t{0});
}
void copy_by_kernel(void* stream, void* to, const void* from, uint64_t size) { copy(stream, to, from, size); }
void add_pairs(void*, float* to, const uint32_t* indices, const float* values, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) to[indices[i]] += values[i];
}
uint64_t cache_size() { return 60 << 10; }
std::unique_ptr<top_k> sort_top_k(uint64_t n, uint64_t k) { return std::make_unique<plain_top_k>(n, k); }
std::unique_ptr<top_k> unordered_top_k(uint64_t n, uint64_t k) { return std::make_unique<plain_top_k>(n, k); }
std::unique_ptr<top_k> select_top_k(uint64_t n, uint64_t k, float) { return std::make_unique<plain_top_k>(n, k); }

}  // namespace gpu_bench
