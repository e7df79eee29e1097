// The report of a decode on a GPU.
#pragma once

#include <cstdint>

#include "primitive/block.hpp"
#include "primitive/device_row.hpp"

namespace dr {

// A frame being read.
struct unpack_state {
  dr_fault fault;
  uint64_t header_size, check;  // check: of the header, as it stands there
  uint32_t done, failed;
};

// Reports the result of a decode: the fault of the first unsound frame, or of the first unsound row of that frame.
// Launched where no judge_supports reports it: for frames without rows, and beside the delivery of few.
struct tell_decoded {
  static constexpr const char* name = "tell_decoded";
  static constexpr unsigned lanes = 256, grid_phases = 1;
  struct args {
    const device_row* rows;
    const unpack_state* frames;
    dr_result* result;
    uint32_t frame_count, rows_a_frame;
    const uint32_t* tensors;  // of the rows of a frame; NULL: each row is a tensor
  };
  struct shared {};

  template <class Block>
  DR_HD static void run(Block& b, shared&, const args& a, unsigned) {
    tell(b, a, true);
  }

  // `failed`: some row may have a fault.
  template <class Block>
  DR_HD static void tell(Block& b, const args& a, bool failed) {
    const uint64_t places = uint64_t{1} + a.rows_a_frame, n = places * a.frame_count;
    uint64_t first = n;
    if (failed) {
      typename Block::template each<uint64_t> bad;  // a place for each frame, in front of those of its rows
      b.phase([&](unsigned lane) {
        bad[lane] = n;
        for (uint64_t i = lane; i < n; i += lanes)
          if (i < bad[lane] && fault_at(a, i).code != DR_OK) bad[lane] = i;
      });
      first = b.min(bad);
    }
    b.phase([&](unsigned lane) {
      if (lane != 0) return;
      const bool found = first < n;
      uint64_t tensor = no_tensor;
      if (found && first % places) tensor = a.tensors ? a.tensors[first % places - 1] : first % places - 1;
      set_result(a.result, found ? fault_at(a, first) : dr_fault{}, 0, tensor, found ? first / places : no_frame);
    });
  }

  DR_HD static const dr_fault& fault_at(const args& a, uint64_t i) {
    const uint64_t frame = i / (uint64_t{1} + a.rows_a_frame), row = i % (uint64_t{1} + a.rows_a_frame);
    return row == 0 ? a.frames[frame].fault : a.rows[frame * a.rows_a_frame + row - 1].fault;
  }
};

}  // namespace dr
