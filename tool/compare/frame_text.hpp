// What a frame's headers say, for a person.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace dr::compare {

// Throws dr::error if the bytes are no sound frame.
std::string describe_frame(std::span<const std::byte> bytes);

}  // namespace dr::compare
