// Energies in vectors: a fold combines two vectors into one, by adding the halves of every block. Included where the
// code of an instruction set begins (after DR_AVX2_BEGIN or DR_AVX512_BEGIN), so that it is compiled for that set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "sparsify/energy_kernel.hpp"

namespace dr {

// V has an instruction set's vectors: `squares`, `add`, `fold<g>`, which leaves g lanes per block, and `store`, which
// sorts the blocks.
template <class V, class T, uint32_t block>
struct energy_loop {
  using bits = typename T::bits;
  using vector = typename V::vector;
  static constexpr uint32_t lanes = V::lanes;

  // The sum of the vectors 0, stride, 2 stride, … of a block.
  template <uint32_t stride>
  static vector sum(const bits* v) {
    if constexpr (stride * lanes >= block) {
      return V::template squares<T>(v);
    } else {  // (two statements, because the arguments of a call have no order)
      const vector first = sum<2 * stride>(v), second = sum<2 * stride>(v + stride * lanes);
      return V::add(first, second);
    }
  }
  // A vector with `left` lanes for every one of lanes / left blocks.
  template <uint32_t left>
  static vector folded(const bits* v) {
    if constexpr (left >= std::min(block, lanes)) {
      return sum<1>(v);
    } else {
      const vector first = folded<2 * left>(v), second = folded<2 * left>(v + lanes / (2 * left) * block);
      return V::template fold<left>(first, second);
    }
  }

  static void run(const void* values, uint64_t n, float* to) {
    const auto* v = static_cast<const bits*>(values);
    uint64_t i = 0;
    for (; i + lanes <= n; i += lanes, v += lanes * block) V::template store<block>(to + i, folded<1>(v));
    if (i == n) return;
    bits last[lanes * block] = {};
    float energies[lanes];
    std::memcpy(last, v, (n - i) * block * sizeof(bits));
    V::template store<block>(energies, folded<1>(last));
    std::memcpy(to + i, energies, (n - i) * sizeof(float));
  }
};

}  // namespace dr
