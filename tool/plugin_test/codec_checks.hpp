// What is promised of a codec (codec.h), check by check. Each runs in a process of its own.
#pragma once

#include <span>

#include "codec_run.hpp"

namespace dr::plugin_test {

struct check {
  const char* name;
  const char* promise;
  // Throws failure. Returns how many streams it looked at; 0: it has no meaning for the codec.
  uint64_t (*run)(const subject&);
};

// The first is `bounds`: where it fails the others say nothing more.
std::span<const check> operation_checks();  // codec_checks.cpp: inputs as the library gives them
std::span<const check> hostile_checks();    // hostile_checks.cpp: payloads, fields and counts off the wire
std::span<const check> frame_checks();      // whole_frame_checks.cpp: whole frames, through the C ABI

}  // namespace dr::plugin_test
