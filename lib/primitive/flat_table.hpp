// Where the tensors of a bucket (bucket=flat) are, for kernels: they read them in place, and nothing is gathered first.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace dr {

struct flat_piece {
  const void* values;
  float* residual;      // or NULL
  uint32_t first;       // elements of the bucket before it
  uint32_t first_tile;  // of the read of a selection
  uint32_t tensor;      // in the batch
  uint32_t reserved;
};

// In device memory, followed by its pieces: the tensors that have elements, in order, and one that ends the last.
struct flat_table {
  uint32_t pieces, first_tensor, reserved[2];  // first_tensor: in the batch

  DR_HD const flat_piece* begin() const { return reinterpret_cast<const flat_piece*>(this + 1); }
  DR_HD const flat_piece* end() const { return begin() + pieces; }  // which ends the last

  // The piece of an element of the bucket, and of a tile; there is one.
  DR_HD const flat_piece& at(uint32_t element) const {
    return last_of([&](const flat_piece& p) { return p.first <= element; });
  }
  DR_HD const flat_piece& of_tile(uint32_t tile) const {
    return last_of([&](const flat_piece& p) { return p.first_tile <= tile; });
  }

 private:
  // The last piece for which f is true; it is true for the first.
  template <class F>
  DR_HD const flat_piece& last_of(F&& f) const {
    uint32_t low = 0, high = pieces;
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      if (f(begin()[middle]))
        low = middle;
      else
        high = middle;
    }
    return begin()[low];
  }
};
static_assert(sizeof(flat_table) == 16 && sizeof(flat_piece) == 32);

// The bytes of the table of so many tensors, a multiple of 16.
constexpr uint64_t flat_table_size(uint64_t tensors) { return sizeof(flat_table) + sizeof(flat_piece) * (tensors + 1); }

}  // namespace dr
