// The list of the subjects of kernel_bench; a file per kind of kernel.
#pragma once

#include "kernel_bench.hpp"
#include "rank_fit_kernels.hpp"

namespace dr::bench {

void add_bloom(subjects&);
void add_check(subjects&);
void add_dct(subjects&);
void add_eight_bit(subjects&);
void add_gap_huffman(subjects&);
void add_golomb(subjects&);
void add_half(subjects&);
void add_index(subjects&);
void add_merge(subjects&);
void add_planes(subjects&);
void add_qsgd(subjects&);
void add_quantisers(subjects&);
void add_selection(subjects&);
void add_signs(subjects&);

inline subjects all_subjects() {
  subjects all;
  add_bloom(all);
  add_check(all);
  add_dct(all);
  add_eight_bit(all);
  add_gap_huffman(all);
  add_golomb(all);
  add_half(all);
  add_index(all);
  add_merge(all);
  add_planes(all);
  add_qsgd(all);
  add_quantisers(all);
  add_selection(all);
  add_signs(all);
  add_rank_fit(all);
  return all;
}

}  // namespace dr::bench
