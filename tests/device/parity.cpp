// CUDA operations and the CPU's make the same bytes of the same elements, and the same elements or faults of the same bytes.
#include <algorithm>
#include <set>

#include "core/registry.hpp"
#include "device/whole.hpp"
#include "sweep.hpp"

namespace dr::device_tests {
namespace {

// Lanes and blocks in other orders; lanes in control flows of their own; blocks at the same time; the last two with jitter.
constexpr order orders[] = {{0},    {1},    {2},       {3},       {4},          {5},
                            {0, 4}, {1, 7}, {3, 0, 4}, {4, 3, 4}, {2, 5, 1, 9}, {5, 0, 4, 9}};
constexpr order few_orders[] = {{1}, {2, 4}};
// A third of the orders, under sanitizers a sixth, others the next time.
template <class F>
void some_orders(F&& f) {
  const size_t part = whole_sweep ? 1 : sanitized ? 6 : 3;
  static size_t turn = 0;
  for (size_t i = turn++ % part; i < std::size(orders); i += part) f(orders[i]);
}

template <class F>
void each_group(bool spare, F&& f) {
  for (const subject* s : subjects())
    for (const group& g : device_groups(*s, spare)) f(*s, g);
}
// REQUIRE would stop at the first codec that is wrong.
void expect_none(const std::string& wrong) {
  if (!wrong.empty()) FAIL_CHECK(wrong);
}

decode_call true_call(const subject& s, const group& g, const std::vector<encoded>& made, bool spare) {
  decode_call call{&s, g.fields, spare, {}};
  std::string wrong;
  for (size_t i = 0; i < made.size(); ++i)
    REQUIRE(add_item(call, claim_of(s, *g.inputs[i], made[i]), made[i].payload, wrong));
  expect_none(wrong);
  return call;
}

// Small inputs of a group, again and again.
group crowd_of(const group& g, size_t n) {
  std::vector<const input*> small;
  for (const input* in : g.inputs)
    if (in->elements.size() <= 300) small.push_back(in);
  if (small.empty())
    small.push_back(*std::ranges::min_element(g.inputs, {}, [](auto* in) { return in->elements.size(); }));
  group crowd{g.fields, {}};
  for (size_t i = 0; i < n; ++i) crowd.inputs.push_back(small[i % small.size()]);
  return crowd;
}

TEST_CASE("every codec with CUDA operations has cases here") {
  std::set<std::string> covered;
  for (const subject* s : subjects()) covered.insert(std::string(role_name(s->codec().role)) + "=" + s->codec().name);
  CHECK(!covered.empty());
  for (size_t i = 0; i < codec_count(); ++i)
    if (const dr_codec& c = *codec_at(i); c.cuda) CHECK(covered.count(std::string(role_name(c.role)) + "=" + c.name));
}

TEST_CASE("encode makes the CPU's payload and reports the same") {
  each_group(false, [](const subject& s, const group& g) {
    const encode_call call = make_encode_call(s, g);
    some_orders([&](const order& how) { expect_none(encode_differs(call, how)); });
  });
}

TEST_CASE("encode knows counts from device memory, below the bounds of the host") {
  each_group(true, [](const subject& s, const group& g) {
    properties::encode_options options;
    options.spare = true;
    const encode_call call = make_encode_call(s, g, options);
    for (const order& how : few_orders) expect_none(encode_differs(call, how));
  });
}

TEST_CASE("encode reports only on request, and has other keys' random numbers") {
  each_group(false, [](const subject& s, const group& g) {
    properties::encode_options options;
    options.ask = false;
    options.shared_key = 1;
    options.private_key = 0xfedcba9876543210;
    expect_none(encode_differs(make_encode_call(s, g, options), {2}));
  });
}

TEST_CASE("encode refuses to report more than there is room for") {
  size_t refused = 0;
  each_group(false, [&](const subject& s, const group& g) {
    if (!s.has(DR_REPLACES_SUPPORT)) return;
    const size_t told = properties::encode(s, g)[0].told.size();
    for (const size_t room : {size_t{0}, told / 2, told - 1, told}) {
      properties::encode_options options;
      options.tell_capacity = room;
      const encode_call call = make_encode_call(s, g, options);
      refused += call.expected[0].fault.code != DR_OK;
      for (const order& how : few_orders) expect_none(encode_differs(call, how));
    }
  });
  const bool replaces = std::ranges::any_of(subjects(), [](const subject* s) { return s->has(DR_REPLACES_SUPPORT); });
  CHECK((refused > 0) == replaces);
}

TEST_CASE("decode makes the same of the CPU's payload") {
  each_group(false, [](const subject& s, const group& g) {
    const decode_call call = true_call(s, g, properties::encode(s, g), false);
    some_orders([&](const order& how) { expect_none(decode_differs(call, how)); });
  });
}

TEST_CASE("decode knows counts and sizes from device memory, below the bounds of the host") {
  each_group(false, [](const subject& s, const group& g) {
    const decode_call call = true_call(s, g, properties::encode(s, g), true);
    for (const order& how : few_orders) expect_none(decode_differs(call, how));
  });
}

TEST_CASE("a call may have any number of jobs") {
  std::set<const dr_codec*> done;
  each_group(false, [&](const subject& s, const group& g) {
    if (!done.insert(&s.codec()).second) return;
    for (const size_t n : {1, 39, 41, 399, 401, 802}) {  // and two strangers
      const group crowd = crowd_of(g, n);
      const encode_call call = make_encode_call(s, crowd);
      expect_none(encode_differs(call, {1}));
      expect_none(decode_differs(true_call(s, crowd, call.expected, false), {1}));
    }
  });
}

TEST_CASE("400 jobs take as many launches as one, no more than promised") {
  each_group(false, [](const subject& s, const group& g) {
    const uint16_t(&most)[2] = s.codec().cuda->launches;
    for (const input* in : g.inputs) {
      INFO(s.text << ": " << in->name);
      const launch_counts one = launches_of(s, g.fields, *in, 1);
      CHECK(one.encode > 0);
      CHECK(one.encode <= most[0]);
      CHECK(one.decode > 0);
      CHECK(one.decode <= most[1]);
      for (const size_t n : {41, 400}) {
        const launch_counts many = launches_of(s, g.fields, *in, n);
        CHECK(many.encode == one.encode);
        CHECK(many.decode == one.decode);
      }
    }
  });
}

TEST_CASE("bounds are the CPU's, for any wire fields") {
  each_group(false, [](const subject& s, const group& g) {
    for (const input* in : g.inputs)
      for (size_t f = 0; f <= s.codec().field_count; ++f)
        for (const int extreme : {0, 1, 2, 3, 4}) {
          wire_fields fields = g.fields;
          if (f < s.codec().field_count) {
            const dr_field& field = s.codec().fields[f];
            const uint64_t values[] = {field.minimum, field.minimum + 1, field.fallback, field.maximum - 1,
                                       field.maximum};
            fields[f] = std::clamp(values[extreme], field.minimum, field.maximum);
          }
          const dr_params params{sizeof params, nullptr, fields.data()};
          dr_job job = shape_job({in->universe, in->count, s.is(DR_ROLE_VALUE) ? in->dtype : 0, in->width});
          job.in_max = in->elements.size();
          const auto wrong = need_differs(s, params, job);
          INFO(s.text << ": " << in->name);
          CHECK(wrong == "");
        }
  });
}

TEST_CASE("a rule of an older header has no fields behind its end, and no number of rows overflows one") {
  dr_size_rule rule{sizeof rule, 0, 0, 8, 5, 3, 0, 0, 1, 4};
  CHECK(dr_rule_size(&rule, 7) == 4 + 5);  // 21 values, five a byte
  rule.struct_size = offsetof(dr_size_rule, bucket_bytes);
  CHECK(dr_rule_size(&rule, 7) == 4 * 5);
  rule = {sizeof rule, 0, 0, 8, 1, ~0u, 0, 0, ~0u, ~0u};
  CHECK(dr_rule_size(&rule, ~0u) >= uint64_t{1} << 60);
  CHECK(dr_rule_size(&rule, 0) == ~0u);
}

TEST_CASE("whole plans make the CPU's frames, states, outputs and sums") {
  const auto calls = whole_calls();
  CHECK(!calls.empty());
  for (const whole_call& call : calls) some_orders([&](const order& how) { expect_none(call.differs(how)); });
}

// ---- Hostile payloads ------------------------------------------------------------------------------------

// Small enough that a flip matters. (A payload that one element makes is as good as one of thousands.)
bool is_small(const subject& s, const input& in) {
  return in.elements.size() <= 1200 * in.width && (!s.has(DR_REPLACES_SUPPORT) || in.universe <= 4096);
}

// Calls f(call, payload, claim) for every small stream, where f adds items to the call; then asks the device.
template <class F>
void attack(F&& f) {
  size_t refused = 0, taken = 0, n = 0;
  each_group(false, [&](const subject& s, const group& g) {
    const auto made = properties::encode(s, g);
    std::string wrong;
    // By fields, as only jobs of the same come together.
    std::vector<decode_call> calls;
    const auto call_of = [&](const wire_fields& fields, bool spare) -> decode_call& {
      for (decode_call& c : calls)
        if (c.fields == fields && c.spare == spare) return c;
      return calls.emplace_back(decode_call{&s, fields, spare, {}});
    };
    for (size_t i = 0; i + 1 < made.size(); ++i)
      if (is_small(s, *g.inputs[i]))
        f(s, claim_of(s, *g.inputs[i], made[i]), made[i].payload, g.fields,
          [&](const wire_fields& fields, const claim& says, std::vector<uint8_t> payload) {
            (void)add_item(call_of(fields, n++ % 3 == 0), says, std::move(payload), wrong);
          });
    expect_none(wrong);
    for (const decode_call& call : calls) {
      for (size_t begin = 0; begin < call.items.size(); begin += 150)
        expect_none(
            decode_differs(call, {static_cast<int32_t>(begin / 150 % 4), begin % 450 ? 0u : 3u}, begin, begin + 150));
      for (const decode_item& item : call.items) ++(item.verdict ? refused : taken);
    }
  });
  MESSAGE(refused << " payloads refused, " << taken << " taken");
}

TEST_CASE("of a payload with a flipped bit the device thinks as the CPU does") {
  cases::random_source random("flips on the device");
  attack([&](const subject&, const claim& says, const std::vector<uint8_t>& payload, const wire_fields& fields,
             auto&& add) {
    const size_t bits = 8 * payload.size();
    std::set<size_t> flips;
    for (size_t i = 0; i < std::min<size_t>(bits, 12); ++i) flips.insert({i, bits - 1 - i, random.below(bits)});
    for (const size_t bit : flips) {
      auto other = payload;
      other[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
      add(fields, says, std::move(other));
    }
  });
}

TEST_CASE("of a payload of any bytes and any length the device thinks as the CPU does") {
  cases::random_source random("garbage on the device");
  attack([&](const subject& s, const claim& says, const std::vector<uint8_t>& payload, const wire_fields& fields,
             auto&& add) {
    for (int round = 0; round < 12; ++round) {
      std::vector<uint8_t> bytes = payload;
      if (!s.has(DR_FIXED_SIZE))
        bytes.resize(round < 3 ? payload.size() + round - 1 : random.below(2 * payload.size() + 2));
      const uint64_t density =
          round < 3 ? 3 : random.below(4);  // all zeros, all ones, half, or the true bytes with holes
      for (uint8_t& b : bytes)
        if (density < 3)
          b = static_cast<uint8_t>(density == 0 ? 0 : density == 1 ? 0xff : random.below(256));
        else if (round >= 3 && random.below(8) == 0)
          b = static_cast<uint8_t>(random.below(256));
      add(fields, says, std::move(bytes));
    }
  });
}

TEST_CASE("a device and the CPU judge a false header alike") {
  attack([&](const subject& s, const claim& truth, const std::vector<uint8_t>& payload, const wire_fields& fields,
             auto&& add) {
    const auto try_it = [&](const wire_fields& other, const claim& lie) {
      // (Frames refuse the rest.)
      if (lie.count == 0 || std::max(lie.count, lie.support) > lie.universe || lie.universe > 0xffffffff) return;
      dr_need need{.struct_size = sizeof(dr_need)};
      std::vector<uint8_t> bytes = payload;
      if (properties::need_of(s, other, lie, need) == DR_OK && s.has(DR_FIXED_SIZE)) bytes.resize(need.payload, 0x55);
      add(other, lie, std::move(bytes));
    };
    for (const uint64_t universe : {truth.universe - 1, truth.universe, truth.universe + 1, 2 * truth.universe})
      for (const uint64_t count : {uint64_t{1}, truth.count - 1, truth.count, truth.count + 1, uint64_t{2000}})
        for (const int off : {-1, 0, 1}) {
          if (off && !s.has(DR_REPLACES_SUPPORT)) continue;
          claim lie = truth;
          lie.universe = s.is(DR_ROLE_ORDER) ? count : universe;
          lie.count = count;
          lie.support = s.has(DR_REPLACES_SUPPORT) ? truth.support + static_cast<uint64_t>(off) : count;
          try_it(fields, lie);
        }
    for (size_t f = 0; f < s.codec().field_count; ++f) {
      const dr_field& field = s.codec().fields[f];
      for (const uint64_t extreme : {field.minimum, field.minimum + 1, field.maximum}) {
        wire_fields other = fields;
        other[f] = std::min(extreme, field.maximum);
        try_it(other, truth);
      }
    }
  });
}

}  // namespace
}  // namespace dr::device_tests
