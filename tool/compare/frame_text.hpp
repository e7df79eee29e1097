// Describes a frame's headers.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace dr::compare {

// Throws dr::error if the frame is invalid.
std::string describe_frame(std::span<const std::byte> bytes);

}  // namespace dr::compare
