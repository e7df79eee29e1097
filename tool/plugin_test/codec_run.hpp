// Runs the operations of a codec as the library would, in memory that detects every access outside.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "child.hpp"
#include "deepreduce/codec.hpp"
#include "guarded_bytes.hpp"
#include "samples.hpp"

namespace dr::plugin_test {

using cases::input;
using properties::guarded_bytes;
using wire_fields = std::array<uint64_t, DR_FIELDS_MAX>;

// A codec with parameters.
struct subject {
  const dr_codec* codec;
  std::string call;  // as in plans, without role: "plugin.zigzag(stride=8)"
  std::vector<dr_value> values;

  bool has(uint32_t trait) const { return (codec->traits & trait) != 0; }
  bool is(dr_role role) const { return codec->role == role; }
  bool tells() const { return is(DR_ROLE_INDEX) || has(DR_REORDERS); }
};
// With its defaults, and with every parameter at its limits and at all choices.
std::vector<subject> subjects_of(const dr_codec& codec);

// All kinds of inputs of its role and types, drawn from cases::seed().
std::vector<input> inputs_of(const subject& s);

// ---- Encode ----------------------------------------------------------------------------------------------

struct encode_how {
  uint32_t workers = 1;
  uint64_t shared_key = 11, private_key = 22;
  uint8_t poison = 0xa5;  // initial content of output and scratch
  bool spare = false;     // the bounds of a call are above the counts
  bool ask = true;        // request the support or order that decode will return
  uint64_t tell_capacity = UINT64_MAX;
  dr_status fault = DR_OK;  // of the first job, before the call
};
struct encoded {
  const input* in;
  std::vector<uint8_t> payload;
  std::vector<uint32_t> reported;
  dr_need need;
  dr_fault fault;

  bool refused() const { return fault.code == DR_E_ARGUMENT; }
};

// The wire fields for an input. False: the codec rejects these parameters for it.
bool resolve(const subject& s, const input& in, wire_fields& fields);

// Encodes inputs with equal type, width and fields in one call. Throws failure if the codec leaves its memory or bounds,
// changes its inputs, or reports a fault other than ARGUMENT (a TOTAL codec: any fault).
std::vector<encoded> encode(const subject& s, const wire_fields& fields, const std::vector<const input*>& inputs,
                            const encode_how& how = {});

// The result of `cost`.
uint64_t cost_of(const subject& s, const wire_fields& fields, const input& in);

// ---- Decode ----------------------------------------------------------------------------------------------

// A stream's fields in a frame. `support`: number of indices that an index codec decodes to; for others the count.
struct claim {
  uint64_t universe, count, support;
  uint32_t dtype, width;
  uint64_t elements_size;  // of bytes

  uint64_t out_capacity(const subject& s) const;
};
claim claim_of(const subject& s, const encoded& e);
// CORRUPT: inconsistent fields.
dr_status need_of(const subject& s, const wire_fields& fields, const claim& c, dr_need& need);

// A stream to decode.
struct incoming {
  claim says;
  guarded_bytes in, out;
  uint64_t out_size = 0;
  dr_fault fault{.struct_size = sizeof(dr_fault)};

  incoming(const subject& s, const claim& c, std::span<const uint8_t> payload, size_t gap = 0);
  std::span<const uint8_t> decoded() const { return out.first(out_size); }
};
// Decodes streams in one call. Throws failure if the codec leaves its memory.
void decode(const subject& s, const wire_fields& fields, std::span<incoming* const> streams, uint32_t workers = 1,
            uint8_t poison = 0x5a);
// Decodes one stream; throws failure unless it succeeds.
std::vector<uint8_t> decode_one(const subject& s, const wire_fields& fields, const encoded& e, uint8_t poison = 0x5a);

// ---- Loops -----------------------------------------------------------------------------------------------

std::string quoted(const input& in);

// Calls f(fields, encoded) for every input that the codec accepts. Returns their number.
template <class F>
uint64_t for_each_stream(const subject& s, F&& f) {
  uint64_t n = 0;
  for (const input& in : inputs_of(s)) {
    wire_fields fields{};
    if (!resolve(s, in, fields)) continue;
    const encoded e = std::move(encode(s, fields, {&in})[0]);
    if (e.refused()) continue;
    f(fields, e);
    ++n;
  }
  return n;
}

}  // namespace dr::plugin_test
