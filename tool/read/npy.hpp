// Reads NumPy's .npy, format 1.0, 2.0 and 3.0 (numpy.lib.format).
#pragma once

#include <functional>

#include "inputs.hpp"

namespace dr::compare {

// A header's text: NumPy writes 118 bytes for an array of floats and itself reads at most 10 000. In front of it are at
// most 12 bytes, so the values of every file that is read begin within npy_head_max.
inline constexpr uint64_t npy_header_max = 65536, npy_head_max = npy_header_max + 12;

// An array in a file, of any type. `bytes` start at `data_at` and end with the file.
struct npy_array {
  std::string descr;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
  uint64_t header_at, data_at;
  bool fortran_order;  // of more than one dimension

  // Little-endian and in C order: the bytes are those of a tensor.
  bool in_order() const { return !fortran_order && !descr.starts_with('>'); }
};

// Refuses a header that is not NumPy's, and throws not_float for records. Does not look at the bytes.
npy_array read_npy(std::span<const std::byte> file, std::string_view where);

// Of a descr: '<f2', '<f4', '<f8', '<V2' or '|V2' as bfloat16, which is how ml_dtypes saves it, integers and booleans; all
// but bfloat16 with '>', too. Throws not_float for text, objects and long doubles.
stored stored_of(const npy_array& array, std::string_view where);

// Passes on an array's elements in little-endian and C order, at most 1 MiB at a time; their number matches the shape.
void in_c_order(const npy_array& array, unsigned width, const std::function<void(std::span<const std::byte>)>& f);

// The tensor of a file. Throws not_float for an array that is neither float nor cast, input_error for a file that is longer or
// shorter than its header says, and for the errors above.
tensor parse_npy(std::span<const std::byte> file, std::string_view where, const reading& how = {});

}  // namespace dr::compare
