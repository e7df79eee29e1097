// The tool's model of a link runs the library's exchange dry. Here are closed forms of it, derived by hand, which add up
// what the programs overlap: exact for a gather, near for the others.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "tool/compare/link_model.hpp"

using namespace dr::compare;

namespace {

// A frame has a 50th of the dense bytes; times are proportional to elements and frames.
step_costs costs_of(uint32_t ranks, double decode_ns) {
  step_costs c;
  c.elements = 4000000;
  c.encode_ns = 3e6;
  c.merge_ns = ranks * decode_ns;
  c.frame_bytes = 4 * c.elements / 50;
  c.dense_bytes = 4 * c.elements;
  return c;
}

double time_of(double bytes, const dr::predict::link& l) { return 8e9 * bytes / l.bits_per_second; }

double by_hand(const step_costs& plan, const std::string& stage, uint32_t ranks, const dr::predict::link& l) {
  const double n = ranks, e = plan.encode_ns, t = time_of(plan.frame_bytes, l), decode = plan.merge_ns / n;
  const double g = plan.sum_growth, latency = l.latency_ns, agreement = latency + (n - 1) * time_of(256, l);
  if (stage == "exchange=owner")
    return e + latency + (n - 1) * t / n + plan.merge_ns / n + e / n + latency + (n - 1) * g * t / n + decode * g +
           agreement;
  if (stage == "exchange=ring") return e + (n - 1) * (decode / n + 2 * latency + 2 * t / n) + decode * g + agreement;
  if (stage.starts_with("exchange=hierarchy")) {
    const double inner = std::min(4.0, n), hosts = std::ceil(n / inner);
    const double below = inner > 1 ? 2 * latency + (inner - 1) * time_of(plan.dense_bytes, l) : 0;
    return below + e + (hosts > 1 ? latency : 0) + (hosts - 1 + (inner - 1) * hosts) * t + decode * hosts + agreement;
  }
  return e + latency + (n - 1) * t + plan.merge_ns + agreement;
}

}  // namespace

TEST_CASE("a modelled step is what its parts add up to, less what the program overlaps") {
  for (const char* link_text : {"100Mb/s", "10Gb/s,50us", "1Tb/s,5ms"})
    for (const uint32_t ranks : {2, 4, 8, 12})
      for (const char* stage : {"", "exchange=owner", "exchange=ring", "exchange=hierarchy(inner=4)"}) {
        CAPTURE(std::string(link_text));
        CAPTURE(ranks);
        CAPTURE(std::string(stage));
        const dr::predict::link l = parse_link(link_text);
        const step_costs c = costs_of(ranks, 4e5);
        const double modelled = step_ns(c, stage, ranks, l), sum = by_hand(c, stage, ranks, l);
        CHECK(modelled <= sum / 0.97);
        CHECK(modelled >= sum / 1.5);
      }
}

TEST_CASE("a gather's step is exact but for rounding") {
  for (const uint32_t ranks : {2, 5, 16, 1024}) {
    CAPTURE(ranks);
    const step_costs c = costs_of(ranks, 3e5);
    const dr::predict::link l = parse_link("1Gb/s,20us");
    CHECK(step_ns(c, "", ranks, l) == doctest::Approx(by_hand(c, "", ranks, l)).epsilon(1e-6));
  }
}

TEST_CASE("pays_below is where the exchange and a dense ring take the same time") {
  for (const char* stage : {"", "exchange=owner", "exchange=owner(parts=4)", "exchange=ring"})
    for (const uint32_t ranks : {2, 8, 64}) {
      CAPTURE(std::string(stage));
      CAPTURE(ranks);
      const step_costs c = costs_of(ranks, 2e5);
      const double speed = pays_below(c, stage, c.dense_bytes, ranks);
      if (ranks * c.frame_bytes >= 2 * c.dense_bytes && !*stage) {
        CHECK(speed == 0);
        continue;
      }
      REQUIRE(speed > 0);
      const auto gain = [&](double rate) {
        return ring_ns(c.dense_bytes, ranks, {rate, 0}) - step_ns(c, stage, ranks, {rate, 0});
      };
      CHECK(gain(speed * 0.999) > 0);
      CHECK(gain(speed * 1.001) < 0);
    }
}

TEST_CASE("frames that are no smaller pay at no speed") {
  step_costs c = costs_of(8, 1e5);
  c.frame_bytes = c.dense_bytes / 3;
  CHECK(pays_below(c, "", c.dense_bytes, 8) == 0);
  CHECK(pays_below(c, "exchange=owner", c.dense_bytes, 8) > 0);
}

TEST_CASE("a hierarchy's members send dense tensors") {
  const step_costs c = costs_of(4, 1e5);
  const dr::predict::link l = parse_link("1Gb/s");
  CHECK(step_ns(c, "exchange=hierarchy(inner=4)", 4, l) > 3 * time_of(c.dense_bytes, l));
}

TEST_CASE("what the model cannot take is not a number") {
  const step_costs c = costs_of(1000, 1e5);
  const dr::predict::link l = parse_link("1Gb/s");
  CHECK(std::isnan(step_ns(c, "exchange=hierarchy(inner=4)", 1000, l)));
  CHECK(std::isnan(pays_below(c, "exchange=hierarchy(inner=4)", c.dense_bytes, 1000)));
  CHECK(std::isfinite(step_ns(c, "exchange=owner", 1000, l)));
}

TEST_CASE("a ring sends 2 (n - 1) / n of a tensor") {
  CHECK(ring_ns(1e6, 4, {8e9, 0}) == doctest::Approx(1.5e6));
  CHECK(ring_ns(1e6, 4, {8e9, 1000}) == doctest::Approx(1.506e6));
}

TEST_CASE("links are read with their units") {
  CHECK(parse_link("10Gb/s").bits_per_second == 10e9);
  CHECK(parse_link("10 Gbit/s").bits_per_second == 10e9);
  CHECK(parse_link("25e9b/s").bits_per_second == 25e9);
  CHECK(parse_link("1.5Tbps").bits_per_second == 1.5e12);
  CHECK(parse_link("800kb/s").bits_per_second == 800e3);
  CHECK(parse_link("800Kb/s").bits_per_second == 800e3);
  CHECK(parse_link("125MB/s").bits_per_second == 1e9);
  CHECK(parse_link("10Gb/s").latency_ns == 0);
  CHECK(!parse_link("10Gb/s").has_latency);
  CHECK(parse_link("100Mbit/s,50us").latency_ns == 50000);
  CHECK(parse_link("1Gb/s,0.5ms").latency_ns == 500000);
  CHECK(parse_link("1Gb/s,20µs").latency_ns == 20000);
  CHECK(parse_link("1Gb/s,0s").latency_ns == 0);
  for (const char* wrong : {"", "fast", "0Gb/s", "-1Gb/s", "10Gx/s", "10G", "infGb/s", "nan", "1e999", "10Gb/s,", "10",
                            "1e308Gb/s", "10Gb/s,1e308s", "10Gb/s,5", "10Gb/s,5parsec", "10Gb/s,-5us", "10Gb/s 5us"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_link(wrong), std::invalid_argument);
  }
}
