// The header of a frame, in the structs of the ABI.
#pragma once

#include "container/frame.hpp"

namespace dr {

dr_frame_info info_of(const frame_view& f);
// The tensor that begins at row `begin`; returns its end.
size_t info_of_tensor(const frame_view& f, size_t begin, dr_tensor_info& out);

// Bytes of the frame that begins here, by its header. CORRUPT, UNSUPPORTED.
dr_status size_of_frame(const uint8_t* frame, size_t size, size_t& out, dr_error& error);

}  // namespace dr
