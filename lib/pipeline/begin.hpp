// The host's side of a call's first launch on a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include "primitive/begin_tile.hpp"
#include "primitive/bits.hpp"

namespace dr {

// f(std::integral_constant): by the size of the argument that has room for `size` bytes.
template <class F>
dr_status with_begin_size(uint64_t size, F&& f) {
  return size <= begin_few ? f(std::integral_constant<uint64_t, begin_few>{})
                           : f(std::integral_constant<uint64_t, begin_many>{});
}

template <uint64_t N>
typename begin_call<N>::args begin_args(std::byte* zero, uint64_t zero_size, std::byte* to,
                                        std::span<const uint8_t> blob) {
  typename begin_call<N>::args args;
  args.zero = reinterpret_cast<uint64_t*>(zero);
  args.zero_words = zero_size / 8;
  args.to = reinterpret_cast<uint64_t*>(to);
  args.words = blob.size() / 8;
  if (!blob.empty()) std::memcpy(args.data, blob.data(), blob.size());
  return args;
}

template <class Args>
uint64_t begin_blocks(const Args& a) {
  return std::clamp<uint64_t>(
      std::max(ceil_div(a.zero_words * 8, begin_tile), ceil_div(a.words, uint64_t{begin_lanes})), 1, 1024);
}

}  // namespace dr
