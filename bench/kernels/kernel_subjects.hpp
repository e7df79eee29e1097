// The written list of what kernel_bench times; a file of its own for each kind of kernel.
#pragma once

#include "kernel_bench.hpp"

namespace dr::bench {

void add_bloom(subjects&), add_golomb(subjects&);

inline subjects all_subjects() {
  subjects all;
  add_bloom(all);
  add_golomb(all);
  return all;
}

}  // namespace dr::bench
