// Ranks that come late, stop, or are behind: one outcome for all of them, and who is named.
#include <algorithm>
#include <cmath>
#include <utility>

#include "world.hpp"

namespace {

using world::group;

constexpr uint64_t timeout_ns = 1'000'000'000;

}  // namespace

TEST_CASE("a rank that comes too late is named by all, itself among them, and the next exchange succeeds") {
  for (const std::string& schedule : world::schedules) {
    CAPTURE(schedule);
    world::options o;
    o.ranks = 4;
    o.plan = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw exchange=" + schedule;
    o.sizes = {9000};
    o.exchange.timeout_ns = timeout_ns;
    o.loopback.latency_ns = 1000;
    group g(o);
    g.draw(0);
    g.net.pass(1, 3 * timeout_ns);
    const auto statuses = g.run(0);
    for (uint32_t i = 0; i < 4; ++i) {
      INFO(g.ranks[i]->error());
      CHECK(statuses[i] == DR_E_TIMEOUT);
      CHECK(g.ranks[i]->context.error.frame == 1);
    }
    for (uint32_t i = 0; i < 4; ++i) g.net.pass(i, 10 * timeout_ns - g.net.now(i));
    g.draw(1);
    g.run_well(1);
    CHECK(g.all_alike());
  }
}

TEST_CASE("a rank that stops for longer than its timeout fails with the others, though all that they sent is there") {
  struct stop : dr::message_faults {
    dr::loopback* net = nullptr;
    bool stopped = false;
    dr::message_fate fate_of(uint32_t from, uint32_t to, uint32_t, size_t size) override {
      dr::message_fate f;
      if (from == 3 && to == 0 && size != sizeof(dr::verdict)) f.delay_ns = timeout_ns / 2;
      return f;
    }
    bool lives(uint32_t rank, uint64_t now) override {
      if (rank == 0 && now >= timeout_ns / 2 && !std::exchange(stopped, true)) net->pass(0, 2 * timeout_ns);
      return true;
    }
  };
  for (const char* const schedule : {"gather", "owner", "ring"}) {
    CAPTURE(schedule);
    world::options o;
    o.ranks = 4;
    o.plan = "index=all value=raw exchange=" + std::string(schedule);
    o.sizes = {9000};
    o.exchange.timeout_ns = timeout_ns;
    o.loopback.latency_ns = 1000;
    group g(o);
    stop faults;
    faults.net = &g.net;
    g.net.faults = &faults;
    g.draw(0);
    const std::vector<dr_status> statuses = g.run(0);
    REQUIRE(faults.stopped);
    for (uint32_t i = 0; i < 4; ++i) {
      INFO("rank " << i << ": " << g.ranks[i]->error());
      CHECK(statuses[i] == DR_E_TIMEOUT);
      CHECK(g.ranks[i]->context.error.frame == 0);
      CHECK(std::ranges::count(g.ranks[i]->out[0], -1.0f) == 9000);
    }
  }
}

TEST_CASE("a rank that comes too late, and another fault: all ranks name the same one") {
  for (const std::string& schedule : world::schedules)
    for (const std::string what : {"its step", "its gradient", "the step of another", "the gradient of another"})
      for (const uint32_t late : {0u, 2u}) {
        CAPTURE(schedule);
        CAPTURE(what);
        CAPTURE(late);
        world::options o;
        o.ranks = 4;
        o.plan = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd exchange=" + schedule;
        o.sizes = {9000};
        o.exchange.timeout_ns = timeout_ns;
        o.loopback.latency_ns = 1000;
        group g(o);
        g.draw(0);
        g.net.pass(late, 3 * timeout_ns);
        const bool another = what.ends_with("another"), of_step = what.find("step") != std::string::npos;
        const uint32_t wrong = another ? 3 : late;
        if (!of_step) g.ranks[wrong]->in[0][8999] = NAN;
        std::vector<dr::exchange*> list;
        for (uint32_t i = 0; i < 4; ++i) {
          dr_call call{};
          call.step = of_step && i == wrong ? 8 : 7;
          REQUIRE(g.ranks[i]->exchange->start(call) == DR_OK);
          list.push_back(g.ranks[i]->exchange.get());
        }
        std::vector<dr_status> statuses(4);
        g.net.run(list, statuses);
        for (uint32_t i = 0; i < 4; ++i) {
          CAPTURE(i);
          INFO(g.ranks[i]->error());
          CHECK(statuses[i] != DR_OK);
          CHECK(g.ranks[i]->context.error.frame == g.ranks[late ? 0 : 1]->context.error.frame);
          CHECK((g.ranks[i]->context.error.frame == late || g.ranks[i]->context.error.frame == wrong));
        }
      }
}

TEST_CASE("all ranks name the rank that stopped, not one that waits for it, whichever of them gives up first") {
  // Of one that goes on the verdict comes, but no frame.
  struct lost_frames : dr::message_faults {
    uint32_t of = 0;
    dr::message_fate fate_of(uint32_t from, uint32_t, uint32_t, size_t size) override {
      dr::message_fate f;
      f.dropped = from == of && size != sizeof(dr::verdict);
      return f;
    }
    bool lives(uint32_t, uint64_t) override { return true; }
  };
  for (const std::string& schedule : world::schedules)
    for (const uint32_t ranks : {3u, 4u, 5u})
      for (uint32_t guilty = 0; guilty < ranks; ++guilty)
        for (uint32_t slow = 0; slow < ranks; ++slow)
          for (const uint64_t percent : {0, 9, 18})
            for (const bool goes_on : {false, true}) {
              if (slow == guilty) continue;
              CAPTURE(schedule);
              CAPTURE(ranks);
              CAPTURE(guilty);
              CAPTURE(slow);
              CAPTURE(percent);
              CAPTURE(goes_on);
              world::options o;
              o.ranks = ranks;
              o.plan = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw exchange=" + schedule;
              o.sizes = {9000};
              o.exchange.timeout_ns = timeout_ns;
              o.loopback.latency_ns = 1000;
              group g(o);
              lost_frames faults;
              faults.of = guilty;
              if (goes_on) g.net.faults = &faults;
              g.draw(0);
              g.net.pass(slow, percent * timeout_ns / 100);
              std::vector<dr::exchange*> list;
              for (uint32_t i = 0; i < ranks; ++i) {
                list.push_back(i == guilty && !goes_on ? nullptr : g.ranks[i]->exchange.get());
                if (list[i]) REQUIRE(list[i]->start(dr_call{}) == DR_OK);
              }
              std::vector<dr_status> statuses(ranks);
              g.net.run(list, statuses);
              for (uint32_t i = 0; i < ranks; ++i) {
                if (!list[i]) continue;
                INFO("rank " << i << ": " << g.ranks[i]->error());
                CHECK(statuses[i] == DR_E_TIMEOUT);
                CHECK(g.ranks[i]->context.error.frame == guilty);
              }
            }
}

TEST_CASE("each rank that is behind is named, and with it one that is not") {
  struct lost_verdicts : dr::message_faults {
    dr::message_fate fate_of(uint32_t from, uint32_t to, uint32_t, size_t size) override {
      dr::message_fate f;
      f.dropped = size == sizeof(dr::verdict) && from == 3 && (to == 0 || to == 1);
      return f;
    }
    bool lives(uint32_t, uint64_t) override { return true; }
  };
  world::options o;
  o.ranks = 4;
  o.plan = "index=all value=raw exchange=gather";
  o.sizes = {500};
  o.exchange.timeout_ns = timeout_ns;
  group g(o);
  lost_verdicts faults;
  g.net.faults = &faults;
  g.draw(0);
  const std::vector<dr_status> first = g.run(0);
  CHECK(first == std::vector<dr_status>{DR_E_TIMEOUT, DR_E_TIMEOUT, DR_OK, DR_OK});
  g.net.faults = nullptr;
  for (const uint32_t behind : {0u, 1u}) {
    CAPTURE(behind);
    for (uint32_t i = 0; i < 4; ++i) g.net.pass(i, (behind + 1) * 10 * timeout_ns - g.net.now(i));
    const std::vector<dr_status> then = g.run(behind + 1);
    for (uint32_t i = 0; i < 4; ++i) {
      INFO(g.ranks[i]->error());
      CHECK(then[i] == DR_E_ARGUMENT);
      CHECK(g.ranks[i]->context.error.frame == behind);
      const uint32_t source = behind == 0 ? 2 : 0;  // (rank 0 has been named, and repaired)
      CHECK(g.ranks[i]->context.error.what == source);
      const std::string words = "it completed 0 exchanges, rank " + std::to_string(source) + " 1";
      CHECK(g.ranks[i]->error().find(words) != std::string::npos);
    }
  }
  g.run_well(3);
}
