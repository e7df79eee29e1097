// The levels of a kernel that this CPU can run, beside scalar, which judges them.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <initializer_list>

#include "primitive/cpu.hpp"

namespace dr {

// Calls f(level) for every level above scalar that there is; says which are not.
template <class F>
void each_fast_level(F&& f) {
  for (const cpu_level level : cpu_levels) {
    if (level == cpu_level::scalar) continue;
    const char* name = cpu_level_names[static_cast<uint32_t>(level)];
    if (!cpu_has(level)) {
      MESSAGE("this CPU has no ", name, ": not compared");
      continue;
    }
    CAPTURE(name);
    f(level);
  }
}

// Two verdicts of a decode say the same. (One sentence may lie at two addresses: literals of two files are not always merged.)
template <class Verdict>
bool same_fault(const Verdict& a, const Verdict& b) {
  if (!a.what || !b.what) return a.what == b.what;
  return std::strcmp(a.what, b.what) == 0 && a.where == b.where && a.found == b.found;
}

}  // namespace dr
