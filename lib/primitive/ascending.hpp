// Ascending lists of u32: supports.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace dr {

// The number of elements of list[n] below `value`.
DR_HD inline uint64_t lower_bound(const uint32_t* list, uint64_t n, uint64_t value) {
  uint64_t low = 0, high = n;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (list[middle] < value)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// The last element of list[n] for which f is true; it is true for the first, and for none behind one for which it is not.
template <class T, class F>
DR_HD const T& last_where(const T* list, uint32_t n, F&& f) {
  uint32_t low = 0, high = n;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (f(list[middle]))
      low = middle;
    else
      high = middle;
  }
  return list[low];
}

// Whether element i is below the universe and above the element before it.
DR_HD inline bool ascends(const uint32_t* list, uint64_t i, uint64_t universe) {
  const uint32_t x = list[i];
  return x < universe && (i == 0 || list[i - 1] < x);
}

// The first element of list[n] that does not ascend below the universe, or n.
inline uint64_t first_descent(const uint32_t* list, uint64_t n, uint64_t universe) {
  if (n == 0) return 0;
  uint32_t falls = list[n - 1] >= universe;  // no branch: a sound list has no descent
  for (uint64_t i = 1; i < n; ++i) falls |= list[i] <= list[i - 1];
  if (!falls) return n;
  uint64_t i = 0;
  while (i < n && ascends(list, i, universe)) ++i;
  return i;
}

}  // namespace dr
