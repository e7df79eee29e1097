// What goes in comes out: values, supports, sizes.
#include <algorithm>

#include "properties/harness.hpp"
#include "stage/chain.hpp"

namespace dr::properties {
namespace {

TEST_CASE("an exact codec returns every bit") {
  each_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (!s.has(DR_EXACT)) return;
    const bool same = decode_one(s, fields, claim_of(s, in, e), e.payload) == in.elements;
    CHECK(same);
  });
}

TEST_CASE("a lossy value codec returns finite numbers, the same ones each time") {
  each_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (!s.is(DR_ROLE_VALUE) || s.has(DR_EXACT)) return;
    const auto once = decode_one(s, fields, claim_of(s, in, e), e.payload);
    const auto again = decode_one(s, fields, claim_of(s, in, e), e.payload, {1, 0xff});
    const bool same = once == again;
    CHECK(same);
    CHECK(std::ranges::all_of(cases::numbers(in.dtype, once), [](double v) { return std::isfinite(v); }));
  });
}

TEST_CASE("what an index codec reports is the support that decode gives, ascending and below the universe") {
  each_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (!s.is(DR_ROLE_INDEX)) return;
    const bool same = decode_one(s, fields, claim_of(s, in, e), e.payload) == cases::bytes_of(e.told);
    CHECK(same);
    CHECK(std::ranges::adjacent_find(e.told, std::greater_equal()) == e.told.end());
    CHECK(e.told.back() < in.universe);
  });
}

TEST_CASE("plain code written from the specification agrees") {
  each_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (!s.described->judge) return;
    const auto decoded = decode_one(s, fields, claim_of(s, in, e), e.payload);
    CHECK(s.described->judge({in, fields, e.payload, e.told, decoded}) == "");
  });
}

TEST_CASE("cost is the size of the payload; every built-in index codec that reads no base knows it") {
  pool serial(1);
  each_stream([&](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (!s.codec().cpu->cost) {
      CHECK((!s.is(DR_ROLE_INDEX) || s.has(DR_NEEDS_BASE)));
      return;
    }
    dr_job job = shape_job({in.universe, count_max_of(in, true), s.has_type() ? in.dtype : 0, 1});
    job.in = in.elements.data();
    job.in_max = in.elements.size();
    job.count = &in.count;
    dr_fault fault{.struct_size = sizeof(dr_fault)};
    job.fault = &fault;
    if (s.has(DR_NEEDS_BASE)) job.base = in.base.data();
    if (s.has(DR_NEEDS_HISTORY) && !in.history.empty()) job.history = in.history.data();
    const dr_params params{sizeof params, s.stage->values.data(), fields.data()};
    dr_need need{.struct_size = sizeof(dr_need)};
    REQUIRE(s.codec().cpu->need(&params, &job, 1, &need) == DR_OK);
    const guarded_bytes scratch(need.encode_scratch, 64);
    const dr_exec exec = stage_runner{scratch.data(), scratch.size(), &serial}.exec();
    uint64_t bytes = 0;
    CHECK(s.codec().cpu->cost(&exec, &params, &job, 1, &bytes) == DR_OK);
    CHECK(fault.code == DR_OK);
    CHECK(bytes == e.payload.size());
  });
}

TEST_CASE("a payload may lie at any address") {
  each_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    const claim says = claim_of(s, in, e);
    const auto expected = decode_one(s, fields, says, e.payload);
    std::vector<std::unique_ptr<incoming>> streams;
    for (size_t gap = 1; gap < 4; ++gap) streams.push_back(std::make_unique<incoming>(s, says, e.payload, gap));
    streams.push_back(std::make_unique<incoming>(s, says, e.payload, 0, placement::front));
    std::vector<incoming*> all;
    for (const auto& stream : streams) all.push_back(stream.get());
    const bool inside = decode(s, fields, all);
    CHECK(inside);
    CHECK(std::ranges::all_of(
        all, [&](incoming* o) { return o->fault.code == DR_OK && std::ranges::equal(o->decoded(), expected); }));
  });
}

// encode() itself refuses a payload beyond need.payload, for either.
TEST_CASE("a bound above the count decides no byte") {
  const auto with_spare = [](const subject& s, const group& g, const std::vector<encoded>& made) {
    const auto exact = encode(s, g);
    for (size_t i = 0; i < made.size(); ++i) {
      INFO(s.text << ": " << g.inputs[i]->name);
      CHECK(made[i].fault.code == DR_OK);
      CHECK(made[i].need.payload >= exact[i].need.payload);
      const bool same = made[i].payload == exact[i].payload && made[i].told == exact[i].told;
      CHECK(same);
    }
  };
  each_group(with_spare, true);
}

}  // namespace
}  // namespace dr::properties
