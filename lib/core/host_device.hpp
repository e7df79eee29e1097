// DR_HD marks code that a CPU kernel and its CUDA twin share.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define DR_HD __host__ __device__
#else
#define DR_HD
#endif

namespace dr {

// CUDA's atomics know unsigned long long, not uint64_t.
template <class T>
using device_word = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned int>;

}  // namespace dr
