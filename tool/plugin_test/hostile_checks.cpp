// Payloads, wire fields and counts that no encoder wrote: decode rejects them as CORRUPT, or returns values in range, in
// bounded time and inside its memory. The library knows the size of a fixed-size codec, so its payloads have that size.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "codec_checks.hpp"

namespace dr::plugin_test {
namespace {

// The error in a decoded stream. The library checks permutations.
std::string complaint(const subject& s, const incoming& o) {
  if (o.fault.code == DR_E_CORRUPT) return "";
  if (o.fault.code) return fmt::format("the fault is {}, not CORRUPT", o.fault.code);
  if (s.is(DR_ROLE_BYTES)) return "";
  if (o.out_size != o.out.size())
    return fmt::format("decode returns {} bytes of {}, and no fault", o.out_size, o.out.size());
  if (s.has(DR_NEEDS_FINITE) &&
      std::ranges::any_of(cases::numbers(o.says.dtype, o.decoded()), [](double v) { return std::isnan(v); }))
    return "decode returns a NaN, though the codec accepts only finite numbers";
  if (!s.is(DR_ROLE_INDEX)) return "";
  const auto indices = cases::words(o.decoded());
  if (const auto high = std::ranges::find_if(indices, [&](uint32_t i) { return i >= o.says.universe; });
      high != indices.end())
    return fmt::format("decode returns the index {}, which is not below the universe {}", *high, o.says.universe);
  if (!s.has(DR_CARRIES_ORDER) && std::ranges::adjacent_find(indices, std::greater_equal()) != indices.end())
    return "decode returns indices that do not ascend";
  return "";
}

// `what` describes how the payload differs from the encoded one.
void attack(const subject& s, const wire_fields& fields, incoming& stream, const encoded& from,
            const std::string& what) {
  about(quoted(*from.in) + ", " + what);
  stream.fault = {.struct_size = sizeof(dr_fault)};
  incoming* const one[] = {&stream};
  decode(s, fields, one);
  if (const std::string wrong = complaint(s, stream); !wrong.empty())
    throw failure(fmt::format("{}, {}: {}", quoted(*from.in), what, wrong));
}

void attack(const subject& s, const wire_fields& fields, const claim& says, std::span<const uint8_t> payload,
            const encoded& from, const std::string& what) {
  incoming stream(s, says, payload);
  attack(s, fields, stream, from, what);
}

// Calls f(fields, encoded) for inputs that are small enough to try everything.
template <class F>
uint64_t for_each_small(const subject& s, F&& f) {
  uint64_t n = 0;
  for (const input& in : inputs_of(s)) {
    wire_fields fields{};
    if (in.elements.size() > 64 * 4 * in.width || (s.has(DR_REPLACES_SUPPORT) && in.universe > 4096)) continue;
    if (!resolve(s, in, fields)) continue;
    const encoded e = std::move(encode(s, fields, {&in})[0]);
    if (e.refused()) continue;
    f(fields, e);
    ++n;
  }
  return n;
}

// A payload of the size that the library would pass for such a claim: the given bytes, repeated.
std::vector<uint8_t> fitted(const subject& s, const dr_need& need, std::span<const uint8_t> payload) {
  std::vector<uint8_t> out(payload.begin(), payload.end());
  if (s.has(DR_FIXED_SIZE)) out.resize(need.payload);
  for (size_t i = payload.size(); i < out.size(); ++i) out[i] = payload.empty() ? 0xff : payload[i % payload.size()];
  return out;
}

uint64_t truncated(const subject& s) {
  if (s.has(DR_FIXED_SIZE)) return 0;
  return for_each_small(s, [&](const wire_fields& fields, const encoded& e) {
    const auto refused = [&](std::span<const uint8_t> payload, const std::string& what) {
      incoming stream(s, claim_of(s, e), payload);
      attack(s, fields, stream, e, what);
      if (stream.fault.code == DR_OK && !s.is(DR_ROLE_BYTES))  // which has no count
        throw failure(fmt::format("{}, {}: decode accepts it; a payload that is too short or too long is CORRUPT",
                                  quoted(*e.in), what));
    };
    for (size_t size = 0; size < e.payload.size(); ++size)
      refused(std::span(e.payload).first(size), fmt::format("the first {} bytes of its {}", size, e.payload.size()));
    auto longer = e.payload;
    longer.push_back(0);
    for (const uint8_t last : {0x00, 0x01, 0x80, 0xff}) {
      longer.back() = last;
      refused(longer, fmt::format("its {} bytes and {:#04x} after them", e.payload.size(), last));
    }
  });
}

uint64_t flipped(const subject& s) {
  return for_each_small(s, [&](const wire_fields& fields, const encoded& e) {
    incoming stream(s, claim_of(s, e), e.payload);
    for (size_t bit = 0; bit < 8 * e.payload.size(); ++bit) {
      stream.in.data()[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
      attack(s, fields, stream, e, fmt::format("bit {} of byte {} flipped", bit % 8, bit / 8));
      stream.in.data()[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    }
  });
}

uint64_t any_bytes(const subject& s) {
  cases::random_source random("garbage");
  return for_each_small(s, [&](const wire_fields& fields, const encoded& e) {
    for (int round = 0; round < 40; ++round) {
      std::vector<uint8_t> bytes(s.has(DR_FIXED_SIZE) ? e.payload.size() : random.below(2 * e.payload.size() + 2));
      const uint64_t kind = random.below(4);  // all zeros, all ones, random, or the true bytes with holes
      for (uint8_t& b : bytes) b = static_cast<uint8_t>(kind == 0 ? 0 : kind == 1 ? 0xff : random.below(256));
      if (kind == 3)
        for (size_t i = 0; i < std::min(bytes.size(), e.payload.size()); ++i)
          if (random.below(8)) bytes[i] = e.payload[i];
      constexpr const char* kinds[] = {"zero bytes", "bytes of ones", "random bytes", "bytes with holes"};
      attack(s, fields, claim_of(s, e), bytes, e,
             fmt::format("{} {} in place of its payload", bytes.size(), kinds[kind]));
    }
  });
}

uint64_t fields_at_ends(const subject& s) {
  if (s.codec->field_count == 0) return 0;
  return for_each_small(s, [&](const wire_fields& fields, const encoded& e) {
    const claim says = claim_of(s, e);
    for (size_t f = 0; f < s.codec->field_count; ++f) {
      const dr_field& field = *dr_field_at(s.codec->fields, f);
      for (const uint64_t extreme :
           {field.minimum, field.minimum + 1, field.fallback, field.maximum - 1, field.maximum}) {
        if (extreme < field.minimum || extreme > field.maximum) continue;
        wire_fields other = fields;
        other[f] = extreme;
        const std::string what = fmt::format("wire field {} = {}", field.name, extreme);
        about(quoted(*e.in) + ", " + what);
        dr_need need;
        const dr_status status = need_of(s, other, says, need);
        if (status != DR_OK && status != DR_E_CORRUPT)
          throw failure(fmt::format("{}, {}: need returns {}, not OK or CORRUPT", quoted(*e.in), what, status));
        if (status == DR_OK && need.payload <= 1 << 24 && need.decode_scratch <= 1 << 28)
          attack(s, other, says, fitted(s, need, e.payload), e, what);
      }
    }
  });
}

uint64_t counts(const subject& s) {
  if (s.is(DR_ROLE_BYTES)) return 0;
  return for_each_small(s, [&](const wire_fields& fields, const encoded& e) {
    const claim truth = claim_of(s, e);
    const uint64_t far = s.has(DR_REPLACES_SUPPORT) ? 70000 : cases::largest_universe;
    for (const uint64_t universe : {uint64_t{1}, truth.universe / 2, truth.universe - 1, truth.universe,
                                    truth.universe + 1, 2 * truth.universe, far})
      for (const uint64_t count : {uint64_t{1}, truth.count / 2, truth.count - 1, truth.count, truth.count + 1,
                                   2 * truth.count, uint64_t{20000}})
        for (const int off : {-1, 0, 1}) {
          if (off && !s.has(DR_REPLACES_SUPPORT)) continue;
          claim lie = truth;
          lie.universe = s.is(DR_ROLE_ORDER) ? count : universe;
          lie.count = lie.support = count;
          if (s.has(DR_REPLACES_SUPPORT)) lie.support += static_cast<uint64_t>(off);
          const std::string what = fmt::format("read as {} of {}, decoded to {}", lie.count, lie.universe, lie.support);
          about(quoted(*e.in) + ", " + what);
          // Passes the library's checks.
          dr_need need;
          if (count == 0 || std::max(count, lie.support) > lie.universe || lie.universe > cases::largest_universe ||
              need_of(s, fields, lie, need) != DR_OK || need.payload > 1 << 24)
            continue;
          attack(s, fields, lie, fitted(s, need, e.payload), e, what);
        }
  });
}

// Random payloads of a million elements. note() limits the time of an operation.
uint64_t ends(const subject& s) {
  constexpr uint64_t count = 1 << 20;
  cases::random_source random("time");
  for (const input& in : inputs_of(s)) {
    wire_fields fields{};
    if (!resolve(s, in, fields)) continue;
    const encoded e{&in, {}, {}, {}, {}};
    const claim says{s.is(DR_ROLE_ORDER) ? count : 2 * count, count, count, in.dtype, 1, count};
    dr_need need;
    if (need_of(s, fields, says, need) != DR_OK || need.payload > 1 << 26) continue;
    for (const int kind : {0x00, 0x01, 0xff, 0x100}) {
      std::vector<uint8_t> bytes(need.payload);
      for (uint8_t& b : bytes)
        b = static_cast<uint8_t>(kind == 0x100 ? random.below(256) : static_cast<uint64_t>(kind));
      attack(s, fields, says, bytes, e,
             fmt::format("2^20 elements from {} {}", bytes.size(),
                         kind == 0x100 ? "random bytes" : fmt::format("bytes of {:#04x}", kind)));
    }
    return 4;
  }
  return 0;
}

constexpr check hostile_list[] = {
    {"truncated", "a payload that is too short, or too long by a byte, is CORRUPT", truncated},
    {"flipped bits", "any bit of a payload may flip", flipped},
    {"any bytes", "a payload may be any bytes", any_bytes},
    {"wire fields", "wire fields may have any value in their range", fields_at_ends},
    {"counts", "counts and universe may be lies", counts},
    {"ends", "decode of a large hostile payload ends", ends},
};

}  // namespace

std::span<const check> hostile_checks() { return hostile_list; }

}  // namespace dr::plugin_test
