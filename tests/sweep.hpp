// Long sweeps: a part of the combinations, in which each single value still comes; whole with DEEPREDUCE_SWEEP=whole, which
// `./dev test --all` sets. Under sanitizers the part is smaller, and never the whole.
#pragma once

#include <cstdlib>
#include <cstring>

namespace dr {

#ifdef DR_SANITIZED
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

inline const bool whole_sweep = [] {
  const char* asked = std::getenv("DEEPREDUCE_SWEEP");
  return !sanitized && asked && !std::strcmp(asked, "whole");
}();

}  // namespace dr
