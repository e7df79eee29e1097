// Long sweeps: a part of the combinations, in which each single value still comes; whole with DEEPREDUCE_SWEEP=whole, which
// `./dev test --all` sets (never under sanitizers).
#pragma once

#include <cstdlib>
#include <cstring>

namespace dr {

inline const bool whole_sweep = [] {
#ifdef DR_SANITIZED
  return false;
#else
  const char* asked = std::getenv("DEEPREDUCE_SWEEP");
  return asked && !std::strcmp(asked, "whole");
#endif
}();

}  // namespace dr
