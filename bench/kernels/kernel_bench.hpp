// A subject of bench/kernels: one function with every instruction set of this CPU, all in turn.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "primitive/cpu.hpp"

namespace dr::bench {

struct subject {
  std::string kernel, input;      // "golomb decode", "d=25e6 r=250e3 uniform"
  std::string unit;               // what is counted: "index", "value", "element"
  double items;                   // of one call
  double bytes;                   // the minimum for one call: read and written once
  std::vector<cpu_level> levels;  // instruction sets with code of their own
  std::function<void(cpu_level)> run;
  std::function<uint64_t()> digest;  // of the last call's output: equal for all instruction sets, or the bench fails
};

using subjects = std::vector<subject>;

// 64 bits of any bytes.
inline uint64_t digest_of(const void* data, size_t size) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211u;
  return hash;
}

}  // namespace dr::bench
