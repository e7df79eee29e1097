// The order in which the streams of a plan's rows are coded, on the CPU (encode.cpp) and on a GPU (device_encode.cpp).
#pragma once

#include <span>

#include "container/frame.hpp"

namespace dr {

enum class stream_step {
  index,     // may report a support that differs from the selected one
  regather,  // the values at the reported support
  value,     // may reorder the values
  reorder,   // the keys in the order of the values
  order      // that order, as a stream
};

// Index first if it replaces the support at which values are gathered; else value first, because the keys may have to
// carry its order. An order that the keys do not carry is a stream of its own.
inline std::span<const stream_step> sequence_of(const wire_plan& plan) {
  using enum stream_step;
  static constexpr stream_step index_first[] = {index, regather, value, reorder, order},
                               value_first[] = {value, reorder, index, order};
  const std::span<const stream_step> all =
      plan.replaces_support() ? std::span<const stream_step>(index_first) : std::span<const stream_step>(value_first);
  return plan.order().count ? all : all.first(all.size() - 1);
}

}  // namespace dr
