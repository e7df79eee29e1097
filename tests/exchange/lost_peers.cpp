// A transport that says that a rank is gone: every rank reports PEER and names it, at once, and the gradient stays.
#include <map>

#include "world.hpp"

namespace {

constexpr uint64_t timeout_ns = 1'000'000'000;
constexpr uint32_t gone = 1;

// How a transport says so.
enum class says { by_test, by_calls, with_late, never };

// A rank's transport, which knows that rank 1 is gone.
struct knowing {
  dr_transport inner;
  says how;
  std::map<uint64_t, uint32_t> peers;  // of requests

  dr_status told() const { return how == says::with_late ? DR_E_TIMEOUT : DR_E_PEER; }
  bool refuses(uint32_t peer) const { return how == says::by_calls && peer == gone; }

  dr_transport transport() {
    dr_transport t = inner;
    t.user = this;
    t.send = [](void* user, uint32_t peer, uint32_t tag, const void* bytes, size_t size, uint64_t* request) {
      knowing& k = *static_cast<knowing*>(user);
      if (k.refuses(peer)) return k.told();
      const dr_status s = k.inner.send(k.inner.user, peer, tag, bytes, size, request);
      k.peers[*request] = peer;
      return s;
    };
    t.recv = [](void* user, uint32_t peer, uint32_t tag, void* bytes, size_t capacity, uint64_t* request) {
      knowing& k = *static_cast<knowing*>(user);
      if (k.refuses(peer)) return k.told();
      const dr_status s = k.inner.recv(k.inner.user, peer, tag, bytes, capacity, request);
      k.peers[*request] = peer;
      return s;
    };
    t.test = [](void* user, uint64_t request, size_t* size) {
      knowing& k = *static_cast<knowing*>(user);
      if (k.how == says::never || k.peers[request] != gone) return k.inner.test(k.inner.user, request, size);
      (void)k.inner.cancel(k.inner.user, request);
      return k.told();
    };
    t.cancel = [](void* user, uint64_t request) {
      const knowing& k = *static_cast<knowing*>(user);
      return k.inner.cancel(k.inner.user, request);
    };
    t.now = [](void* user) { return static_cast<knowing*>(user)->inner.now(static_cast<knowing*>(user)->inner.user); };
    t.spend = nullptr;
    return t;
  }
};

// Four ranks, of which rank 1 is gone from the second step on, and those in `informed` learn it from their transports.
struct bereft {
  world::group g;
  std::vector<std::unique_ptr<knowing>> nets;

  bereft(const world::options& o, says how, const std::vector<uint32_t>& informed) : g(o) {
    for (uint32_t i = 0; i < o.ranks; ++i) {
      world::rank& r = *g.ranks[i];
      const bool knows = std::ranges::find(informed, i) != informed.end();
      nets.push_back(std::make_unique<knowing>(knowing{g.net.transport(i), knows ? how : says::never, {}}));
      r.exchange = std::make_unique<dr::exchange>(r.context);
      REQUIRE(r.exchange->create({world::plan_of(o.plan), nets[i]->transport(), o.exchange}, g.views(o, r),
                                 g.outs(o, r)) == DR_OK);
    }
  }

  // The statuses of the others.
  std::vector<dr_status> run() {
    g.draw(0);
    std::vector<dr::exchange*> list;
    for (uint32_t i = 0; i < g.size(); ++i) {
      list.push_back(i == gone ? nullptr : g.ranks[i]->exchange.get());
      if (i != gone) REQUIRE(list[i]->start(dr_call{}) == DR_OK);
    }
    std::vector<dr_status> statuses(g.size());
    g.net.run(list, statuses);
    return statuses;
  }
};

world::options four(const std::string& schedule) {
  world::options o;
  o.ranks = 4;
  o.plan = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw exchange=" + schedule;
  o.sizes = {9000};
  o.exchange.timeout_ns = timeout_ns;
  o.loopback.latency_ns = 1000;
  return o;
}

}  // namespace

TEST_CASE("a rank that transports say is gone is PEER on every rank, long before the timeout") {
  for (const std::string& schedule : world::schedules)
    for (const says how : {says::by_test, says::by_calls}) {
      CAPTURE(schedule);
      CAPTURE(static_cast<int>(how));
      bereft b(four(schedule), how, {0, 2, 3});
      const std::vector<dr_status> statuses = b.run();
      world::floats residual(9000);
      for (const uint32_t i : {0u, 2u, 3u}) {
        CAPTURE(i);
        world::rank& r = *b.g.ranks[i];
        INFO(r.error());
        CHECK(statuses[i] == DR_E_PEER);
        CHECK(r.context.error.frame == gone);
        CHECK(r.error().find("the transport ") != std::string::npos);
        CHECK(b.g.net.now(i) < timeout_ns / 100);
        CHECK(r.out[0] == world::floats(9000, -1.0f));
        REQUIRE(r.exchange->read_residual(DR_RESIDUAL_OWN, 0, residual.data(), residual.size()) == DR_OK);
        CHECK(residual == r.in[0]);
      }
    }
}

TEST_CASE("where one transport reports that a rank is gone, the verdict carries it to the others") {
  for (const std::string& schedule : world::schedules) {
    CAPTURE(schedule);
    bereft b(four(schedule), says::by_test, {3});
    const std::vector<dr_status> statuses = b.run();
    for (const uint32_t i : {0u, 2u, 3u}) {
      CAPTURE(i);
      INFO(b.g.ranks[i]->error());
      CHECK(statuses[i] == DR_E_PEER);
      CHECK(b.g.ranks[i]->context.error.frame == gone);
    }
  }
}

TEST_CASE("a transport that calls a rank late is believed, too: TIMEOUT") {
  for (const std::string& schedule : world::schedules) {
    CAPTURE(schedule);
    bereft b(four(schedule), says::with_late, {0, 2, 3});
    const std::vector<dr_status> statuses = b.run();
    for (const uint32_t i : {0u, 2u, 3u}) {
      INFO(b.g.ranks[i]->error());
      CHECK(statuses[i] == DR_E_TIMEOUT);
      CHECK(b.g.ranks[i]->context.error.frame == gone);
    }
  }
}

namespace {

enum class kind { frame, verdict, last_verdict };

// Rank 0's transport, whose test answers so for its receive of rank 1's frame or verdict; last_verdict: when rank 0 has sent
// its own.
struct answering {
  dr_transport inner;
  kind of;
  dr_status answer;
  bool has_sent_verdict = false;
  std::map<uint64_t, bool> is_verdict;  // receives

  dr_transport transport() {
    dr_transport t = inner;
    t.user = this;
    t.send = [](void* user, uint32_t peer, uint32_t tag, const void* bytes, size_t size, uint64_t* request) {
      answering& a = *static_cast<answering*>(user);
      a.has_sent_verdict |= size == sizeof(dr::verdict);
      const dr_status s = a.inner.send(a.inner.user, peer, tag, bytes, size, request);
      a.is_verdict.erase(*request);
      return s;
    };
    t.recv = [](void* user, uint32_t peer, uint32_t tag, void* bytes, size_t capacity, uint64_t* request) {
      answering& a = *static_cast<answering*>(user);
      const dr_status s = a.inner.recv(a.inner.user, peer, tag, bytes, capacity, request);
      a.is_verdict[*request] = capacity == sizeof(dr::verdict);
      return s;
    };
    t.test = [](void* user, uint64_t request, size_t* size) {
      answering& a = *static_cast<answering*>(user);
      const auto found = a.is_verdict.find(request);
      const bool is_due = a.of != kind::last_verdict || a.has_sent_verdict;
      if (found == a.is_verdict.end() || found->second != (a.of != kind::frame) || !is_due)
        return a.inner.test(a.inner.user, request, size);
      (void)a.inner.cancel(a.inner.user, request);
      return a.answer;
    };
    t.cancel = [](void* user, uint64_t request) {
      const answering& a = *static_cast<answering*>(user);
      return a.inner.cancel(a.inner.user, request);
    };
    t.now = [](void* user) {
      const answering& a = *static_cast<answering*>(user);
      return a.inner.now(a.inner.user);
    };
    t.spend = nullptr;
    return t;
  }
};

}  // namespace

TEST_CASE(
    "what a transport answers of a receive is TIMEOUT, this rank's MEMORY, or PEER, whatever was to be received") {
  for (const kind of : {kind::frame, kind::verdict, kind::last_verdict})
    for (const dr_status answer : {DR_E_ARGUMENT, DR_E_CORRUPT, DR_E_UNSUPPORTED, DR_E_MEMORY, DR_E_DEVICE,
                                   DR_E_INTERNAL, DR_E_PEER, DR_E_TIMEOUT}) {
      CAPTURE(static_cast<int>(of));
      CAPTURE(answer);
      world::options o = four("gather");
      o.ranks = 2;
      world::group g(o);
      answering net{g.net.transport(0), of, answer};
      world::rank &r = *g.ranks[0], &other = *g.ranks[1];
      r.exchange = std::make_unique<dr::exchange>(r.context);
      REQUIRE(r.exchange->create({world::plan_of(o.plan), net.transport(), o.exchange}, g.views(o, r), g.outs(o, r)) ==
              DR_OK);
      g.draw(0);
      std::vector<dr::exchange*> list = {r.exchange.get(), other.exchange.get()};
      for (dr::exchange* const x : list) REQUIRE(x->start(dr_call{}) == DR_OK);
      std::vector<dr_status> statuses(2);
      g.net.run(list, statuses);
      INFO(r.error() << "; " << other.error());
      const bool memory = answer == DR_E_MEMORY;
      CHECK(statuses[0] == (memory || answer == DR_E_TIMEOUT ? answer : DR_E_PEER));
      CHECK(r.context.error.frame == (memory ? 0 : 1));
      if (of != kind::last_verdict && memory) {
        CHECK(statuses[1] == DR_E_PEER);
        CHECK(other.context.error.frame == 0);
      }
      if (of == kind::last_verdict) CHECK(statuses[1] == DR_OK);  // it has rank 0's verdict
      CHECK(r.out[0] == world::floats(9000, -1.0f));
      world::floats residual(9000);
      REQUIRE(r.exchange->read_residual(DR_RESIDUAL_OWN, 0, residual.data(), residual.size()) == DR_OK);
      CHECK(residual == r.in[0]);
    }
}

TEST_CASE("a rank that failed and then closed its connections is named for its failure") {
  std::vector<dr::verdict> verdicts(3);
  verdicts[1] = dr::blame(0, DR_E_PEER, "the transport lost its frame (PEER)");  // by a rank that saw 0 leave
  verdicts[2] = dr::blame(2, DR_E_PEER, "it could not encode");
  verdicts[0] = verdicts[2];
  std::vector<dr::arrival> all(3, dr::arrival::sound);
  CHECK(dr::conclude(verdicts, all).culprit == 2);
}
