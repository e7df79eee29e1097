// The levels of a kernel that this CPU can run, beside scalar, which judges them.
#pragma once

#include <doctest/doctest.h>

#include "primitive/cpu.hpp"

namespace dr {

// Calls f(level) for every level above scalar that there is; says which are not.
template <class F>
void each_fast_level(F&& f) {
  for (const cpu_level level : {cpu_level::avx2, cpu_level::avx512}) {
    const char* name = cpu_level_names[static_cast<uint32_t>(level)];
    if (level > cpu_detected()) {
      MESSAGE("this CPU has no ", name, ": not compared");
      continue;
    }
    CAPTURE(name);
    f(level);
  }
}

}  // namespace dr
