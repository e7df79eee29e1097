// The keys of a row's random numbers, in device memory.
#pragma once

#include <cstdint>

namespace dr {

struct row_keys {
  uint64_t shared, own;
};

}  // namespace dr
