// Momentum and votes over ranks: each gradient meets its momentum once, whichever schedule; a failed exchange gives back.
#include "world.hpp"

using world::floats;
using world::group;

namespace {

// Momenta of a few steps, halved each time, of small integers: exact in f32.
void check_plain_momentum(const std::string& plan, double beta, double gamma, uint64_t dense_below = 0) {
  CAPTURE(plan);
  world::options o;
  o.ranks = 4;
  o.plan = plan;
  o.sizes = {3000, 40, 0, 700};
  o.exchange.dense_below = dense_below;
  group g(o);
  std::vector<std::vector<double>> u;
  for (const size_t n : o.sizes) u.emplace_back(n);
  for (uint64_t step = 0; step < 4; ++step) {
    g.draw(step);
    g.run_well(step);
    REQUIRE(g.all_alike());
    for (size_t t = 0; t < o.sizes.size(); ++t) {
      const auto total = g.total(t);
      for (size_t i = 0; i < total.size(); ++i) {
        u[t][i] = gamma * total[i] + beta * u[t][i];
        const bool checked = !dense_below || o.sizes[t] < dense_below;
        if (checked) REQUIRE(static_cast<double>(g.ranks[0]->out[t][i]) * 4 == doctest::Approx(u[t][i]).epsilon(1e-5));
      }
    }
  }
}

floats read(const world::rank& r, uint32_t which, size_t tensor, size_t n) {
  floats out(n);
  REQUIRE(r.exchange->read_residual(which, tensor, out.data(), n) == DR_OK);
  return out;
}

}  // namespace

TEST_CASE("a gradient meets its momentum once, whichever rank sums") {
  for (const std::string schedule : {"gather", "gather(parts=3)", "owner", "owner(parts=2)"}) {
    check_plain_momentum("index=all value=raw feedback=dgc(momentum=0.5,masking=off) exchange=" + schedule, 0.5, 1);
    check_plain_momentum("index=all value=raw feedback=momentum(beta=0.5) exchange=" + schedule, 0.5, 0.5);
    // Masked, what is all sent has no momentum.
    check_plain_momentum("index=all value=raw feedback=dgc(momentum=0.5) exchange=" + schedule, 0, 1);
  }
}

TEST_CASE("tensors that go dense beside others have the same weight of the gradient") {
  check_plain_momentum("sparsify=topr(ratio=0.1) feedback=residual(beta=0.5,gamma=0.5) index=golomb value=raw", 0, 0.5,
                       100);
}

TEST_CASE("tensors that go dense beside others have the same momentum, unmasked, for all of them is sent") {
  for (const std::string schedule : {"gather", "owner"}) {
    check_plain_momentum(
        "sparsify=topr(ratio=0.1) feedback=dgc(momentum=0.5) index=golomb value=raw exchange=" + schedule, 0.5, 1, 100);
    check_plain_momentum(
        "sparsify=topr(ratio=0.1) feedback=momentum(beta=0.5) index=golomb value=raw exchange=" + schedule, 0.5, 0.5,
        100);
  }
}

TEST_CASE("an exchange with momentum that was saved and loaded continues bit for bit") {
  for (const std::string feedback : {"dgc(momentum=0.7)", "momentum", "efsignsgd(lr=0.2)"})
    for (const std::string schedule : {"gather(parts=2)", "owner"}) {
      world::options o;
      o.ranks = 3;
      o.plan =
          "sparsify=topr(ratio=0.1) index=golomb value=qsgd(levels=7) feedback=" + feedback + " exchange=" + schedule;
      CAPTURE(o.plan);
      o.sizes = {2000, 40};
      group one(o), two(o);
      for (uint64_t step = 0; step < 3; ++step) {
        one.draw(step);
        one.run_well(step);
      }
      for (uint32_t i = 0; i < 3; ++i)
        for (size_t t = 0; t < o.sizes.size(); ++t)
          for (const uint32_t which : {DR_RESIDUAL_OWN, DR_RESIDUAL_SUM, DR_RESIDUAL_MOMENTUM}) {
            const floats kept = read(*one.ranks[i], which, t, o.sizes[t]);
            REQUIRE(two.ranks[i]->exchange->write_residual(which, t, kept.data(), kept.size()) == DR_OK);
            REQUIRE(read(*two.ranks[i], which, t, o.sizes[t]) == kept);
          }
      for (uint64_t step = 3; step < 5; ++step) {
        one.draw(step), two.draw(step);
        one.run_well(step), two.run_well(step);
        for (size_t t = 0; t < o.sizes.size(); ++t) REQUIRE(one.ranks[0]->out[t] == two.ranks[0]->out[t]);
      }
    }
}

TEST_CASE("of an exchange that failed v has all of the gradient; u is 0 where it was sent; m is what it would be") {
  for (const std::string feedback : {"dgc(momentum=0.5)", "momentum(beta=0.5)"})
    for (const std::string schedule : {"gather", "owner"}) {
      world::options o;
      o.ranks = 2;
      o.present = 1;
      o.plan = "sparsify=topr(ratio=0.1) index=golomb value=raw feedback=" + feedback + " exchange=" + schedule;
      CAPTURE(o.plan);
      o.sizes = {1000};
      o.exchange.timeout_ns = 1'000'000;
      group g(o);
      g.draw(0);
      const floats gradient = g.ranks[0]->in[0];
      CHECK(g.run(0)[0] == DR_E_TIMEOUT);
      const floats u = read(*g.ranks[0], DR_RESIDUAL_MOMENTUM, 0, 1000),
                   v = read(*g.ranks[0], DR_RESIDUAL_OWN, 0, 1000);
      size_t masked = 0;
      for (size_t i = 0; i < 1000; ++i) {
        if (feedback[0] == 'd') {
          REQUIRE(v[i] == gradient[i]);
          REQUIRE((u[i] == gradient[i] || u[i] == 0));
          masked += gradient[i] != 0 && u[i] == 0;
        } else {
          REQUIRE(v[i] == 0);  // it keeps no residual
          REQUIRE(u[i] == 0.5f * gradient[i]);
        }
      }
      CHECK(masked == (feedback[0] == 'd' ? 100 : 0));
      CHECK(g.ranks[0]->out[0] == floats(1000, -1.0f));
    }
}

TEST_CASE("vote: every rank has the sign of the sum, +1 in a tie; an owner sends it in one bit an element") {
  for (const std::string schedule : {"gather", "gather(parts=2)", "owner", "owner(parts=2)"}) {
    world::options o;
    o.ranks = 4;
    o.plan = "index=all value=raw merge=vote exchange=" + schedule;
    CAPTURE(o.plan);
    o.sizes = {16000, 3, 0};
    std::shared_ptr<const dr::plan> sign;
    dr_error error = dr::no_error();
    if (schedule[0] == 'o' && dr::bind_plan("index=all value=sign", sign, error)) {
      // (A build without that codec says so.)
      dr::loopback net;
      dr_loopback_options l{};
      l.ranks = 4;
      REQUIRE(net.create(l, error) == DR_OK);
      world::rank r;
      REQUIRE(r.context.start(dr_context_options{}, error) == DR_OK);
      for (const size_t n : o.sizes) r.in.emplace_back(n), r.out.emplace_back(n);
      dr::exchange x(r.context);
      CHECK(x.create({world::plan_of(o.plan), net.transport(0), o.exchange}, group::views(o, r), group::outs(o, r)) ==
            DR_E_ARGUMENT);
      CHECK(r.error().find("sign") != std::string::npos);
      continue;
    }
    group g(o);
    for (uint64_t step = 0; step < 2; ++step) {
      g.draw(step);
      g.run_well(step);
      REQUIRE(g.all_alike());
      size_t ties = 0;
      for (size_t t = 0; t < o.sizes.size(); ++t) {
        const auto total = g.total(t);
        for (size_t i = 0; i < total.size(); ++i) {
          REQUIRE(g.ranks[3]->out[t][i] == (total[i] < 0 ? -1 : 1));
          ties += total[i] == 0;
        }
      }
      CHECK(ties > 0);
      if (schedule[0] != 'o') continue;
      // To each of three others a quarter of the gradient, and a quarter of the votes.
      const dr_exchange_info info = g.ranks[0]->exchange->info();
      CHECK(info.sent < 3 * (4 * 16000 / 4 + 16000 / 8 / 4) + 5000);
    }
  }
}

TEST_CASE("memories and votes that a schedule would not do justice are refused with the reason") {
  const struct {
    const char *plan, *word;
    uint64_t dense_below;
  } refused[] = {
      {"index=all feedback=dgc exchange=ring", "momentum of feedback=dgc again", 0},
      {"index=all feedback=momentum exchange=hierarchy(inner=2)", "momentum of feedback=momentum again", 0},
      {"index=all feedback=dgc(clip=1) exchange=owner", "clip=1", 0},
      {"index=all feedback=dgc(clip=1) exchange=gather(parts=2)", "2 ranges apart", 0},
      {"index=all merge=vote", "dense_below", 10},
  };
  dr_error error = dr::no_error();
  dr::loopback net;
  dr_loopback_options l{};
  l.ranks = 2;
  REQUIRE(net.create(l, error) == DR_OK);
  for (const auto& each : refused) {
    CAPTURE(each.plan);
    world::rank r;
    REQUIRE(r.context.start(dr_context_options{}, error) == DR_OK);
    world::options o;
    o.sizes = {100};
    o.exchange.dense_below = each.dense_below;
    r.in.emplace_back(100), r.out.emplace_back(100);
    dr::exchange x(r.context);
    CHECK(x.create({world::plan_of(each.plan), net.transport(0), o.exchange}, group::views(o, r), group::outs(o, r)) ==
          DR_E_UNSUPPORTED);
    CHECK(r.error().find(each.word) != std::string::npos);
  }
  world::options o;
  o.plan = "index=all feedback=dgc(clip=1)";
  o.sizes = {100};
  group taken(o);
}
