// Ranks of a transform in one thread, and PowerSGD in plain f64 as the paper defines it.
#pragma once

#include <deepreduce/transform.h>

#include "client.hpp"
#include "transform/normal_values.hpp"

namespace transforms {

using client::floats;

struct shape {
  uint64_t rows;
  uint32_t columns;
};
using shapes = std::vector<shape>;

struct rank {
  client::context context;
  dr_transform* handle = nullptr;
  std::vector<floats> in, out;
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> outs;

  rank(const std::string& plan, const shapes& of, uint32_t threads = 1, uint64_t seed = 0, uint64_t dense_below = 0,
       uint32_t flags = 0)
      : context(threads) {
    for (const shape& s : of) {
      in.emplace_back(s.rows * s.columns);
      out.emplace_back(s.rows * s.columns, -7.0f);
    }
    for (size_t i = 0; i < of.size(); ++i) {
      tensors.push_back(client::dense(in[i]));
      tensors[i].universe = of[i].rows;
      tensors[i].width = of[i].columns;
      outs.push_back(client::dense_out(out[i], of[i].columns));
    }
    dr_transform_options options{};
    options.struct_size = sizeof options;
    options.seed = seed;
    options.dense_below = dense_below;
    options.flags = flags;
    const client::plan p(plan);
    const dr_status s = dr_transform_create(context.handle, p.handle, &options, tensors.data(), sizeof(dr_tensor),
                                            tensors.size(), &handle);
    INFO(plan << ": " << context.error());
    REQUIRE(s == DR_OK);
  }
  ~rank() { dr_transform_destroy(handle); }
  rank(const rank&) = delete;
  rank& operator=(const rank&) = delete;

  dr_status begin() {
    return dr_transform_begin(handle, tensors.data(), sizeof(dr_tensor), outs.data(), sizeof(dr_tensor_out),
                              tensors.size());
  }
  std::pair<float*, uint64_t> factor() {
    float* at = nullptr;
    uint64_t n = 0;
    REQUIRE(dr_transform_factor(handle, &at, &n) == DR_OK);
    return {at, n};
  }
  dr_transform_info info() const {
    dr_transform_info i{};
    i.struct_size = sizeof i;
    REQUIRE(dr_transform_describe(handle, &i, nullptr) == DR_OK);
    return i;
  }
  client::bytes state() {
    client::bytes bytes(info().state_size);
    REQUIRE(dr_transform_save(handle, bytes.data(), bytes.size()) == DR_OK);
    return bytes;
  }
  floats residual(size_t tensor) {
    float* at = nullptr;
    uint64_t n = 0;
    REQUIRE(dr_transform_residual(handle, tensor, &at, &n) == DR_OK);
    return {at, at + n};
  }
  // (Into the memory that the tensors point to.)
  void draw(uint64_t seed) {
    for (size_t i = 0; i < in.size(); ++i) {
      const floats drawn = normal(in[i].size(), seed * 1000 + i);
      std::copy(drawn.begin(), drawn.end(), in[i].begin());
    }
  }
};

using ranks = std::vector<std::unique_ptr<rank>>;

inline ranks make(size_t n, const std::string& plan, const shapes& of, uint64_t dense_below = 0) {
  ranks all;
  for (size_t i = 0; i < n; ++i) all.push_back(std::make_unique<rank>(plan, of, 1, 0, dense_below));
  return all;
}

// Adds up the factors of all ranks in rank order, and gives each the sum.
inline void all_reduce(ranks& all) {
  const auto [first, n] = all[0]->factor();
  floats sum(first, first + n);
  for (size_t i = 1; i < all.size(); ++i) {
    const auto [at, count] = all[i]->factor();
    REQUIRE(count == n);
    for (uint64_t k = 0; k < n; ++k) sum[k] += at[k];
  }
  for (auto& r : all) std::copy(sum.begin(), sum.end(), r->factor().first);
}

// A round of all ranks.
inline void run(ranks& all) {
  for (auto& r : all) {
    const dr_status s = r->begin();
    INFO(r->context.error());
    REQUIRE(s == DR_OK);
  }
  dr_status status = DR_PENDING;
  for (int phase = 0; status == DR_PENDING; ++phase) {
    REQUIRE(phase < 2);
    all_reduce(all);
    for (auto& r : all) {
      status = dr_transform_next(r->handle, 1.0f / static_cast<float>(all.size()));
      INFO(r->context.error());
      REQUIRE((status == DR_OK || status == DR_PENDING));
    }
  }
}

// PowerSGD of one matrix, algorithm 1 of Vogels et al. (2019), with feedback, in f64.
struct paper {
  uint64_t n, m, r;
  std::vector<double> q;               // [m][r]
  std::vector<std::vector<double>> e;  // [ranks][n * m]
  double beta = 1, gamma = 1;

  using matrix = std::vector<double>;

  // What the residuals add up to, and the mean that comes out.
  matrix step(const std::vector<const floats*>& gradients) {
    const double w = static_cast<double>(gradients.size());
    std::vector<matrix> all;
    matrix p(n * r), next(m * r), out(n * m);
    for (size_t k = 0; k < gradients.size(); ++k) {
      matrix& x = all.emplace_back(n * m);
      for (uint64_t i = 0; i < n * m; ++i) x[i] = gamma * static_cast<double>((*gradients[k])[i]) + beta * e[k][i];
      for (uint64_t i = 0; i < n; ++i)
        for (uint64_t j = 0; j < m; ++j)
          for (uint64_t c = 0; c < r; ++c) p[i * r + c] += x[i * m + j] * q[j * r + c] / w;
    }
    orthogonalise(p);
    for (const matrix& x : all)
      for (uint64_t i = 0; i < n; ++i)
        for (uint64_t j = 0; j < m; ++j)
          for (uint64_t c = 0; c < r; ++c) next[j * r + c] += x[i * m + j] * p[i * r + c] / w;
    q = next;
    for (uint64_t i = 0; i < n; ++i)
      for (uint64_t j = 0; j < m; ++j)
        for (uint64_t c = 0; c < r; ++c) out[i * m + j] += p[i * r + c] * q[j * r + c];
    for (size_t k = 0; k < all.size(); ++k)
      for (uint64_t i = 0; i < n * m; ++i) e[k][i] = all[k][i] - out[i];
    return out;
  }

 private:
  // Gram and Schmidt's, modified.
  void orthogonalise(matrix& p) const {
    for (uint64_t c = 0; c < r; ++c) {
      for (uint64_t b = 0; b < c; ++b) {
        double dot = 0;
        for (uint64_t i = 0; i < n; ++i) dot += p[i * r + c] * p[i * r + b];
        for (uint64_t i = 0; i < n; ++i) p[i * r + c] -= dot * p[i * r + b];
      }
      double norm = 0;
      for (uint64_t i = 0; i < n; ++i) norm += p[i * r + c] * p[i * r + c];
      for (uint64_t i = 0; i < n; ++i) p[i * r + c] /= std::sqrt(norm);
    }
  }
};

// The Q that a new transform has for its only matrix: [columns][rank], from the end of its state.
inline std::vector<double> first_q(rank& of, uint64_t m, uint64_t r) {
  const client::bytes state = of.state();
  floats q(m * r);
  std::memcpy(q.data(), state.data() + state.size() - 4 * m * r, 4 * m * r);
  std::vector<double> out(m * r);
  for (uint64_t c = 0; c < r; ++c)
    for (uint64_t j = 0; j < m; ++j) out[j * r + c] = static_cast<double>(q[c * m + j]);
  return out;
}

}  // namespace transforms
