// The plan table of a frame: entries to bytes and back.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <string>
#include <vector>

#include "container/frame.hpp"
#include "primitive/bits.hpp"

namespace dr {

// A reader that does not read past its end.
struct frame_cursor {
  const uint8_t* at;
  const uint8_t* end;

  uint64_t left() const { return static_cast<uint64_t>(end - at); }
  bool u8(uint32_t& x) {
    if (at == end) return false;
    x = *at++;
    return true;
  }
  bool varint(uint64_t& x) {
    const uint8_t* const behind = get_varint(at, end, x);
    if (behind) at = behind;
    return behind;
  }
};

// CORRUPT: frame: what (value N).
dr_status corrupt_frame(dr_error& error, const char* what, uint64_t value);
// UNSUPPORTED: a value that FORMAT.md reserves for later versions.
dr_status reserved_in_frame(dr_error& error, const char* what, uint64_t value);

// Appends a plan's entry.
void serialise(const wire_plan& plan, std::pmr::vector<uint8_t>& out);
// Reads the entry at the cursor into a newly constructed plan. CORRUPT, UNSUPPORTED.
dr_status read_plan(frame_cursor& in, wire_plan& out, dr_error& error);

// Stages with their wire fields, for inspectors: block(log2_size=3)+golomb(block=12).
std::string describe_list(const stage_list& list);

}  // namespace dr
