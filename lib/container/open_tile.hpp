// The first launch of a decode on a GPU.
#pragma once

#include <cstdint>

#include "container/header_tile.hpp"
#include "primitive/begin_tile.hpp"

namespace dr {

// begin_call, and judge_frames by the descriptors that are still in its argument. (Where they need more than one launch,
// this one is behind those and transfers none.)
template <uint64_t Bytes>
struct open_frames {
  static constexpr const char* name = "open_frames";
  static constexpr unsigned lanes = frame_lanes, grid_phases = 1;
  struct args {
    typename begin_call<Bytes>::args begin;
    unpack_args frames;  // by their addresses behind begin.to
  };
  using shared = judge_frames::shared;
  static_assert(lanes == begin_call<Bytes>::lanes);

  template <class Block>
  DR_HD static void run(Block& b, shared& s, const args& a, unsigned) {
    typename begin_call<Bytes>::shared none;
    begin_call<Bytes>::run(b, none, a.begin, 0);
    if (b.index() >= a.frames.frame_count) return;
    unpack_args own = a.frames;
    if (a.begin.words) {
      move(own.place, a);
      move(own.frames, a);
      move(own.plans, a);
      move(own.head, a);
    }
    judge_frames::run(b, s, own, 0);
  }

 private:
  template <class T>
  DR_HD static void move(const T*& p, const args& a) {
    const auto at = reinterpret_cast<const uint8_t*>(p) - reinterpret_cast<const uint8_t*>(a.begin.to);
    p = reinterpret_cast<const T*>(reinterpret_cast<const uint8_t*>(a.begin.data) + at);
  }
};

}  // namespace dr
