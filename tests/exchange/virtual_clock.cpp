// Many ranks, and how long it takes them: the program is its own model.
#include "world.hpp"

using world::group;

namespace {

uint64_t tenth(void*, uint64_t elements, uint32_t) { return 4 * elements / 10 + 40; }

world::options dry_options(const std::string& schedule, uint32_t ranks, size_t elements) {
  world::options o;
  o.ranks = ranks;
  o.plan = "sparsify=topr(ratio=0.1) exchange=" + schedule;
  o.exchange.flags = DR_EXCHANGE_DRY;
  o.exchange.frame_size = tenth;
  o.exchange.timeout_ns = uint64_t{1} << 60;
  o.sizes = {elements};
  return o;
}

// Virtual nanoseconds of an exchange of so many elements in which nothing is computed.
uint64_t dry_run(const std::string& schedule, uint32_t ranks, size_t elements, double bytes_per_second,
                 uint64_t latency_ns) {
  world::options o = dry_options(schedule, ranks, elements);
  o.loopback.bytes_per_second = bytes_per_second;
  o.loopback.latency_ns = latency_ns;
  group g(o);
  g.run_well(0);
  uint64_t last = 0;
  for (uint32_t i = 0; i < ranks; ++i) last = std::max(last, g.net.now(i));
  return last;
}

}  // namespace

TEST_CASE("under the virtual clock an exchange takes what its bytes take on the link") {
  // 4 ranks, 1 M elements at 10 %, 100 Mbit/s: a gather sends 3 frames of 400 kB, an owner 2 · 3 of a quarter of that.
  const double rate = 12.5e6, frame = 400040, quarter = 100040;
  const auto seconds = [&](const char* schedule) {
    return 1e-9 * static_cast<double>(dry_run(schedule, 4, 1000000, rate, 0));
  };
  const double verdicts = 3 * 256 / rate;
  CHECK(seconds("gather") == doctest::Approx(3 * frame / rate + verdicts).epsilon(0.01));
  CHECK(seconds("owner") == doctest::Approx(6 * quarter / rate + verdicts).epsilon(0.05));
  CHECK(seconds("ring") == doctest::Approx(6 * quarter / rate + verdicts).epsilon(0.05));
}

TEST_CASE("64 and 1,000 ranks run every schedule") {
  for (const char* schedule : {"gather", "owner", "ring", "hierarchy(inner=8)"}) {
    CAPTURE(schedule);
    world::options o;
    o.ranks = 64;
    o.plan = std::string("sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw exchange=") + schedule;
    o.sizes = {70000};
    o.loopback.latency_ns = 5000;
    o.loopback.bytes_per_second = 1e9;
    group g(o);
    g.draw(0);
    g.run_well(0);
    CHECK(g.all_alike());
  }
#if defined(DR_SANITIZED)
  constexpr uint32_t many = 100;
#else
  constexpr uint32_t many = 1000;
#endif
  for (const char* schedule : {"gather", "owner", "ring", "hierarchy(inner=32)"}) {
    CAPTURE(schedule);
    // (Millions of messages: those of two schedules are enough for a test.)
    const bool fewer = schedule == std::string("ring") || schedule == std::string("owner");
    const uint32_t ranks = fewer ? many / 4 : many;
    CHECK(dry_run(schedule, ranks, 10000000, 1.25e9, 10000) > 0);
  }
}

TEST_CASE("the same seed yields the same times, and costs of steps count") {
  const auto run = [](uint64_t cost) {
    world::options o;
    o.ranks = 4;
    o.plan = "sparsify=topr(ratio=0.1) index=golomb exchange=gather";
    o.sizes = {10000};
    o.loopback.seed = 3;
    o.loopback.latency_ns = 1000;
    o.loopback.cost = [](void* user, uint32_t, uint32_t step, uint64_t, uint64_t) {
      return step == DR_STEP_ENCODE ? *static_cast<uint64_t*>(user) : 0;
    };
    o.loopback.cost_user = &cost;
    group g(o);
    g.draw(0);
    g.run_well(0);
    return g.net.now(0);
  };
  CHECK(run(0) == run(0));
  CHECK(run(70000) == run(0) + 70000);
}

TEST_CASE("a trace has an event a step, in order") {
  world::options o;
  o.ranks = 2;
  o.plan = "sparsify=topr(ratio=0.1) index=golomb exchange=owner(parts=2)";
  o.sizes = {10000};
  o.exchange.flags = DR_EXCHANGE_TRACE;
  o.loopback.latency_ns = 100;
  group g(o);
  g.draw(0);
  g.run_well(0);
  const dr::exchange& x = *g.ranks[1]->exchange;
  REQUIRE(x.times().size() == x.steps().steps.size());
  for (size_t i = 1; i < x.times().size(); ++i) CHECK(x.times()[i].begin_ns >= x.times()[i - 1].end_ns);
}

namespace {

// One rank's clock after a dry exchange, of all ranks or of one that stands for all.
uint64_t model_of(const std::string& schedule, uint32_t ranks, size_t elements, const dr_loopback_options& link) {
  world::options o = dry_options(schedule, ranks, elements);
  o.loopback = link;
  if (link.flags & DR_LOOPBACK_ALIKE) o.present = 1;
  group g(o);
  g.run_well(0);
  g.run_well(1);  // (another sequence: other tags)
  return g.net.now(0);
}

uint64_t affine(void*, uint32_t, uint32_t step, uint64_t elements, uint64_t bytes) {
  switch (step) {
    case DR_STEP_ENCODE: return 3000 + elements / 4;
    case DR_STEP_ENCODE_SUM: return 2000 + elements / 8;
    case DR_STEP_SUM:
    case DR_STEP_MERGE: return 500 + bytes / 2;
    default: return 100;
  }
}

}  // namespace

TEST_CASE("one rank that stands for all takes as long as all do") {
  for (const char* schedule : {"gather", "gather(parts=3)", "owner", "owner(parts=4)", "ring", "ring(parts=2)"})
    for (const uint32_t ranks : {1u, 2u, 3u, 4u, 7u, 16u})
      for (const double rate : {0.0, 12.5e6, 1.25e9})
        for (const uint64_t latency : {uint64_t{0}, uint64_t{50000}}) {
          INFO(std::string(schedule) << ", " << ranks << " ranks, " << rate << " B/s, " << latency << " ns");
          dr_loopback_options link{};
          link.bytes_per_second = rate;
          link.latency_ns = latency;
          link.cost = affine;
          const size_t elements = size_t{64} * 240 * ranks;  // (ranges of one size)
          const uint64_t all = model_of(schedule, ranks, elements, link);
          link.flags = DR_LOOPBACK_ALIKE;
          CHECK(model_of(schedule, ranks, elements, link) == all);
        }
}

TEST_CASE("1,024 ranks are modelled by one") {
  dr_loopback_options link{};
  link.bytes_per_second = 1.25e9;
  link.latency_ns = 10000;
  link.flags = DR_LOOPBACK_ALIKE;
  for (const char* schedule : {"gather", "owner", "ring"}) {
    CAPTURE(schedule);
    const size_t elements = size_t{1024} * 10000;
    const double seconds = 0.5e-9 * static_cast<double>(model_of(schedule, 1024, elements, link));
    // A gather sends 1023 frames of a tenth; the others twice 1023 frames of a 1024th of that; latencies come on top.
    const bool gather = schedule == std::string("gather"), ring = schedule == std::string("ring");
    const double bytes = gather ? 1023.0 * (4096000 + 40) : 2 * 1023.0 * (4000 + 40);
    const double expected = bytes / 1.25e9 + (ring ? 2 * 1023 : gather ? 1 : 2) * 1e-5;
    CHECK(seconds == doctest::Approx(expected).epsilon(0.03));
  }
}

TEST_CASE("a rank that stands for all sends nothing outside of a run") {
  world::options o;
  o.ranks = 4, o.present = 1;
  o.plan = "sparsify=topr(ratio=0.1) exchange=ring";
  o.exchange.flags = DR_EXCHANGE_DRY;
  o.exchange.frame_size = tenth;
  o.loopback.flags = DR_LOOPBACK_ALIKE;
  o.sizes = {64000};
  group g(o);
  CHECK(g.ranks[0]->exchange->stands_for_all());
  o.sizes = {3000};  // (pieces have 1024 elements at least)
  CHECK(!group(o).ranks[0]->exchange->stands_for_all());
  const dr_transport t = g.net.transport(0);
  uint64_t request = 0;
  for (const uint32_t peer : {1u, 3u, 0u, 4u, UINT32_MAX})
    CHECK(t.send(t.user, peer, 1, nullptr, 1, &request) == DR_E_ARGUMENT);
  for (const uint32_t peer : {0u, 4u}) CHECK(t.recv(t.user, peer, 1, nullptr, 1, &request) == DR_E_ARGUMENT);
  g.run_well(0);
  CHECK(t.send(t.user, 1, 1, nullptr, 1, &request) == DR_E_ARGUMENT);
}
