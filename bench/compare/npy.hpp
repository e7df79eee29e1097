// Reads NumPy's .npy, format 1.0, 2.0 and 3.0 (numpy.lib.format).
#pragma once

#include "inputs.hpp"

namespace dr::compare {

// Takes '<f2', '<f4', '<f8' (becomes f32), and '<V2' or '|V2' as bfloat16, which is how ml_dtypes saves it.
// Throws not_float for integers, text, objects and records; input_error for big-endian floats, Fortran order of more
// than one dimension, and a file that is longer or shorter than its header says.
tensor parse_npy(std::span<const std::byte> file, std::string_view where);

}  // namespace dr::compare
