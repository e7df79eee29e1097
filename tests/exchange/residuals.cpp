// What is not sent stays: over steps, what was sent and what residuals keep make the sum of the inputs.
#include "world.hpp"

using world::group;

namespace {

void check_balance(const std::string& plan, uint32_t ranks, double tolerance) {
  CAPTURE(plan);
  world::options o;
  o.ranks = ranks;
  o.plan = plan;
  o.sizes = {6000, 300, 0, 2500};
  o.loopback.latency_ns = 10;
  group g(o);
  std::vector<std::vector<double>> inputs, sent;
  for (const size_t n : o.sizes) inputs.emplace_back(n), sent.emplace_back(n);
  for (uint64_t step = 0; step < 5; ++step) {
    g.draw(step);
    g.run_well(step);
    REQUIRE(g.all_alike());
    for (size_t t = 0; t < o.sizes.size(); ++t) {
      const auto total = g.total(t);
      for (size_t i = 0; i < total.size(); ++i) {
        inputs[t][i] += total[i];
        sent[t][i] += static_cast<double>(g.ranks[0]->out[t][i]) * ranks;
      }
    }
  }
  for (size_t t = 0; t < o.sizes.size(); ++t) {
    const auto kept = g.kept(t);
    double worst = 0;
    for (size_t i = 0; i < kept.size(); ++i) worst = std::max(worst, std::abs(inputs[t][i] - sent[t][i] - kept[i]));
    CHECK(worst <= tolerance);
  }
}

}  // namespace

TEST_CASE("inputs = sent + residuals, exactly for integers, for every schedule") {
  for (const std::string& schedule : world::schedules)
    for (const uint32_t ranks : {2u, 4u, 8u})
      check_balance("sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw exchange=" + schedule, ranks,
                    0);
}

TEST_CASE("inputs = sent + residuals to rounding, for lossy values") {
  for (const std::string& schedule : world::schedules)
    check_balance("sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd(levels=127) exchange=" + schedule,
                  4, 0.05);
}

TEST_CASE("a run that was saved and loaded goes on bit for bit") {
  for (const std::string& schedule : world::schedules) {
    CAPTURE(schedule);
    world::options o;
    o.ranks = 4;
    o.plan = "sparsify=random(ratio=0.1) feedback=residual index=golomb value=qsgd(levels=7) exchange=" + schedule;
    o.sizes = {5000, 40};
    group one(o), two(o);
    for (uint64_t step = 0; step < 3; ++step) {
      one.draw(step);
      one.run_well(step);
    }
    world::floats residual;
    for (uint32_t i = 0; i < 4; ++i)
      for (size_t t = 0; t < o.sizes.size(); ++t)
        for (const uint32_t which : {DR_RESIDUAL_OWN, DR_RESIDUAL_SUM}) {
          residual.resize(o.sizes[t]);
          REQUIRE(one.ranks[i]->exchange->read_residual(which, t, residual.data(), residual.size()) == DR_OK);
          REQUIRE(two.ranks[i]->exchange->write_residual(which, t, residual.data(), residual.size()) == DR_OK);
        }
    for (uint64_t step = 3; step < 5; ++step) {
      one.draw(step), two.draw(step);
      one.run_well(step), two.run_well(step);
      for (size_t t = 0; t < o.sizes.size(); ++t) REQUIRE(one.ranks[0]->out[t] == two.ranks[0]->out[t]);
    }
  }
}

TEST_CASE("a residual is refused by a rank that keeps none of it") {
  world::options o;
  o.ranks = 2;
  o.plan = "sparsify=topr(ratio=0.1) feedback=residual exchange=owner";
  o.sizes = {4096};
  group g(o);
  world::floats residual(4096, 1.0f);
  dr::exchange& x = *g.ranks[0]->exchange;
  CHECK(x.write_residual(DR_RESIDUAL_OWN, 0, residual.data(), 4096) == DR_OK);
  CHECK(x.write_residual(DR_RESIDUAL_SUM, 0, residual.data(), 4096) == DR_E_ARGUMENT);
  CHECK(g.ranks[0]->error() == "residual: element 2048 is 1, and this rank keeps none of it");
  CHECK(x.write_residual(DR_RESIDUAL_OWN, 0, residual.data(), 4095) == DR_E_ARGUMENT);
  CHECK(x.write_residual(DR_RESIDUAL_OWN, 1, residual.data(), 4096) == DR_E_ARGUMENT);
  CHECK(x.read_residual(2, 0, residual.data(), 4096) == DR_E_ARGUMENT);
}
