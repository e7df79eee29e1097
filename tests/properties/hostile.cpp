// Bytes off the wire may be anything: decode refuses them as corrupt or makes something in range of them, in bounded time,
// and reads and writes nothing outside. Of a codec of FIXED_SIZE the pipeline knows the size; its payloads have that.
#include <algorithm>
#include <chrono>

#include "properties/changing_bytes.hpp"
#include "properties/harness.hpp"
#include "stage/chain.hpp"
#include "sweep.hpp"

namespace dr::properties {
namespace {

// What is wrong with a decode, "" if nothing. Whether keys ascend or positions are a permutation, the pipeline judges.
std::string complaint(const subject& s, const incoming& o, bool inside) {
  if (!inside) return "it left its memory";
  if (o.fault.code)
    return o.fault.code == DR_E_CORRUPT ? "" : "a fault that is not CORRUPT: " + std::to_string(o.fault.code);
  if (s.is(DR_ROLE_BYTES)) return "";
  if (o.out_size != o.out.size())
    return "it gives " + std::to_string(o.out_size) + " bytes of " + std::to_string(o.out.size());
  if (s.has(DR_NEEDS_FINITE) &&
      std::ranges::any_of(cases::numbers(o.says.dtype, o.decoded()), [](double v) { return std::isnan(v); }))
    return "finite numbers become NaN";
  if (!s.is(DR_ROLE_INDEX)) return "";
  const auto indices = cases::words(o.decoded());
  if (std::ranges::any_of(indices, [&](uint32_t i) { return i >= o.says.universe; }))
    return "an index is not below the universe";
  if (!s.has(DR_CARRIES_ORDER) && std::ranges::adjacent_find(indices, std::greater_equal()) != indices.end())
    return "indices do not ascend";
  return "";
}

std::string attack(const subject& s, const wire_fields& fields, incoming& stream) {
  incoming* const one[] = {&stream};
  stream.fault = {};
  const bool inside = decode(s, fields, one);
  return complaint(s, stream, inside);
}

std::string attack(const subject& s, const wire_fields& fields, const claim& says, std::span<const uint8_t> payload) {
  incoming stream(s, says, payload);
  return attack(s, fields, stream);
}

// Small enough to try everything. (Codecs that replace the support look at the whole universe.)
bool is_small(const subject& s, const input& in) {
  if (in.name == cases::figure_8) return s.text == s.described->plans[0];
  return in.elements.size() <= 64 * 4 * in.width && (!s.has(DR_REPLACES_SUPPORT) || in.universe <= 4096);
}

template <class F>
void each_small_stream(F&& f) {
  each_stream([&](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (is_small(s, in)) f(s, fields, in, e);
  });
}

// A payload of the size that the pipeline would hand over for such a claim: what there is, again and again.
std::vector<uint8_t> fitted(const subject& s, const wire_fields& fields, const claim& says,
                            std::span<const uint8_t> payload) {
  dr_need need{.struct_size = sizeof(dr_need)};
  REQUIRE(need_of(s, fields, says, need) == DR_OK);
  std::vector<uint8_t> out(payload.begin(), payload.end());
  if (s.has(DR_FIXED_SIZE)) out.resize(need.payload);
  for (size_t i = payload.size(); i < out.size(); ++i) out[i] = payload.empty() ? 0xff : payload[i % payload.size()];
  return out;
}

TEST_CASE("any bit of a payload may flip") {
  size_t refused = 0, flips = 0;
  each_small_stream([&](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    incoming stream(s, claim_of(s, in, e), e.payload);
    for (size_t bit = 0; bit < 8 * e.payload.size(); bit += whole_sweep ? 1 : sanitized ? 23 : 13) {
      const auto mask = static_cast<uint8_t>(1u << bit % 8);
      stream.in.data()[bit / 8] ^= mask;
      if (const auto wrong = attack(s, fields, stream); !wrong.empty()) FAIL_CHECK("bit " << bit << ": " << wrong);
      // An exact codec that takes other bytes for the same elements overlooks some: padding, say.
      // (But magnitude says how a class is coded, and few ranks may have the same bits by two codes. And a map may have
      // grades of words that there are not.)
      const bool may_say_it_twice = (s.is(DR_ROLE_INDEX) && s.has(DR_NEEDS_BASE)) || s.has(DR_NEEDS_HISTORY);
      if (s.has(DR_EXACT) && !s.is(DR_ROLE_BYTES) && !may_say_it_twice && stream.fault.code == DR_OK &&
          std::ranges::equal(stream.decoded(), in.elements))
        FAIL_CHECK("bit " << bit << " makes no difference");
      stream.in.data()[bit / 8] ^= mask;
      refused += stream.fault.code != DR_OK;
      ++flips;
    }
  });
  CHECK(refused > flips / 100);
}

// A decoder of ours uses up its payload. (Of one of fixed size the pipeline sees to it: the last test here.)
TEST_CASE("a payload that ends early, or continues by a byte, is refused") {
  each_small_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (s.has(DR_FIXED_SIZE)) return;
    const auto check = [&](std::span<const uint8_t> other) {
      incoming stream(s, claim_of(s, in, e), other);
      const auto wrong = attack(s, fields, stream);
      if (!wrong.empty() || stream.fault.code == DR_OK)
        FAIL_CHECK(other.size() << " of " << e.payload.size() << " bytes: taken " << wrong);
    };
    for (size_t size = 0; size < e.payload.size(); ++size) check(std::span(e.payload).first(size));
    auto longer = e.payload;
    longer.push_back(0);
    for (const uint8_t last : {0x00, 0x01, 0x80, 0xff}) {
      longer.back() = last;
      check(longer);
    }
  });
}

TEST_CASE("a payload may be any bytes") {
  cases::random_source random("garbage");
  each_small_stream([&](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    const claim says = claim_of(s, in, e);
    for (int round = 0; round < 40; ++round) {
      std::vector<uint8_t> bytes(s.has(DR_FIXED_SIZE) ? e.payload.size() : random.below(2 * e.payload.size() + 2));
      const uint64_t density = random.below(4);  // all zeros, all ones, half, or the true bytes with a hole
      for (uint8_t& b : bytes) b = static_cast<uint8_t>(density == 0 ? 0 : density == 1 ? 0xff : random.below(256));
      if (density == 3)
        for (size_t i = 0; i < std::min(bytes.size(), e.payload.size()); ++i)
          if (random.below(8)) bytes[i] = e.payload[i];
      if (const auto wrong = attack(s, fields, says, bytes); !wrong.empty())
        FAIL_CHECK("round " << round << ": " << wrong);
    }
  });
}

TEST_CASE("wire fields may be at their extremes") {
  each_small_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    const claim says = claim_of(s, in, e);
    const dr_codec& codec = s.codec();
    for (size_t f = 0; f < codec.field_count; ++f) {
      const dr_field& field = codec.fields[f];
      for (const uint64_t extreme :
           {field.minimum, field.minimum + 1, field.fallback, field.maximum - 1, field.maximum}) {
        if (extreme < field.minimum || extreme > field.maximum) continue;
        wire_fields other = fields;
        other[f] = extreme;
        dr_need need{.struct_size = sizeof(dr_need)};
        const dr_status status = need_of(s, other, says, need);
        INFO(std::string(field.name) << "=" << extreme);
        if (status != DR_OK)
          CHECK(status == DR_E_CORRUPT);  // the gate for headers that do not fit
        else
          CHECK(attack(s, other, says, fitted(s, other, says, e.payload)) == "");
      }
    }
  });
}

TEST_CASE("count, support and universe may be false") {
  each_small_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (s.is(DR_ROLE_BYTES)) return;
    const claim truth = claim_of(s, in, e);
    const uint64_t far = s.has(DR_REPLACES_SUPPORT) ? 70000 : cases::largest_universe;
    for (const uint64_t universe : {uint64_t{1}, truth.universe / 2, truth.universe - 1, truth.universe,
                                    truth.universe + 1, 2 * truth.universe, far})
      for (const uint64_t count : {uint64_t{1}, truth.count / 2, truth.count - 1, truth.count, truth.count + 1,
                                   2 * truth.count, uint64_t{20000}})
        for (const int off : {-1, 0, 1}) {
          claim lie = truth;
          lie.universe = s.is(DR_ROLE_ORDER) ? count : universe;
          lie.count = lie.support = count;
          if (s.has(DR_REPLACES_SUPPORT))
            lie.support += static_cast<uint64_t>(off);
          else if (off)
            continue;
          // What the frame's reader lets through.
          dr_need need{.struct_size = sizeof(dr_need)};
          if (count == 0 || std::max(count, lie.support) > lie.universe || need_of(s, fields, lie, need) != DR_OK)
            continue;
          // (A bitmap of the largest universe is half a gigabyte.)
          if (need.payload > 1 << 24 || lie.base_size(s) > 1 << 22) continue;
          INFO(universe << " rows, count " << count << ", support " << lie.support);
          CHECK(attack(s, fields, lie, fitted(s, fields, lie, e.payload)) == "");
        }
  });
}

TEST_CASE("decode of a hostile payload ends") {
  using clock = std::chrono::steady_clock;
  constexpr uint64_t count = 1 << 20;
  constexpr auto hang = std::chrono::seconds(20);  // measured: well below a second without sanitizers
  cases::random_source random("time");
  for (const subject& s : subjects()) {
    const group g = groups(s).front();
    const input& in = *g.inputs[0];
    claim says{s.is(DR_ROLE_ORDER) ? count : 2 * count, count, count, in.dtype, 1, count, in.base, in.history};
    dr_need need{.struct_size = sizeof(dr_need)};
    if (need_of(s, g.fields, says, need) != DR_OK) continue;
    INFO(s.text);
    for (const int kind : {0x00, 0x01, 0xff, 0x100}) {
      std::vector<uint8_t> bytes(need.payload);
      for (uint8_t& b : bytes)
        b = static_cast<uint8_t>(kind == 0x100 ? random.below(256) : static_cast<uint64_t>(kind));
      const auto begin = clock::now();
      CHECK(attack(s, g.fields, says, bytes) == "");
      CHECK(clock::now() - begin < hang);
    }
  }
}

// Of a codec of fixed size in front of a bytes stage, which may give anything.
TEST_CASE("a bytes stage that yields another size than the codec before it writes is refused") {
  const auto deflates = [](const subject& s) { return s.is(DR_ROLE_BYTES); };
  const subject& bytes = *std::ranges::find_if(every_subject(), deflates);
  pool serial(1);
  each_small_stream([&](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (!s.has(DR_FIXED_SIZE) || e.payload.empty()) return;
    const claim says = claim_of(s, in, e);
    stage_list list;
    list.stages[0] = {s.stage->codec, nullptr, fields};
    list.stages[1] = {bytes.stage->codec, nullptr, {}};
    list.count = 2;
    stream_slot slot;
    REQUIRE(list_needs(list, {says.universe, says.count, says.dtype, says.width}, slot.need) == DR_OK);
    for (const size_t size : {size_t{0}, e.payload.size() / 2, e.payload.size() - 1, e.payload.size(),
                              e.payload.size() + 1, 2 * e.payload.size()}) {
      auto inner = e.payload;
      inner.resize(size, 0);
      const input raw{"", 0, 0, 0, 1, inner};
      const auto outer = encode(bytes, {{}, {&raw}});
      incoming stream(s, says, outer[0].payload);
      const guarded_bytes between(slot.need.payload[0], 16), scratch(slot.need.decode_scratch, 64);
      slot.buffer[0] = between.data();
      slot.data = stream.in.data();
      slot.size = stream.in.size();
      dr_job job = shape_job({says.universe, says.count, says.dtype, says.width}), behind;
      job.out = stream.out.data();
      job.out_capacity = stream.out.size();
      job.out_size = &stream.out_size;
      job.fault = &stream.fault;
      stream_slot* const slots[] = {&slot};
      dr_status status = DR_OK;
      broken_contract broken;
      const bool inside = stays_inside([&] {
        status = decode_chain(list, {scratch.data(), (scratch.size() + 63) / 64 * 64, &serial},
                              {&job, &behind, const_cast<stream_slot**>(slots), 1}, broken);
      });
      INFO(size << " bytes of " << e.payload.size());
      CHECK(inside);
      CHECK(status == DR_OK);
      const bool intact = between.intact() && stream.out.intact();
      CHECK(intact);
      CHECK(stream.fault.code == (size == e.payload.size() ? DR_OK : DR_E_CORRUPT));
    }
  });
}

// A frame in memory that others write to: what was judged may be something else when it is read again. Then any result will do that
// a payload could give; memory stays sound. (zlib and zstd read as they do.)
TEST_CASE("a payload may change while it is read") {
  guarded_bytes two(8);
  size_t changes = 0;
  bool works = false;
  {
    two.fill(0);
    const changing_bytes changing(two, 8, [&] { two.data()[0] = static_cast<uint8_t>(++changes); });
    const auto* const seen = static_cast<const volatile uint8_t*>(two.data());
    stays_inside([&] {
      const int first = seen[0], second = seen[0];
      works = first == 1 && second == 2;
    });
  }
  if (!works) {
    MESSAGE("skipped: nothing here shows single reads of memory");
    return;
  }
  cases::random_source random("changes");
  size_t reads = 0;
  for (const subject& s : every_subject()) {
    if (s.codec().name == std::string("deflate") || s.codec().name == std::string("zstd")) continue;
    for (const group& g : groups(s)) {
      size_t looked_at = 0;
      const auto made = encode(s, g);
      for (size_t i = 0; i + 1 < made.size() && looked_at < 2; ++i) {
        const input& in = *g.inputs[i];
        const size_t size = made[i].payload.size();
        if (size < 4 || size > 300 || in.universe > 70000 || random.below(3)) continue;
        ++looked_at;
        for (const uint64_t rarely : {2, 8, 24}) {
          incoming stream(s, claim_of(s, in, made[i]), made[i].payload);
          incoming* const one[] = {&stream};
          auto other = made[i].payload;
          for (uint8_t& b : other)
            if (random.below(3) == 0) b = static_cast<uint8_t>(random.below(2) ? 0xff : random.below(256));
          bool inside = false;
          {
            changing_bytes changing(stream.in, 100,
                                    [&] { stream.in.fill(random.below(rarely) ? made[i].payload : other); });
            inside = decode(s, g.fields, one);
            reads += changing.reads();
          }
          INFO(s.text << ": " << in.name);
          if (const auto wrong = complaint(s, stream, inside); !wrong.empty()) FAIL_CHECK(wrong);
        }
      }
    }
  }
  CHECK(reads > 10000);
}

}  // namespace
}  // namespace dr::properties
