// Calls of an event loop: one that starts sends, one that advances ends in time, and the result has the same bits.
#include "world.hpp"

namespace {

constexpr uint64_t step_ns = 1000;

// Steps that computed, by DR_STEP_*, of which each takes step_ns.
struct counter {
  uint64_t steps = 0;
  static uint64_t count(void* user, uint32_t, uint32_t step, uint64_t elements, uint64_t) {
    const bool computes = elements && step != DR_STEP_SEND && step != DR_STEP_WAIT;
    static_cast<counter*>(user)->steps += computes;
    return computes ? step_ns : 0;
  }
};

world::options four(const std::string& schedule, uint64_t advance_ns, counter& c) {
  world::options o;
  o.ranks = 4;
  o.plan = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd(levels=15) exchange=" + schedule;
  o.sizes = {5000, 9000};
  o.exchange.advance_ns = advance_ns;
  o.loopback.latency_ns = 100;
  o.loopback.cost = counter::count;
  o.loopback.cost_user = &c;
  return o;
}

}  // namespace

TEST_CASE("an advance returns after the step that exceeds its time, and the bits are the same") {
  for (const std::string& schedule : world::schedules) {
    CAPTURE(schedule);
    counter whole, cut;
    world::group a(four(schedule, 0, whole)), b(four(schedule, step_ns, cut));
    for (uint64_t step = 0; step < 3; ++step) {
      a.draw(step), b.draw(step);
      a.run_well(step);
      // By hand, one rank after the other: what one call does is seen.
      std::vector<uint32_t> left;
      for (uint32_t i = 0; i < 4; ++i) {
        dr_call call{};
        call.step = step;
        REQUIRE(b.ranks[i]->exchange->start(call) == DR_OK);
        for (int turn = 0; turn < 3; ++turn) {
          const uint64_t before = cut.steps;
          REQUIRE(b.ranks[i]->exchange->advance() == DR_PENDING);
          CHECK(cut.steps - before <= 1);
          if (turn == 0 && schedule.find("hierarchy") != 0) {  // (there a head waits first)
            CHECK(cut.steps - before == 1);                    // it encoded a range, and has not waited for anything
            CHECK(!b.ranks[i]->exchange->info().waits);
          }
        }
      }
      std::vector<dr::exchange*> list;
      for (const auto& r : b.ranks) list.push_back(r->exchange.get());
      std::vector<dr_status> statuses(4);
      b.net.run(list, statuses);
      for (const dr_status s : statuses) REQUIRE(s == DR_OK);
      for (uint32_t i = 0; i < 4; ++i) CHECK(b.ranks[i]->out == a.ranks[i]->out);
      CHECK(a.kept(1) == b.kept(1));
    }
    CHECK(whole.steps == cut.steps);
  }
}

TEST_CASE("what passes between two calls of a bounded advance is not a step's time") {
  counter c;
  world::options o = four("gather(parts=3)", step_ns, c);
  o.ranks = 1;
  world::group g(o);
  g.draw(0);
  dr::exchange& x = *g.ranks[0]->exchange;
  REQUIRE(x.start(dr_call{}) == DR_OK);
  uint32_t calls = 1;
  for (; x.advance() == DR_PENDING; ++calls) {
    CHECK(!x.info().waits);
    g.net.pass(0, 1'000'000);
  }
  CHECK(calls >= 6);  // three encodes, three merges
  CHECK(x.info().encode_ns == 3 * step_ns);
  CHECK(x.info().merge_ns == 3 * step_ns);
  CHECK(x.advance() == DR_E_ARGUMENT);
}
