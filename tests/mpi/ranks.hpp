// What programs of ranks share: gradients that every rank can make, plans and contexts, a word at the end for run_ranks.py.
#pragma once

#include <cmath>
#include <cstdio>
#include <deepreduce/deepreduce.hpp>
#include <string>
#include <vector>

namespace ranks {

// What mpi.h gets is of a later library, whose dr_error is longer.
inline const dr_error* later_error(const dr_context* context) {
  static dr_error error;
  error = *dr_last_error(context);
  error.struct_size = sizeof error + 8;
  return &error;
}

}  // namespace ranks

#define dr_last_error ranks::later_error
#include <deepreduce/mpi.h>
#undef dr_last_error

namespace ranks {

inline int rank = 0, count = 0, wrong = 0;

inline void expect(bool good, const std::string& what) {
  if (!good && ++wrong <= 10) std::printf("rank %d: not so: %s\n", rank, what.c_str());
}

// Ends with the word that run_ranks.py waits for.
inline int verdict() {
  if (!wrong) std::printf("rank %d: good\n", rank);
  std::fflush(stdout);
  return wrong > 0;
}

using floats = std::vector<float>;

// A gradient with a heavy tail, as gradients have: the same for equal numbers, on every rank.
inline floats gradient(size_t elements, int of_rank, uint64_t step, uint64_t seed = 1) {
  floats g(elements);
  uint64_t x =
      seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(of_rank) * 0xbf58476d1ce4e5b9u + step * 0x94d049bb133111ebu;
  const auto uniform = [&x] {  // splitmix64
    uint64_t z = x += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-24f;
  };
  for (float& v : g) {
    const float u = 2 * uniform() - 1, w = uniform();
    v = 0.01f * u / (0.02f + w * w);
  }
  return g;
}

// Whether all ranks have the same bytes here.
inline bool same_everywhere(const void* bytes, size_t size) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const unsigned char*>(bytes)[i]) * 1099511628211u;
  std::vector<uint64_t> hashes(static_cast<size_t>(count));
  MPI_Allgather(&hash, 8, MPI_BYTE, hashes.data(), 8, MPI_BYTE, MPI_COMM_WORLD);
  for (const uint64_t h : hashes)
    if (h != hash) return false;
  return true;
}

// An exchange of tensors of these sizes, its gradients, and where the result goes.
struct reduction {
  dr::context context;
  dr::plan plan;
  std::vector<floats> gradients, results;
  std::vector<dr_tensor> tensors;
  std::vector<dr_tensor_out> outs;
  dr_mpi* mpi = nullptr;
  dr_status status = DR_OK;  // of dr_mpi_create
  dr_error error = dr::sized<dr_error>();

  reduction(const std::string& text, const std::vector<size_t>& sizes, dr_exchange_options options = {}) : plan(text) {
    for (const size_t size : sizes) gradients.emplace_back(size), results.emplace_back(size, -1.f);
    for (size_t i = 0; i < sizes.size(); ++i) {
      tensors.push_back(dr::dense(gradients[i]));
      outs.push_back(dr::dense_out(results[i]));
    }
    options.struct_size = sizeof options;
    status = dr_mpi_create(context.get(), plan.get(), MPI_COMM_WORLD, &options, tensors.data(), sizeof(dr_tensor),
                           outs.data(), sizeof(dr_tensor_out), sizes.size(), &mpi, &error);
  }
  ~reduction() { dr_mpi_destroy(mpi); }
  reduction(const reduction&) = delete;
  reduction& operator=(const reduction&) = delete;

  void fill(uint64_t step) {
    for (size_t i = 0; i < gradients.size(); ++i) {
      const floats g = gradient(gradients[i].size(), rank, step, i + 1);
      std::copy(g.begin(), g.end(), gradients[i].begin());
    }
  }
  dr_call call(uint64_t step) const {
    auto c = dr::sized<dr_call>();
    c.step = step;
    c.seed = 7;
    return c;
  }
  std::string said() const { return mpi ? dr_mpi_last_error(mpi)->message : error.message; }
};

}  // namespace ranks
