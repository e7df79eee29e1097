// Runs the codecs of all cases through their operations, as the pipeline would, in memory that shows every step outside.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "cases/case.hpp"
#include "core/pool.hpp"
#include "deepreduce/codec.hpp"
#include "pipeline/bind.hpp"
#include "tool/plugin_test/guarded_bytes.hpp"
#include "tool/plugin_test/samples.hpp"

namespace dr::properties {

using cases::input;
using wire_fields = std::array<uint64_t, DR_FIELDS_MAX>;

// A codec with the parameters that one of its case's plans gives.
struct subject {
  const cases::codec_case* described;
  std::string text;
  std::shared_ptr<const plan> bound;
  const bound_stage* stage;

  const dr_codec& codec() const { return *stage->codec; }
  bool has(uint32_t trait) const { return codec().traits & trait; }
  bool is(dr_role role) const { return codec().role == role; }
  bool has_type() const { return is(DR_ROLE_VALUE) || has(DR_NEEDS_BASE); }
  // Where truths are asked for, one with a closed form for its size is not asked to find it in the payload too.
  bool tells() const { return is(DR_ROLE_INDEX) || has(DR_REORDERS); }
};
// Those of the cases that are asked for; or all, for a test of one codec, or that counts.
const std::vector<subject>& subjects();
const std::vector<subject>& every_subject();

// Inputs that may be jobs of one call: equal in type, width and wire header.
struct group {
  wire_fields fields{};
  std::vector<const input*> inputs;
};
// `spare`: the bounds that a call knows are above the counts.
std::vector<group> groups(const subject& s, bool spare = false);
uint64_t count_max_of(const input& in, bool spare);

// ---- Encode ----------------------------------------------------------------------------------------------

struct encode_options {
  uint32_t workers = 1;
  uint64_t shared_key = 11, private_key = 22;
  uint8_t poison = 0xa5;  // what output and scratch hold before
  bool spare = false, ask = true;
  uint64_t tell_capacity = UINT64_MAX;  // at most; of the first job
  dr_status fault = DR_OK;              // of the first job, before the call
};
struct encoded {
  std::vector<uint8_t> payload;
  std::vector<uint32_t> told;
  dr_need need;
  dr_fault fault;
};
std::vector<encoded> encode(const subject& s, const group& g, const encode_options& options = {});

// ---- Decode ----------------------------------------------------------------------------------------------

// What a frame says of a stream. `support`: indices that an index codec decodes to; for others the count.
struct claim {
  uint64_t universe, count, support;
  uint32_t dtype, width;
  uint64_t elements_size;  // of a bytes stage
  // Of a codec that reads them; as many bytes of each as claim and codec ask for.
  std::span<const uint8_t> base = {}, history = {};

  uint64_t out_capacity(const subject& s) const;
  uint64_t base_size(const subject& s) const;
};
claim claim_of(const subject& s, const input& in, const encoded& e);
// Fields that do not fit it are DR_E_CORRUPT.
dr_status need_of(const subject& s, const wire_fields& fields, const claim& c, dr_need& need);

// A stream on its way in.
struct incoming {
  claim says;
  guarded_bytes in, out, base, history;
  uint64_t out_size = 0;
  dr_fault fault{.struct_size = sizeof(dr_fault)};

  incoming(const subject& s, const claim& c, std::span<const uint8_t> payload, size_t gap = 0,
           placement where = placement::back);
  std::span<const uint8_t> decoded() const { return out.first(out_size); }
};
struct decode_options {
  uint32_t workers = 1;
  uint8_t poison = 0x5a;
};
// False if the codec left its memory.
bool decode(const subject& s, const wire_fields& fields, std::span<incoming* const> streams,
            const decode_options& options = {});
// Alone, and REQUIREd to succeed.
std::vector<uint8_t> decode_one(const subject& s, const wire_fields& fields, const claim& c,
                                std::span<const uint8_t> payload, const decode_options& options = {});

// Calls f(subject, group, what encode made of each input) for everything there is.
template <class F>
void each_group(F&& f, bool spare = false) {
  for (const subject& s : subjects())
    for (const group& g : groups(s, spare)) {
      encode_options options;
      options.spare = spare;
      const auto made = encode(s, g, options);
      f(s, g, made);
    }
}
template <class F>
void each_stream(F&& f) {
  each_group([&](const subject& s, const group& g, const std::vector<encoded>& made) {
    for (size_t i = 0; i < made.size(); ++i) {
      INFO(s.text << ": " << g.inputs[i]->name);
      REQUIRE(made[i].fault.code == DR_OK);
      f(s, g.fields, *g.inputs[i], made[i]);
    }
  });
}

}  // namespace dr::properties
