// A state in memory of its own, and Deep Gradient Compression's memory written out.
#pragma once

#include "client.hpp"

namespace abi {

using client::bytes;
using client::floats;

struct memory {
  std::vector<uint64_t> words;
  memory(const std::string& plan, const dr_tensor& t) {
    size_t size = 0;
    REQUIRE(dr_state_size(client::plan(plan).handle, &t, &size, nullptr) == DR_OK);
    words.assign((size + 7) / 8, 0);
    bytes_ = size;
  }
  void give_to(dr_tensor& t) { t.state = words.data(), t.state_size = bytes_; }
  size_t size() const { return bytes_; }
  floats read(bool momentum) {
    float* at = nullptr;
    uint64_t n = 0;
    const auto find = momentum ? dr_state_momentum : dr_state_residual;
    REQUIRE(find(words.data(), bytes_, &at, &n, nullptr) == DR_OK);
    return floats(at, at + n);
  }
  floats residual() { return read(false); }
  floats momentum() { return read(true); }

 private:
  size_t bytes_ = 0;
};

inline dr_call at_step(uint64_t step, uint64_t segment_rows = 0) {
  dr_call call{};
  call.step = step;
  call.segment_rows = segment_rows;
  return call;
}

// Deep Gradient Compression, Lin et al. 2017, Algorithm 1 with momentum correction and factor masking, in f32.
struct dgc_oracle {
  floats u, v;
  explicit dgc_oracle(size_t n) : u(n), v(n) {}

  void add(const floats& g, float momentum, float clip = 1) {
    for (size_t i = 0; i < g.size(); ++i) {
      const float old = momentum * u[i], fresh = clip * g[i];
      u[i] = fresh + old;
      v[i] = v[i] + u[i];
    }
  }
  void send(const client::pairs& sent, uint32_t width = 1, bool masks = true) {
    for (size_t k = 0; k < sent.indices.size() * width; ++k) {
      const uint64_t at = sent.indices[k / width] * width + k % width;
      v[at] -= sent.values[k];
      if (masks) u[at] = 0;
    }
  }
};

inline double norm_of(const floats& g) {
  double sum = 0;
  for (const float x : g) sum += double{x} * double{x};
  return std::sqrt(sum);
}

}  // namespace abi
