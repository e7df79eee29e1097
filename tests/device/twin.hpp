// Runs the CUDA operations of the codecs of all cases on the emulated device, in memory that shows every step outside, and says in
// a sentence what differs from the CPU's: "" if nothing does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "properties/harness.hpp"

namespace dr::device_tests {

using cases::input;
using properties::claim;
using properties::encoded;
using properties::group;
using properties::subject;
using properties::wire_fields;

// How the emulator plays the device.
struct order {
  int32_t seed = 0;
  uint32_t strands = 0, threads = 1;
  uint64_t jitter = 0;
};

// Codecs that have CUDA operations.
const std::vector<const subject*>& subjects();
// Groups of inputs that a device may have: words of patches are not among them.
std::vector<group> device_groups(const subject& s, bool spare = false);

// ---- Encode ----------------------------------------------------------------------------------------------

struct encode_call {
  const subject* codec;
  wire_fields fields;
  std::vector<const input*> inputs;
  std::vector<encoded> expected;  // the CPU's
  properties::encode_options options;
};
encode_call make_encode_call(const subject& s, const group& g, const properties::encode_options& options = {});

// All in one call, a job with a fault and a job without elements among them.
std::string encode_differs(const encode_call& call, const order& how);

// ---- Decode ----------------------------------------------------------------------------------------------

struct decode_item {
  claim says;
  std::vector<uint8_t> payload;
  // The CPU's.
  dr_status verdict = DR_OK;
  std::vector<uint8_t> elements;
};
struct decode_call {
  const subject* codec;
  wire_fields fields;
  bool spare = false;  // the bounds that the host knows are above what the device knows
  std::vector<decode_item> items;
};
// Asks the CPU. False if its gate refuses such a claim; then the device's must, too, or `wrong` says so.
bool add_item(decode_call& call, const claim& says, std::vector<uint8_t> payload, std::string& wrong);

// Items [begin, end) in one call, a job with a fault and a job without elements among them.
std::string decode_differs(const decode_call& call, const order& how, size_t begin = 0, size_t end = SIZE_MAX);

// ---- Bounds ----------------------------------------------------------------------------------------------

// `need` of both.
std::string need_differs(const subject& s, const dr_params& params, const dr_job& job);

// Launches of either operation for n jobs of the shape of one input; nothing is run.
struct launch_counts {
  uint32_t encode, decode;
};
launch_counts launches_of(const subject& s, const wire_fields& fields, const input& in, size_t n);

}  // namespace dr::device_tests
