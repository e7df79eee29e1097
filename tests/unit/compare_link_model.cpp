// The tool's model of a link: its formulas give the time that the library's own exchange takes under a virtual clock.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/compare/link_model.hpp"
#include "deepreduce/deepreduce.hpp"
#include "deepreduce/exchange.h"

using namespace dr::compare;

namespace {

constexpr uint64_t elements = 4000000;

// A frame has a 50th of the dense bytes; times are proportional to elements and frames.
struct machine {
  uint32_t ranks;
  step_costs costs;
  bool members = false;  // ranks of a host: their gradients go to one of them as they are, which costs nothing
};

uint64_t frame_size(void* user, uint64_t part, uint32_t) {
  const auto& m = *static_cast<machine*>(user);
  return static_cast<uint64_t>(m.costs.frame_bytes * static_cast<double>(part) / elements);
}

uint64_t cost(void* user, uint32_t, uint32_t step, uint64_t part, uint64_t bytes) {
  const auto& m = *static_cast<machine*>(user);
  const double share = static_cast<double>(part) / elements;
  if (m.members && (step == DR_STEP_ENCODE || step == DR_STEP_SUM)) return 0;
  switch (step) {
    case DR_STEP_ENCODE:
    case DR_STEP_ENCODE_SUM: return static_cast<uint64_t>((m.costs.sparsify_ns + m.costs.encode_ns) * share);
    case DR_STEP_SUM:
    case DR_STEP_MERGE:
      return static_cast<uint64_t>(m.costs.decode_ns * static_cast<double>(bytes) / m.costs.frame_bytes);
    default: return 0;
  }
}

template <class T, void (*destroy)(T*)>
struct destroyer {
  void operator()(T* x) const { destroy(x); }
};
using loopback_handle = std::unique_ptr<dr_loopback, destroyer<dr_loopback, dr_loopback_destroy>>;
using exchange_handle = std::unique_ptr<dr_exchange, destroyer<dr_exchange, dr_exchange_destroy>>;

// The last rank's virtual clock after a dry exchange.
double exchange_ns(const std::string& stage, machine& m, const dr::compare::link& l) {
  auto options = dr::sized<dr_loopback_options>();
  options.ranks = m.ranks;
  options.latency_ns = static_cast<uint64_t>(l.latency_ns);
  options.bytes_per_second = l.bits_per_second / 8;
  options.cost = cost;
  options.cost_user = &m;
  dr_loopback* made = nullptr;
  REQUIRE(dr_loopback_create(&options, &made, nullptr) == DR_OK);
  const loopback_handle net(made);
  const dr::plan plan("sparsify=topr(ratio=0.01) index=golomb value=raw " + stage);
  std::vector<dr::context> contexts(m.ranks);
  std::vector<exchange_handle> exchanges;
  std::vector<dr_exchange*> list;
  auto how = dr::sized<dr_exchange_options>();
  how.flags = DR_EXCHANGE_DRY;
  how.timeout_ns = uint64_t{1} << 50;
  how.frame_size = frame_size;
  how.frame_size_user = &m;
  float nothing = 0;  // a model's tensors have sizes only
  dr_tensor in = dr::dense(DR_F32, &nothing, elements);
  std::vector<dr_tensor_out> outs(m.ranks, dr::dense_out(DR_F32, &nothing, elements));
  for (uint32_t i = 0; i < m.ranks; ++i) {
    auto transport = dr::sized<dr_transport>();
    REQUIRE(dr_loopback_transport(net.get(), i, &transport) == DR_OK);
    dr_exchange* x = nullptr;
    const dr_status s = dr_exchange_create(contexts[i].get(), plan.get(), &transport, &how, &in, sizeof in, &outs[i],
                                           sizeof(dr_tensor_out), 1, &x);
    INFO(std::string(dr_last_error(contexts[i].get())->message));
    REQUIRE(s == DR_OK);
    exchanges.emplace_back(x);
    list.push_back(x);
    REQUIRE(dr_exchange_start(x, nullptr) == DR_OK);
  }
  REQUIRE(dr_loopback_run(net.get(), list.data(), nullptr) == DR_OK);
  uint64_t last = 0;
  for (uint32_t i = 0; i < m.ranks; ++i) last = std::max(last, dr_loopback_now(net.get(), i));
  return static_cast<double>(last);
}

machine machine_of(uint32_t ranks, double decode_ns) {
  step_costs c;
  c.sparsify_ns = 2e6, c.encode_ns = 1e6, c.decode_ns = decode_ns;
  c.merge_ns = ranks * decode_ns;
  c.frame_bytes = 4 * elements / 50;
  c.dense_bytes = 4 * elements;
  return {ranks, c};
}

}  // namespace

TEST_CASE("a modelled step takes as long as the exchange under a virtual clock") {
  for (const char* link_text : {"100Mb/s", "10Gb/s,50us", "1Tb/s,5ms"})
    for (const uint32_t ranks : {2, 4, 8, 12})
      for (const char* stage : {"", "exchange=owner", "exchange=ring", "exchange=hierarchy(inner=4)"}) {
        CAPTURE(std::string(link_text));
        CAPTURE(ranks);
        CAPTURE(std::string(stage));
        const dr::compare::link l = parse_link(link_text);
        machine m = machine_of(ranks, 4e5);
        m.members = read_schedule(stage).kind == schedule::hierarchy;
        if (m.members) m.costs.dense_bytes = m.costs.frame_bytes;  // (a dry run has one size of frames)
        const double modelled = step_ns(m.costs, read_schedule(stage), ranks, l);
        // Parts of the exchange overlap where the formulas add them up; so the model is never much faster.
        const double real = exchange_ns(stage, m, l);
        CHECK(modelled >= 0.97 * real);
        CHECK(modelled <= 1.35 * real);
      }
}

TEST_CASE("a gather's formula is exact but for rounding") {
  for (const uint32_t ranks : {2, 5, 16}) {
    CAPTURE(ranks);
    machine m = machine_of(ranks, 3e5);
    const dr::compare::link l = parse_link("1Gb/s,20us");
    CHECK(step_ns(m.costs, {}, ranks, l) == doctest::Approx(exchange_ns("", m, l)).epsilon(1e-3));
  }
}

TEST_CASE("pays_below is where a gather and a dense ring take the same time") {
  for (const uint32_t ranks : {2, 8, 64}) {
    CAPTURE(ranks);
    const step_costs c = machine_of(ranks, 2e5).costs;
    const double speed = pays_below(c, c.dense_bytes, ranks);
    if (ranks * c.frame_bytes >= 2 * c.dense_bytes) {
      CHECK(speed == 0);
      continue;
    }
    const dr::compare::link l{speed, 0};
    const double agreement = (ranks - 1) * 8e9 * 256 / speed;
    CHECK(step_ns(c, {}, ranks, l) - agreement == doctest::Approx(ring_ns(c.dense_bytes, ranks, l)));
  }
}

TEST_CASE("a ring sends 2 (n - 1) / n of a tensor") {
  CHECK(ring_ns(1e6, 4, {8e9, 0}) == doctest::Approx(1.5e6));
  CHECK(ring_ns(1e6, 4, {8e9, 1000}) == doctest::Approx(1.506e6));
}

TEST_CASE("links are read with their units") {
  CHECK(parse_link("10Gb/s").bits_per_second == 10e9);
  CHECK(parse_link("10 Gbit/s").bits_per_second == 10e9);
  CHECK(parse_link("25e9").bits_per_second == 25e9);
  CHECK(parse_link("1.5Tbps").bits_per_second == 1.5e12);
  CHECK(parse_link("800kb/s").bits_per_second == 800e3);
  CHECK(parse_link("800Kb/s").bits_per_second == 800e3);
  CHECK(parse_link("125MB/s").bits_per_second == 1e9);
  CHECK(parse_link("10Gb/s").latency_ns == 0);
  CHECK(parse_link("100Mbit/s,50us").latency_ns == 50000);
  CHECK(parse_link("1Gb/s,0.5ms").latency_ns == 500000);
  CHECK(parse_link("1Gb/s,20µs").latency_ns == 20000);
  CHECK(parse_link("1Gb/s,0s").latency_ns == 0);
  for (const char* wrong : {"", "fast", "0Gb/s", "-1Gb/s", "10Gx/s", "10G", "infGb/s", "nan", "1e999", "10Gb/s,",
                            "10Gb/s,5", "10Gb/s,5parsec", "10Gb/s,-5us", "10Gb/s 5us"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_link(wrong), std::invalid_argument);
  }
}
