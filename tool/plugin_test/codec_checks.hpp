// The promises of a codec (codec.h) as checks. A check runs in its own process.
#pragma once

#include <span>

#include "codec_run.hpp"

namespace dr::plugin_test {

struct check {
  const char* name;
  const char* promise;
  // Throws failure. Returns the number of checked streams; 0: it does not apply to the codec.
  uint64_t (*run)(const subject&);
};

// What encode refuses of the inputs, which no promise forbids: how many, and the first one's reason. "": nothing.
std::string refusals(const subject& s);

// The first is `bounds`: if it fails, the others have no meaning.
std::span<const check> operation_checks();  // codec_checks.cpp: inputs as from the library
std::span<const check> hostile_checks();    // hostile_checks.cpp: payloads, fields and counts off the wire
std::span<const check> frame_checks();      // whole_frame_checks.cpp: whole frames, through the C ABI

}  // namespace dr::plugin_test
