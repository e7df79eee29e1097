// Runs the operations of a codec as the library would, on memory that shows every step outside.
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
  std::string call;  // as plans have it, without role: "plugin.zigzag(stride=8)"
  std::vector<dr_value> values;

  bool has(uint32_t trait) const { return (codec->traits & trait) != 0; }
  bool is(dr_role role) const { return codec->role == role; }
  bool tells() const { return is(DR_ROLE_INDEX) || has(DR_REORDERS); }
};
// With its defaults, and with each parameter at its ends and each of its choices.
std::vector<subject> subjects_of(const dr_codec& codec);

// Every kind of input of its role and types that it may be handed, drawn from cases::seed().
std::vector<input> inputs_of(const subject& s);

// ---- Encode ----------------------------------------------------------------------------------------------

struct encode_how {
  uint32_t workers = 1;
  uint64_t shared_key = 11, private_key = 22;
  uint8_t poison = 0xa5;  // what output and scratch hold before
  bool spare = false;     // the bounds that a call has are above the counts
  bool ask = true;        // for the support or order that decode will give
  uint64_t tell_capacity = UINT64_MAX;
  dr_status fault = DR_OK;  // of the first job, before the call
};
struct encoded {
  const input* in;
  std::vector<uint8_t> payload;
  std::vector<uint32_t> told;
  dr_need need;
  dr_fault fault;

  bool refused() const { return fault.code == DR_E_ARGUMENT; }
};

// The wire fields for such an input. False: the codec does not take these parameters for it.
bool resolve(const subject& s, const input& in, wire_fields& fields);

// In one call, of inputs that are equal in type, width and fields. Throws failure where the codec leaves its memory, its
// bounds or its inputs' bytes, or has a fault that is not ARGUMENT (a codec that is TOTAL: any).
std::vector<encoded> encode(const subject& s, const wire_fields& fields, const std::vector<const input*>& inputs,
                            const encode_how& how = {});

// What `cost` says of it.
uint64_t cost_of(const subject& s, const wire_fields& fields, const input& in);

// ---- Decode ----------------------------------------------------------------------------------------------

// What a frame says of a stream. `support`: indices that an index codec decodes to; of others the count.
struct claim {
  uint64_t universe, count, support;
  uint32_t dtype, width;
  uint64_t elements_size;  // of bytes

  uint64_t out_capacity(const subject& s) const;
};
claim claim_of(const subject& s, const encoded& e);
// CORRUPT: fields that do not fit it.
dr_status need_of(const subject& s, const wire_fields& fields, const claim& c, dr_need& need);

// A stream on its way in.
struct incoming {
  claim says;
  guarded_bytes in, out;
  uint64_t out_size = 0;
  dr_fault fault{.struct_size = sizeof(dr_fault)};

  incoming(const subject& s, const claim& c, std::span<const uint8_t> payload, size_t gap = 0);
  std::span<const uint8_t> decoded() const { return out.first(out_size); }
};
// In one call. Throws failure where the codec leaves its memory.
void decode(const subject& s, const wire_fields& fields, std::span<incoming* const> streams, uint32_t workers = 1,
            uint8_t poison = 0x5a);
// Alone, and a failure unless it succeeds.
std::vector<uint8_t> decode_one(const subject& s, const wire_fields& fields, const encoded& e, uint8_t poison = 0x5a);

// ---- Loops -----------------------------------------------------------------------------------------------

std::string quoted(const input& in);

// f(fields, encoded) for every input that the codec takes. Returns how many there were.
template <class F>
uint64_t each_stream(const subject& s, F&& f) {
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
