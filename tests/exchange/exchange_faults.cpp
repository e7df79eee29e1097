// Messages that are lost, late, doubled, damaged or cut short, ranks that die, are late or cannot encode, by seeded script: no exchange
// hangs or gives a wrong sum, all ranks name the same guilty one, and nothing of a gradient is lost.
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "sweep.hpp"
#include "world.hpp"

using world::group;

namespace {

constexpr uint64_t timeout_ns = 1'000'000'000;
const uint64_t steps_in_all = dr::whole_sweep ? 100000 : 10000;

enum fault { drop, late, later, flip, cut, twice, fault_count };
constexpr const char* fault_names[] = {"drop", "late", "later", "flip", "cut", "twice"};

// Of one exchange: the n-th message from one rank to another meets a fault; a rank may die at its n-th turn.
struct script : dr::message_faults {
  struct hit {
    uint32_t from, to, number;
    fault what;
    uint64_t random;
    bool met = false, of_verdict = false;
  };
  std::vector<hit> hits;
  uint32_t victim = UINT32_MAX, sleeper = UINT32_MAX, last_turn = 0;
  dr::loopback* net = nullptr;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> sent;
  uint32_t turns = 0;
  bool died = false;

  dr::message_fate fate_of(uint32_t from, uint32_t to, uint32_t, size_t size) override {
    dr::message_fate f;
    const uint32_t number = sent[{from, to}]++;
    for (hit& h : hits) {
      if (h.from != from || h.to != to || h.number != number || h.met) continue;
      h.met = true;
      h.of_verdict = size == sizeof(dr::verdict);
      switch (h.what) {
        case drop: f.dropped = true; break;
        case late: f.delay_ns = 3 * timeout_ns; break;
        case later: f.delay_ns = h.random % (timeout_ns / 100); break;
        case flip: f.flipped_bit = size ? h.random % (8 * size) : UINT64_MAX; break;
        case cut: f.cut_to = size ? h.random % size : UINT64_MAX; break;
        default: f.doubled = true; break;
      }
    }
    return f;
  }
  bool lives(uint32_t rank, uint64_t) override {
    if (rank == victim && turns++ >= last_turn) died = true;
    if (rank == sleeper && turns++ == last_turn) net->pass(rank, 3 * timeout_ns);
    return !(died && rank == victim);
  }

  bool verdict_hit() const {
    for (const hit& h : hits)
      if (h.met && h.of_verdict && h.what != later && h.what != twice) return true;
    return false;
  }
  std::set<uint64_t> guilty() const {
    std::set<uint64_t> out;
    if (died) out.insert(victim);
    if (sleeper != UINT32_MAX) out.insert(sleeper);
    for (const hit& h : hits)
      if (h.met && h.what != later && h.what != twice) out.insert(h.from);
    return out;
  }
  std::string text() const {
    std::string out;
    for (const hit& h : hits)
      out += std::string(fault_names[h.what]) + " of message " + std::to_string(h.number) + " from " +
             std::to_string(h.from) + " to " + std::to_string(h.to) + (h.met ? "; " : " (not met); ");
    if (victim != UINT32_MAX) out += "rank " + std::to_string(victim) + " dies at turn " + std::to_string(last_turn);
    if (sleeper != UINT32_MAX)
      out += "rank " + std::to_string(sleeper) + " sleeps at turn " + std::to_string(last_turn);
    return out;
  }
};

// A group under faults, and the balance of inputs and outputs.
struct trial {
  world::options how;
  std::unique_ptr<group> g;
  std::vector<double> balance;  // inputs - sent
  uint64_t step = 0;

  void restart() {
    g = std::make_unique<group>(how);
    balance.assign(how.sizes[0], 0.0);
  }

  // All ranks begin at the same time, as after a barrier.
  uint64_t meet() {
    uint64_t last = 0;
    for (uint32_t i = 0; i < how.ranks; ++i) last = std::max(last, g->net.now(i));
    for (uint32_t i = 0; i < how.ranks; ++i) g->net.pass(i, last - g->net.now(i));
    return last;
  }

  void run(std::mt19937_64& draw, std::map<std::string, uint64_t>& seen) {
    script s;
    const uint32_t n = how.ranks;
    for (uint64_t i = draw() % 3; i-- > 0;) {
      const uint32_t from = static_cast<uint32_t>(draw() % n),
                     to = static_cast<uint32_t>((from + 1 + draw() % (n - 1)) % n);
      s.hits.push_back({from, to, static_cast<uint32_t>(draw() % 6), static_cast<fault>(draw() % fault_count), draw()});
    }
    if (draw() % 16 == 0)
      s.victim = static_cast<uint32_t>(draw() % n), s.last_turn = static_cast<uint32_t>(draw() % 8);
    else if (draw() % 16 == 0)
      s.sleeper = static_cast<uint32_t>(draw() % n), s.last_turn = static_cast<uint32_t>(draw() % 8);
    s.net = &g->net;
    g->net.faults = &s;
    g->draw(++step);
    for (const auto& r : g->ranks) std::fill(r->out[0].begin(), r->out[0].end(), -7.0f);
    const uint64_t began = meet();
    const std::vector<dr_status> statuses = g->run(step);
    g->net.faults = nullptr;
    CAPTURE(how.plan);
    CAPTURE(step);
    INFO(s.text());

    const auto total = g->total(0);
    for (size_t i = 0; i < total.size(); ++i) balance[i] += total[i];
    std::vector<uint32_t> good, bad;
    for (uint32_t i = 0; i < n; ++i)
      if (!(s.died && i == s.victim)) (statuses[i] == DR_OK ? good : bad).push_back(i);
    for (uint32_t i = 0; i < n; ++i) {
      REQUIRE(statuses[i] != DR_PENDING);
      if (i != s.sleeper) REQUIRE(g->net.now(i) <= began + timeout_ns);
    }
    for (const uint32_t i : good)
      REQUIRE(!std::memcmp(g->ranks[i]->out[0].data(), g->ranks[good[0]]->out[0].data(), 4 * total.size()));
    for (const uint32_t i : bad) {
      REQUIRE(std::all_of(g->ranks[i]->out[0].begin(), g->ranks[i]->out[0].end(), [](float x) { return x == -7; }));
      const uint64_t blamed = g->ranks[i]->context.error.frame;
      std::string all;
      for (uint32_t k = 0; k < n; ++k) all += "\n    rank " + std::to_string(k) + " says " + g->ranks[k]->error();
      INFO(all);
      if (!s.verdict_hit()) {
        REQUIRE(blamed == g->ranks[bad[0]]->context.error.frame);
        REQUIRE(s.guilty().count(blamed));
      }
    }
    if (s.guilty().empty()) REQUIRE(bad.empty());
    if (!s.verdict_hit()) REQUIRE((good.empty() || bad.empty()));
    seen[bad.empty() ? "all good" : good.empty() ? "all failed" : "one in doubt"]++;

    if (s.died) return restart();
    if (!good.empty() && !bad.empty()) {
      // A verdict was lost. Now all ranks learn which one is behind.
      meet();
      g->draw(++step);
      const std::vector<dr_status> then = g->run(step);
      for (uint32_t i = 0; i < n; ++i) {
        INFO(g->ranks[i]->error());
        REQUIRE(then[i] == DR_E_ARGUMENT);
        REQUIRE(g->ranks[i]->context.error.frame == bad[0]);
      }
      return restart();
    }
    if (!good.empty())
      for (size_t i = 0; i < balance.size(); ++i) balance[i] -= static_cast<double>(g->ranks[0]->out[0][i]);
    if (draw() % 8 == 0) {
      const auto kept = g->kept(0);
      REQUIRE(kept == balance);
    }
    if (step % 128 == 0) restart();
  }
};

}  // namespace

TEST_CASE("exchanges under faults: no hang, no wrong sum, one guilty rank, nothing lost") {
  const char* const given = std::getenv("DEEPREDUCE_TEST_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : 12;
  std::vector<trial> trials;
  for (const char* schedule :
       {"gather", "gather(parts=2)", "owner", "owner(parts=4)", "ring", "ring(parts=2)", "hierarchy(inner=2)",
        "hierarchy(inner=3,parts=2)", "gather on devices", "gather(parts=2) on devices", "gather on some devices",
        "owner(parts=2) on devices", "ring on devices"})
    for (const uint32_t ranks : {2u, 3u, 4u}) {
      trial& t = trials.emplace_back();
      t.how.ranks = ranks;
      const std::string_view words = schedule;
      if (words.ends_with("devices")) t.how.on_device = words.find("some") == words.npos ? UINT32_MAX : 0b101;
      t.how.plan = std::string("sparsify=topr(ratio=0.25) feedback=residual index=golomb value=raw exchange=")
                       .append(words.substr(0, words.find(' ')));
      t.how.sizes = {4100};
      t.how.exchange.timeout_ns = timeout_ns;
      t.how.exchange.flags = DR_EXCHANGE_SUM;  // (of integers: no rounding)
      t.how.loopback.latency_ns = 50000;
      t.how.loopback.bytes_per_second = 1e9;
      t.how.loopback.seed = seed;
      t.restart();
    }
  std::mt19937_64 draw(seed);
  std::map<std::string, uint64_t> seen;
  CAPTURE(seed);
  for (uint64_t i = 0; i < steps_in_all; ++i) trials[draw() % trials.size()].run(draw, seen);
  for (const auto& [what, times] : seen) MESSAGE(what << ": " << times);
  CHECK(seen["all good"] > steps_in_all / 4);
  CHECK(seen["all failed"] > steps_in_all / 8);
  CHECK(seen["one in doubt"] > steps_in_all / 1000);
}

TEST_CASE("where every message comes twice, no send waits for the second") {
  struct twice_all : dr::message_faults {
    dr::message_fate fate_of(uint32_t, uint32_t, uint32_t, size_t) override {
      dr::message_fate f;
      f.doubled = doubles;
      return f;
    }
    bool lives(uint32_t, uint64_t) override { return true; }
    bool doubles = false;
  };
  for (const std::string& schedule : world::schedules) {
    CAPTURE(schedule);
    uint64_t took[2] = {};
    for (const bool doubles : {false, true}) {
      world::options o;
      o.ranks = 4;
      o.plan = "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw exchange=" + schedule;
      o.sizes = {9000};
      o.exchange.timeout_ns = timeout_ns;
      o.loopback.latency_ns = 50000;
      o.loopback.bytes_per_second = 1e9;
      group g(o);
      twice_all faults;
      faults.doubles = doubles;
      g.net.faults = &faults;
      for (uint64_t step = 0; step < 3; ++step) g.draw(step), g.run_well(step);
      CHECK(g.all_alike());
      for (uint32_t i = 0; i < o.ranks; ++i) took[doubles] = std::max(took[doubles], g.net.now(i));
    }
    CHECK(took[1] <= 2 * took[0]);  // (the second takes its time on the receiver's port)
  }
}

TEST_CASE("a rank that cannot encode is named by all, with its tensor, row and reason") {
  for (size_t n = 0; n < 2 * std::size(world::schedules); ++n) {
    const std::string& schedule = world::schedules[n / 2];
    world::options o;
    o.ranks = 4;
    o.width = n % 2 ? 4 : 1;
    CAPTURE(schedule);
    CAPTURE(o.width);
    const std::string select = o.width == 1 ? "sparsify=topr(ratio=0.1) feedback=residual " : "";
    o.plan = select + "index=golomb value=qsgd(levels=127) exchange=" + schedule;
    o.sizes = {3000, 5000};
    o.loopback.latency_ns = 1000;
    group g(o);
    g.draw(0);
    g.run_well(0);
    g.draw(1);
    g.ranks[2]->in[1][4999] = NAN;
    const auto statuses = g.run(1);
    const uint32_t who = 2;
    for (uint32_t i = 0; i < 4; ++i) {
      INFO(g.ranks[i]->error());
      CHECK(statuses[i] == (i == who ? DR_E_ARGUMENT : DR_E_PEER));
      CHECK(g.ranks[i]->context.error.frame == who);
      CHECK(g.ranks[i]->context.error.tensor == 1);
      CHECK(g.ranks[i]->error().find("gradient is NaN") != std::string::npos);
      CHECK(g.ranks[i]->context.error.where == 4999 / o.width);
    }
    g.draw(2);
    g.run_well(2);
  }
}

TEST_CASE("ranks of different plans, options or shapes see it, and say who") {
  for (const char* what : {"plan", "options", "shapes", "rows"}) {
    CAPTURE(what);
    world::options o;
    o.ranks = 3;
    o.plan = "sparsify=topr(ratio=0.1) index=golomb value=raw exchange=gather";
    o.sizes = {4000};
    group g(o);
    world::rank other;
    dr_error error = dr::no_error();
    REQUIRE(other.context.start(dr_context_options{}, error) == DR_OK);
    world::options theirs = o;
    if (what == std::string("plan")) theirs.plan = "sparsify=topr(ratio=0.1) index=golomb value=half";
    if (what == std::string("options")) theirs.exchange.flags = DR_EXCHANGE_SUM;
    if (what == std::string("shapes")) theirs.sizes = {3999};
    other.in.emplace_back(theirs.sizes[0]), other.out.emplace_back(theirs.sizes[0]);
    other.exchange = std::make_unique<dr::exchange>(other.context);
    std::vector<dr::tensor_view> views = group::views(theirs, other);
    if (what == std::string("rows")) views[0].rows = 40;
    REQUIRE(other.exchange->create({world::plan_of(theirs.plan), g.net.transport(2), theirs.exchange}, views,
                                   group::outs(theirs, other)) == DR_OK);
    g.draw(0);
    std::vector<dr::exchange*> list = {g.ranks[0]->exchange.get(), g.ranks[1]->exchange.get(), other.exchange.get()};
    for (dr::exchange* const x : list) REQUIRE(x->start(dr_call{}) == DR_OK);
    std::vector<dr_status> statuses(3);
    g.net.run(list, statuses);
    for (uint32_t i = 0; i < 3; ++i) {
      CHECK(statuses[i] == DR_E_ARGUMENT);
      const dr_error& said = i == 2 ? other.context.error : g.ranks[i]->context.error;
      CHECK(said.frame == 2);
      CHECK(std::string(said.message).find("its plan, options, shapes or sparse counts differ from those of rank 0") !=
            std::string::npos);
    }
  }
}

TEST_CASE("ranks of different steps see it, and say who") {
  world::options o;
  o.ranks = 3;
  o.plan = "sparsify=topr(ratio=0.1) index=golomb value=raw exchange=gather";
  o.sizes = {4000};
  group g(o);
  g.draw(0);
  std::vector<dr::exchange*> list;
  for (uint32_t i = 0; i < 3; ++i) {
    dr_call call{};
    call.step = i == 1 ? 8 : 7;
    REQUIRE(g.ranks[i]->exchange->start(call) == DR_OK);
    list.push_back(g.ranks[i]->exchange.get());
  }
  std::vector<dr_status> statuses(3);
  g.net.run(list, statuses);
  for (uint32_t i = 0; i < 3; ++i) {
    CHECK(statuses[i] == DR_E_ARGUMENT);
    CHECK(g.ranks[i]->error().find("its step is 8, that of rank 0 is 7") != std::string::npos);
    CHECK(g.ranks[i]->context.error.frame == 1);
  }
}

TEST_CASE("an exchange that is cancelled fails on all ranks") {
  world::options o;
  o.ranks = 3;
  o.plan = "sparsify=topr(ratio=0.1) feedback=residual exchange=owner";
  o.sizes = {4000};
  group g(o);
  g.draw(0);
  std::vector<dr::exchange*> list;
  for (uint32_t i = 0; i < 3; ++i) {
    REQUIRE(g.ranks[i]->exchange->start(dr_call{}) == DR_OK);
    list.push_back(g.ranks[i]->exchange.get());
  }
  REQUIRE(g.ranks[2]->exchange->cancel() == DR_OK);
  std::vector<dr_status> statuses(3);
  g.net.run(list, statuses);
  for (uint32_t i = 0; i < 3; ++i) {
    CHECK(statuses[i] == DR_E_PEER);
    CHECK(g.ranks[i]->context.error.frame == 2);
  }
  g.draw(1);
  g.run_well(1);
}
