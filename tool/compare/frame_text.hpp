// Describes a frame's headers.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace dr::compare {

// Throw dr::error if the frame is invalid.
std::string describe_frame(std::span<const std::byte> bytes);
std::string frame_json(std::span<const std::byte> bytes);

}  // namespace dr::compare
