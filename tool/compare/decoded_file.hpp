// The output of `deepreduce decode`.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "compare_options.hpp"

namespace dr::compare {

// The tensors of a frame, dense, as a file of options.output's suffix: .npy and .f32 (little-endian, f32 only) hold one tensor,
// .npz any number. Throws usage_error (another name, several tensors, another type, too many elements), dr::error (the frame).
std::string decoded_file(std::span<const std::byte> frame, const decode_options& options);

}  // namespace dr::compare
