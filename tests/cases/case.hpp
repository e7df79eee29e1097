// What a codec says of itself once, for property tests, fuzzers and benches alike: its parameterisations, the inputs that
// may hurt it, and plain code, written from its SPEC.md, that judges it. Needs codec.h and the standard library only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepreduce/codec.h"
#include "tool/plugin_test/samples.hpp"

namespace dr::cases {

// The result.
struct observation {
  const input& in;
  std::span<const uint64_t> fields;  // of the wire header
  std::span<const uint8_t> payload;
  std::span<const uint32_t> told;  // support or order
  std::span<const uint8_t> decoded;
};

struct codec_case {
  dr_role role;
  const char* name;
  std::vector<const char*> plans;  // in the plan's words: "golomb(block=9)"; the first is the default
  std::vector<input> inputs;
  std::string (*judge)(
      const observation&);  // "" if right, else what is wrong; nullptr where the round trip says it all
};

// One for each built-in codec: a written list, in all.cpp.
std::span<const codec_case> all();

// Whether the environment asks for tests of this case: DEEPREDUCE_CASES="index/golomb,value/qsgd", as `./dev quick` sets it after a
// change of these codecs. Not set: of every case. Throws std::invalid_argument for a name that is not in all().
bool is_asked_for(dr_role role, std::string_view name);

}  // namespace dr::cases
