// Each trait has its check, so that the pipeline may trust it.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/registry.hpp"
#include "properties/harness.hpp"

namespace dr::properties {
namespace {

TEST_CASE("every built-in codec has a case with a plan and inputs") {
  for (size_t i = 0; i < codec_count(); ++i) {
    const dr_codec& codec = *codec_at(i);
    if (codec.role > DR_ROLE_BYTES || codec.traits & DR_PREFIX) continue;  // (tests/abi/block_frames.cpp)
    INFO(std::string(role_name(codec.role)) << "=" << std::string(codec.name));
    const auto has = [&](const cases::codec_case& c) {
      return c.role == codec.role && std::string(c.name) == codec.name && !c.plans.empty() && !c.inputs.empty();
    };
    CHECK(std::ranges::count_if(cases::all(), has) == 1);
  }
}

TEST_CASE("every plan of a case takes most of its inputs") {
  for (const subject& s : subjects()) {
    size_t taken = 0;
    for (const group& g : groups(s)) taken += g.inputs.size() - 1;
    INFO(s.text);
    // Of a small universe that is mostly support its filters would be larger than any may be, so keys go instead.
    const bool of_large_filters = s.text == std::string("bloom(fpr=1e-19)");
    CHECK((of_large_filters ? 3 : 4) * taken >= (of_large_filters ? 1 : 3) * s.described->inputs.size());
  }
}

TEST_CASE("FIXED_SIZE: the payload is as long as header and count say") {
  each_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (!s.has(DR_FIXED_SIZE)) return;
    CHECK(e.payload.size() == e.need.payload);
    dr_need need{.struct_size = sizeof(dr_need)};
    CHECK(need_of(s, fields, claim_of(s, in, e), need) == DR_OK);  // as decode knows it
    CHECK(e.payload.size() == need.payload);
  });
}

TEST_CASE("without REPLACES_SUPPORT an index codec reports what it was given; with it, not always") {
  std::map<std::string, bool> differs;
  each_stream([&](const subject& s, const wire_fields&, const input& in, const encoded& e) {
    if (s.is(DR_ROLE_INDEX)) differs[s.codec().name] |= cases::bytes_of(e.told) != in.elements;
  });
  for (const subject& s : subjects()) {
    INFO(s.text);
    if (s.is(DR_ROLE_INDEX)) CHECK(differs[s.codec().name] == s.has(DR_REPLACES_SUPPORT));
  }
}

TEST_CASE("REORDERS: it reports a permutation, and in that order values are where they were") {
  each_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (!s.has(DR_REORDERS)) return;
    REQUIRE(e.told.size() == in.count);
    std::vector<uint32_t> all(in.count);
    std::iota(all.begin(), all.end(), 0);
    REQUIRE(std::ranges::is_permutation(e.told, all));
    const auto before = cases::numbers(in.dtype, in.elements);
    const auto got = cases::numbers(in.dtype, decode_one(s, fields, claim_of(s, in, e), e.payload));
    std::vector<double> back(got.size());
    for (size_t j = 0; j < got.size(); ++j) back[e.told[j]] = got[j];
    CHECK(cases::squared_error(before, back) <= cases::squared_error(before, got));
  });
}

TEST_CASE("CARRIES_ORDER: keys come back in the order in which they were given") {
  cases::random_source random("keys");
  for (const subject& s : subjects()) {
    if (!s.has(DR_CARRIES_ORDER)) continue;
    for (group g : groups(s)) {
      std::vector<input> shuffled;
      for (const input* in : g.inputs) {
        const auto keys = cases::words(in->elements);
        std::vector<uint32_t> in_order(keys.size());
        const auto order = random.permutation(static_cast<uint32_t>(keys.size()));
        for (size_t j = 0; j < keys.size(); ++j) in_order[j] = keys[order[j]];
        shuffled.push_back(*in);
        shuffled.back().elements = cases::bytes_of(in_order);
      }
      for (size_t i = 0; i < shuffled.size(); ++i) g.inputs[i] = &shuffled[i];
      const auto made = encode(s, g);
      for (size_t i = 0; i < made.size(); ++i) {
        INFO(s.text << ": " << shuffled[i].name);
        const bool same =
            decode_one(s, g.fields, claim_of(s, shuffled[i], made[i]), made[i].payload) == shuffled[i].elements;
        CHECK(same);
      }
    }
  }
}

TEST_CASE("PRIVATE_RANDOM and SHARED_RANDOM: bytes depend on the keys that these name, and on no other") {
  struct seen {
    bool by_private = false, by_shared = false;
  };
  std::map<std::string, seen> changed;
  each_group([&](const subject& s, const group& g, const std::vector<encoded>& made) {
    encode_options other_private, other_shared;
    other_private.private_key = 23;
    other_shared.shared_key = 12;
    const auto with_private = encode(s, g, other_private), with_shared = encode(s, g, other_shared);
    for (size_t i = 0; i < made.size(); ++i) {
      changed[s.text].by_private |= with_private[i].payload != made[i].payload;
      changed[s.text].by_shared |= with_shared[i].payload != made[i].payload;
    }
  });
  std::map<std::string, bool> shared;
  for (const subject& s : subjects()) {
    INFO(s.text);
    // A plan may leave nothing to chance (one value a bucket); the default one may not.
    const bool by_chance = s.has(DR_PRIVATE_RANDOM) && s.text != s.described->plans[0] ? changed[s.text].by_private
                                                                                       : s.has(DR_PRIVATE_RANDOM);
    CHECK(changed[s.text].by_private == by_chance);
    if (!s.has(DR_SHARED_RANDOM)) CHECK(!changed[s.text].by_shared);
    shared[s.codec().name] |= changed[s.text].by_shared;
  }
  // One of a codec's plans at least draws (bloom: p1).
  for (const subject& s : subjects()) {
    INFO(s.text);
    if (s.has(DR_SHARED_RANDOM)) CHECK(shared[s.codec().name]);
  }
}

TEST_CASE("PRIVATE_RANDOM: what ranks draw averages out") {
  constexpr uint64_t ranks = 64;
  for (const subject& s : subjects()) {
    if (!s.is(DR_ROLE_VALUE) || !s.has(DR_PRIVATE_RANDOM)) continue;
    for (const group& g : groups(s))
      for (const input* in : g.inputs) {
        if (in->dtype != DR_F32 || in->width != 1 || !in->name.starts_with("laplace, f32 368")) continue;
        auto v = cases::numbers(in->dtype, in->elements);
        std::vector<double> one, mean(v.size());
        std::set<std::vector<uint8_t>> sent;
        for (uint64_t rank = 0; rank < ranks; ++rank) {
          encode_options options;
          options.private_key = 1000 + rank;
          const auto made = encode(s, {g.fields, {in}}, options);
          sent.insert(made[0].payload);
          one = cases::numbers(in->dtype, decode_one(s, g.fields, claim_of(s, *in, made[0]), made[0].payload));
          for (size_t i = 0; i < v.size(); ++i) mean[i] += one[i] / ranks;
        }
        INFO(s.text);
        if (sent.size() == 1 && s.text != s.described->plans[0]) continue;  // a plan without chance
        // ternary clips to its scale, which no rank draws, before it draws.
        if (std::string_view(s.codec().name) == "ternary") {
          const double scale = std::fabs(*std::max_element(
              one.begin(), one.end(), [](double a, double b) { return std::fabs(a) < std::fabs(b); }));
          for (double& x : v) x = std::clamp(x, -scale, scale);
        }
        CHECK(cases::squared_error(v, mean) <= cases::squared_error(v, one) / (ranks / 4));
      }
  }
}

TEST_CASE("NEEDS_FINITE: a value codec without it is given NaNs and infinities, one with it never") {
  for (const cases::codec_case& c : cases::all()) {
    if (c.role != DR_ROLE_VALUE) continue;
    const auto finite = [](const input& in) {
      if (cases::word_size(in.dtype) != cases::format_of(in.dtype).bytes) return true;  // no number of these types
      return std::ranges::all_of(cases::numbers(in.dtype, in.elements), [](double v) { return std::isfinite(v); });
    };
    INFO(std::string(c.name));
    CHECK(std::ranges::all_of(c.inputs, finite) == ((find_codec(c.role, c.name)->traits & DR_NEEDS_FINITE) != 0));
  }
}

TEST_CASE("every type that a value codec takes is among its inputs, and no other") {
  for (const cases::codec_case& c : cases::all()) {
    uint32_t given = 0;
    for (const input& in : c.inputs) given |= c.role == DR_ROLE_VALUE ? DR_DTYPE_BIT(in.dtype) : 0;
    INFO(std::string(c.name));
    CHECK(given == find_codec(c.role, c.name)->dtypes);
  }
}

TEST_CASE("LINEAR: payloads are arrays of the type, and add up") {
  each_stream([](const subject& s, const wire_fields& fields, const input& in, const encoded& e) {
    if (!s.has(DR_LINEAR) || in.dtype != DR_F32 || !in.name.starts_with("ascending")) return;
    const auto twice = [](std::span<const uint8_t> list) {
      std::vector<uint32_t> bits;
      for (const double v : cases::numbers(DR_F32, list)) bits.push_back(cases::bits_of(DR_F32, 2 * v));
      return cases::bytes_of(bits);
    };
    const bool same = decode_one(s, fields, claim_of(s, in, e), twice(e.payload)) == twice(in.elements);
    CHECK(same);
  });
}

TEST_CASE("TOTAL: whatever is given is coded, in the room that was asked for") {
  unsigned total = 0;
  for (const subject& s : every_subject()) {
    if (!s.has(DR_TOTAL)) continue;
    INFO(s.text);
    ++total;
    CHECK(!s.has(DR_NEEDS_FINITE | DR_REPLACES_SUPPORT));
    for (const group& g : groups(s))
      for (const input* in : g.inputs) {
        INFO(in->name);
        CHECK(encode(s, {g.fields, {in}}, {})[0].fault.code == DR_OK);
      }
  }
  CHECK(total >= 10);
}

TEST_CASE("a need never falls when the count grows: the workspace of a prepared decode relies on it") {
  for (const subject& s : subjects())
    for (const group& g : groups(s)) {
      const input& in = *g.inputs.back();
      for (const uint64_t universe : {in.universe, uint64_t{1}, uint64_t{300}, uint64_t{70000}, uint64_t{1} << 31}) {
        INFO(s.text << ", universe " << universe);
        const uint64_t end = s.is(DR_ROLE_BYTES) ? uint64_t{1} << 31 : universe;
        std::set<uint64_t> counts;
        for (uint64_t count = 0; count <= std::min<uint64_t>(end, 1500); ++count) counts.insert(count);
        for (uint64_t count = 1500; count <= end; count += count / 100) counts.insert(count);
        for (uint64_t below = 0; below <= std::min<uint64_t>(end, 50); ++below) counts.insert(end - below);
        dr_need most{};
        for (const uint64_t count : counts) {
          dr_need need{};
          if (need_of(s, g.fields, {universe, count, count, in.dtype, in.width, count}, need)) continue;
          CAPTURE(count);
          REQUIRE(need.payload >= most.payload);
          REQUIRE(need.decode_scratch >= most.decode_scratch);
          most = need;
        }
      }
    }
}

TEST_CASE("HOST_ONLY: there is no CUDA side") {
  for (const subject& s : subjects()) {
    INFO(s.text);
    CHECK((!s.has(DR_HOST_ONLY) || s.codec().cuda == nullptr));
  }
}

}  // namespace
}  // namespace dr::properties
