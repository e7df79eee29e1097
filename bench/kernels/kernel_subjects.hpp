// The written list of what kernel_bench times; a file of its own for each kind of kernel.
#pragma once

#include "kernel_bench.hpp"
#include "rank_fit_kernels.hpp"

namespace dr::bench {

void add_bloom(subjects&);
void add_golomb(subjects&);
void add_half(subjects&);
void add_index(subjects&);
void add_qsgd(subjects&);
void add_quantisers(subjects&);
void add_selection(subjects&);

inline subjects all_subjects() {
  subjects all;
  add_bloom(all);
  add_golomb(all);
  add_half(all);
  add_index(all);
  add_qsgd(all);
  add_quantisers(all);
  add_selection(all);
  add_rank_fit(all);
  return all;
}

}  // namespace dr::bench
