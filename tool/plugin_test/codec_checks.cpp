#include "codec_checks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

namespace dr::plugin_test {
namespace {

[[noreturn]] void fail(const encoded& e, const std::string& what) { throw failure(quoted(*e.in) + ": " + what); }

// Describes how two streams differ.
std::string difference(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  if (a.size() != b.size()) return fmt::format("{} bytes, not {}", b.size(), a.size());
  const auto at = std::ranges::mismatch(a, b).in1 - a.begin();
  return at == static_cast<ptrdiff_t>(a.size()) ? ""
                                                : fmt::format("byte {} is {:#04x}, not {:#04x}", at,
                                                              b[static_cast<size_t>(at)], a[static_cast<size_t>(at)]);
}

void same(const encoded& a, const encoded& b, const char* when) {
  if (a.fault.code != b.fault.code)
    fail(a, fmt::format("{} the fault is {}, not {}", when, b.fault.code, a.fault.code));
  if (const std::string d = difference(a.payload, b.payload); !d.empty())
    fail(a, fmt::format("{} encode writes another payload: {}", when, d));
  if (a.reported != b.reported) fail(a, fmt::format("{} encode reports another support or order", when));
}

// ---- Bounds ----------------------------------------------------------------------------------------------

// encode() itself detects writes past a bound.
uint64_t bounds(const subject& s) {
  return for_each_stream(s, [&](const wire_fields& fields, const encoded& e) {
    encode_how spare;
    spare.spare = true;
    const encoded wide = std::move(encode(s, fields, {e.in}, spare)[0]);
    if (wide.need.payload < e.need.payload || wide.need.encode_scratch < e.need.encode_scratch ||
        wide.need.decode_scratch < e.need.decode_scratch)
      fail(e, fmt::format("need decreases where count_max or in_max grows (payload {} to {}, scratch {} to {})",
                          e.need.payload, wide.need.payload, e.need.encode_scratch, wide.need.encode_scratch));
  });
}

uint64_t spare_bounds(const subject& s) {
  return for_each_stream(s, [&](const wire_fields& fields, const encoded& e) {
    encode_how spare;
    spare.spare = true;
    same(e, encode(s, fields, {e.in}, spare)[0], "where count_max or in_max is above what there is");
  });
}

uint64_t fixed_size(const subject& s) {
  if (!s.has(DR_FIXED_SIZE)) return 0;
  return for_each_stream(s, [&](const wire_fields&, const encoded& e) {
    if (e.payload.size() != e.need.payload)
      fail(e, fmt::format("a payload of {} bytes; with DR_FIXED_SIZE it has need.payload = {}", e.payload.size(),
                          e.need.payload));
  });
}

// encode() itself checks DR_TOTAL on every fault.
uint64_t total(const subject& s) {
  return s.has(DR_TOTAL) ? for_each_stream(s, [](const wire_fields&, const encoded&) {}) : 0;
}

uint64_t cost(const subject& s) {
  if (!s.codec->cpu->cost) return 0;
  return for_each_stream(s, [&](const wire_fields& fields, const encoded& e) {
    const uint64_t bytes = cost_of(s, fields, *e.in);
    if (bytes != e.payload.size())
      fail(e, fmt::format("cost returns {} bytes, but encode writes {}", bytes, e.payload.size()));
  });
}

// ---- Round trips -----------------------------------------------------------------------------------------

uint64_t round_trip(const subject& s) {
  const uint64_t n = for_each_stream(s, [&](const wire_fields& fields, const encoded& e) {
    const std::vector<uint8_t> decoded = decode_one(s, fields, e);
    const uint64_t expected = claim_of(s, e).out_capacity(s);
    if (decoded.size() != expected) fail(e, fmt::format("decode returns {} bytes of {}", decoded.size(), expected));
    if (const std::string d = difference(decoded, decode_one(s, fields, e, 0xff)); !d.empty())
      fail(e, "decode depends on the previous content of its memory: " + d);
    if (s.is(DR_ROLE_VALUE) && !s.has(DR_EXACT)) {
      const auto finite = [](std::span<const double> list) {
        return std::ranges::all_of(list, [](double v) { return std::isfinite(v); });
      };
      if (finite(cases::numbers(e.in->dtype, e.in->elements)) && !finite(cases::numbers(e.in->dtype, decoded)))
        fail(e, "finite values become NaN or infinite");
    }
  });
  if (n == 0) throw failure("encode rejects all inputs, or need requests more than 64 MB for all");
  return n;
}

uint64_t exact(const subject& s) {
  if (!s.has(DR_EXACT)) return 0;
  return for_each_stream(s, [&](const wire_fields& fields, const encoded& e) {
    std::vector<uint8_t> expected = e.in->elements;
    if (s.has(DR_REORDERS)) {
      const size_t size = cases::format_of(e.in->dtype).bytes;
      for (size_t j = 0; j < e.reported.size(); ++j)
        std::memcpy(&expected[size * j], &e.in->elements[size * e.reported[j]], size);
    }
    if (const std::string d = difference(expected, decode_one(s, fields, e)); !d.empty())
      fail(e, "DR_EXACT requires equal bits, but in the decoded stream " + d);
  });
}

uint64_t tell(const subject& s) {
  if (!s.tells()) return 0;
  return for_each_stream(s, [&](const wire_fields& fields, const encoded& e) {
    if (s.is(DR_ROLE_VALUE)) {
      std::vector<uint32_t> order = e.reported;
      std::ranges::sort(order);
      std::vector<uint32_t> all(e.in->count);
      std::iota(all.begin(), all.end(), 0);
      if (order != all) fail(e, "the reported order is not a permutation of the positions");
      return;
    }
    if (e.reported.empty()) fail(e, "encode reports no support, though it was requested");
    if (!s.has(DR_REPLACES_SUPPORT) && cases::bytes_of(e.reported) != e.in->elements)
      fail(e, "encode reports another support than its input, without DR_REPLACES_SUPPORT");
    if (std::ranges::adjacent_find(e.reported, std::greater_equal()) != e.reported.end() ||
        e.reported.back() >= e.in->universe)
      fail(e, "the reported support does not ascend below the universe");
    if (const std::string d = difference(cases::bytes_of(e.reported), decode_one(s, fields, e)); !d.empty())
      fail(e, "decode returns another support than encode reports: " + d);
  });
}

uint64_t any_order(const subject& s) {
  if (!s.has(DR_CARRIES_ORDER)) return 0;
  cases::random_source random("orders");
  return for_each_stream(s, [&](const wire_fields& fields, const encoded& e) {
    const std::vector<uint32_t> keys = cases::words(e.in->elements);
    const std::vector<uint32_t> order = random.permutation(static_cast<uint32_t>(keys.size()));
    std::vector<uint32_t> moved(keys.size());
    for (size_t j = 0; j < keys.size(); ++j) moved[j] = keys[order[j]];
    input in = *e.in;
    in.name += ", shuffled";
    in.elements = cases::bytes_of(moved);
    const encoded other = std::move(encode(s, fields, {&in})[0]);
    if (const std::string d = difference(in.elements, decode_one(s, fields, other)); !d.empty())
      fail(other, "DR_CARRIES_ORDER requires the original order of indices, but in the decoded stream " + d);
  });
}

// ---- The same bytes --------------------------------------------------------------------------------------

uint64_t repeatable(const subject& s) {
  return for_each_stream(s, [&](const wire_fields& fields, const encoded& e) {
    encode_how dirty;
    dirty.poison = 0xff;
    same(e, encode(s, fields, {e.in}, dirty)[0], "a second time, over other memory,");
    encode_how silent;
    silent.ask = false;
    if (encode(s, fields, {e.in}, silent)[0].payload != e.payload)
      fail(e, "encode writes another payload if no report is requested");
  });
}

// Several threads of a process encode and decode at once, in their own memory.
uint64_t threads(const subject& s) {
  std::vector<std::pair<wire_fields, encoded>> expected;
  const std::vector<input> inputs = inputs_of(s);
  for (const input& in : inputs) {
    wire_fields fields{};
    if (in.elements.size() > 40000 || !resolve(s, in, fields)) continue;
    if (encoded e = std::move(encode(s, fields, {&in})[0]); !e.refused()) expected.emplace_back(fields, std::move(e));
  }
  about("encode and decode in 4 threads at once");
  note("one of them");
  lending::off = true;
  std::mutex mutex;
  std::string failed;
  {
    std::vector<std::jthread> all;
    for (size_t t = 0; t < 4; ++t)
      all.emplace_back([&, t] {
        try {
          for (size_t i = 0; i < expected.size(); ++i) {
            const auto& [fields, e] = expected[(i + t * expected.size() / 4) % expected.size()];
            same(e, encode(s, fields, {e.in})[0], "while other threads encode");
            (void)decode_one(s, fields, e);
          }
        } catch (const failure& f) {
          const std::lock_guard lock(mutex);
          failed = f.what();
        }
      });
  }
  lending::off = false;
  if (!failed.empty()) throw failure(failed);
  return expected.size();
}

using group_key = std::pair<std::vector<uint32_t>, wire_fields>;

// Inputs that may be jobs of one call, with their results when alone.
template <class F>
uint64_t for_each_group(const subject& s, F&& f) {
  const std::vector<input> inputs = inputs_of(s);
  std::map<group_key, std::vector<encoded>> groups;
  uint64_t n = 0;
  for (const input& in : inputs) {
    wire_fields fields{};
    if (!resolve(s, in, fields)) continue;
    encoded e = std::move(encode(s, fields, {&in})[0]);
    if (e.refused()) continue;
    groups[{{in.dtype, in.width}, fields}].push_back(std::move(e));
    ++n;
  }
  for (const auto& [key, alone] : groups) f(key.second, alone);
  return n;
}

std::vector<const input*> inputs_in(const std::vector<encoded>& group) {
  std::vector<const input*> list;
  for (const encoded& e : group) list.push_back(e.in);
  return list;
}

uint64_t batches(const subject& s) {
  return for_each_group(s, [&](const wire_fields& fields, const std::vector<encoded>& alone) {
    for (const uint32_t workers : {1u, 4u}) {
      encode_how how;
      how.workers = workers;
      const char* const when = workers == 1 ? "among other jobs" : "among other jobs, with 4 workers,";
      const std::vector<encoded> made = encode(s, fields, inputs_in(alone), how);
      std::vector<std::unique_ptr<incoming>> streams;
      std::vector<incoming*> all;
      for (size_t i = 0; i < made.size(); ++i) {
        same(alone[i], made[i], when);
        all.push_back(streams.emplace_back(std::make_unique<incoming>(s, claim_of(s, made[i]), made[i].payload)).get());
      }
      decode(s, fields, all, workers);
      for (size_t i = 0; i < made.size(); ++i) {
        if (all[i]->fault.code != DR_OK) fail(made[i], fmt::format("{} decode refuses its payload", when));
        if (const std::string d = difference(decode_one(s, fields, made[i]), all[i]->decoded()); !d.empty())
          fail(made[i], fmt::format("{} decode returns something else: {}", when, d));
      }
    }
  });
}

// A payload may have any address in a frame.
uint64_t addresses(const subject& s) {
  return for_each_stream(s, [&](const wire_fields& fields, const encoded& e) {
    const std::vector<uint8_t> expected = decode_one(s, fields, e);
    for (size_t gap = 1; gap < 4; ++gap) {
      incoming stream(s, claim_of(s, e), e.payload, gap);
      incoming* const one[] = {&stream};
      decode(s, fields, one);
      if (stream.fault.code != DR_OK || !difference(expected, stream.decoded()).empty())
        fail(e, "decode returns something else if the payload is at another address");
    }
  });
}

uint64_t randomness(const subject& s) {
  return for_each_stream(s, [&](const wire_fields& fields, const encoded& e) {
    encode_how other_private, other_shared;
    other_private.private_key = 23;
    other_shared.shared_key = 12;
    if (!s.has(DR_PRIVATE_RANDOM))
      same(e, encode(s, fields, {e.in}, other_private)[0],
           "with another private_key, of which a codec without DR_PRIVATE_RANDOM knows nothing,");
    if (!s.has(DR_SHARED_RANDOM))
      same(e, encode(s, fields, {e.in}, other_shared)[0],
           "with another shared_key, of which a codec without DR_SHARED_RANDOM knows nothing,");
  });
}

// ---- Faults ----------------------------------------------------------------------------------------------

uint64_t faults(const subject& s) {
  return for_each_group(s, [&](const wire_fields& fields, const std::vector<encoded>& alone) {
    std::vector<const input*> inputs = inputs_in(alone);
    inputs.insert(inputs.begin(), inputs[0]);  // the first has a fault before the call
    encode_how how;
    how.fault = DR_E_PEER;
    const std::vector<encoded> made = encode(s, fields, inputs, how);
    if (made[0].fault.code != DR_E_PEER) fail(made[0], "encode does not leave a job alone that has a fault on entry");
    for (size_t i = 0; i < alone.size(); ++i) same(alone[i], made[i + 1], "beside a job with a fault");

    incoming first(s, claim_of(s, alone[0]), alone[0].payload);
    incoming second(s, claim_of(s, alone[0]), alone[0].payload);
    first.fault.code = DR_E_PEER;
    incoming* const both[] = {&first, &second};
    decode(s, fields, both, 1, 0x5a);
    if (first.fault.code != DR_E_PEER || std::ranges::any_of(first.out.bytes(), [](uint8_t b) { return b != 0x5a; }))
      fail(alone[0], "decode does not leave a job alone that has a fault on entry");
    if (second.fault.code != DR_OK || !difference(decode_one(s, fields, alone[0]), second.decoded()).empty())
      fail(alone[0], "beside a job with a fault decode returns something else");

    if (!s.has(DR_REPLACES_SUPPORT) || alone[0].reported.empty()) return;
    encode_how tight;
    tight.tell_capacity = alone[0].reported.size() - 1;
    if (encode(s, fields, {alone[0].in}, tight)[0].fault.code != DR_E_CAPACITY)
      fail(alone[0], "a support above tell_capacity is the fault CAPACITY");
  });
}

constexpr check operation_list[] = {
    {"bounds", "encode writes at most need.payload bytes, and only to its memory; need grows with its bounds", bounds},
    {"round trip", "decode returns as many elements as were encoded, repeatably, and finite ones for finite inputs",
     round_trip},
    {"exact", "DR_EXACT: every bit comes back", exact},
    {"tell", "encode reports the support or order that decode returns", tell},
    {"any order", "DR_CARRIES_ORDER: indices come back in the order they had", any_order},
    {"fixed size", "DR_FIXED_SIZE: payloads have need.payload bytes", fixed_size},
    {"total", "DR_TOTAL: encode never fails", total},
    {"cost", "cost is the size of the payload", cost},
    {"repeatable", "the same job yields the same bytes, whatever its memory held before", repeatable},
    {"spare bounds", "a bound above the count decides no byte", spare_bounds},
    {"threads", "threads that run the codec at once do not disturb one another", threads},
    {"batches", "a job yields the same alone and among others, for any number of workers", batches},
    {"addresses", "a payload lies at any address", addresses},
    {"randomness", "bytes depend on the keys that traits name, and on no other", randomness},
    {"faults", "a job with a fault is skipped, and the others go on", faults},
};

}  // namespace

std::span<const check> operation_checks() { return operation_list; }

std::string refusals(const subject& s) {
  size_t count = 0, all = 0;
  std::string first;
  for (const input& in : inputs_of(s)) {
    wire_fields fields{};
    if (!resolve(s, in, fields)) continue;
    ++all;
    const encoded e = std::move(encode(s, fields, {&in})[0]);
    if (e.refused() && count++ == 0)
      first = fmt::format("{}: {}", quoted(in), e.fault.message ? e.fault.message : "no message");
  }
  return count ? fmt::format("{} of {} inputs by {}; the first is {}", count, all, s.call, first) : "";
}

}  // namespace dr::plugin_test
