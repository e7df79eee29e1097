// Every schedule gives every rank the same bits, and with a lossless plan the exact sum.
#include "world.hpp"

using world::group;
using world::schedules;

namespace {

std::vector<size_t> many_sizes() {
  std::vector<size_t> sizes;
  for (size_t i = 0; i < 161; ++i) sizes.push_back(i % 7 == 3 ? 0 : i * i % 997 + (i == 80 ? 20000 : 0));
  return sizes;
}

}  // namespace

TEST_CASE("a lossless plan yields the exact mean on every rank, whatever the schedule") {
  for (const std::string& schedule : schedules)
    for (const uint32_t ranks : {1u, 2u, 3u, 4u, 5u, 8u}) {
      CAPTURE(schedule);
      CAPTURE(ranks);
      world::options o;
      o.ranks = ranks;
      o.plan = "index=golomb value=raw exchange=" + schedule;
      o.sizes = {5000, 0, 1, 4099};
      o.exchange.flags = DR_EXCHANGE_SUM;
      o.loopback.seed = ranks;
      group g(o);
      for (uint64_t step = 0; step < 2; ++step) {
        g.draw(step);
        g.run_well(step);
        REQUIRE(g.all_alike());
        for (size_t t = 0; t < o.sizes.size(); ++t) {
          const auto total = g.total(t);
          for (size_t i = 0; i < total.size(); ++i) REQUIRE(static_cast<double>(g.ranks[0]->out[t][i]) == total[i]);
        }
      }
    }
}

TEST_CASE("a mean is the sum over the number of ranks") {
  for (const std::string& schedule : schedules) {
    CAPTURE(schedule);
    world::options o;
    o.ranks = 4;
    o.plan = "index=golomb value=raw exchange=" + schedule;
    o.sizes = {3000};
    group g(o);
    g.draw(7);
    g.run_well(7);
    REQUIRE(g.all_alike());
    const auto total = g.total(0);
    for (size_t i = 0; i < total.size(); ++i) REQUIRE(static_cast<double>(g.ranks[0]->out[0][i]) == total[i] / 4);
  }
}

TEST_CASE("ranks are bit-identical for lossy plans and batches of 161 tensors") {
  const std::string plans[] = {
      "sparsify=topr(ratio=0.1) feedback=residual index=golomb value=qsgd(levels=127)",
      "sparsify=topr(ratio=0.05) feedback=residual index=bloom(policy=p2,fpr=0.01) value=raw",
      "sparsify=topr(ratio=0.1) index=raw value=fit_poly",
      "sparsify=random(ratio=0.1) feedback=residual index=gap_huffman value=log_quant",
      "sparsify=topr(ratio=0.1) feedback=residual index=auto value=auto(error=0.05)",
      "sparsify=topr(count=3) feedback=residual index=elias_fano value=half",
      "sparsify=topr(ratio=0.02) feedback=residual bucket=flat index=golomb value=lloyd(levels=2)",
      "sparsify=blocks(ratio=0.1,block=8) feedback=residual index=golomb value=qsgd(levels=127)",
      "sparsify=blocks(ratio=0.05) feedback=residual bucket=flat index=auto value=auto(error=0.05)"};
  for (const std::string& plan : plans)
    for (const std::string& schedule : schedules) {
      world::options o;
      o.ranks = 4;
      o.plan = plan + " exchange=" + schedule;
      CAPTURE(o.plan);
      o.sizes = many_sizes();
      o.loopback.latency_ns = 1000;
      o.loopback.bytes_per_second = 1e8;
      group g(o);
      for (uint64_t step = 0; step < 2; ++step) {
        g.draw(step);
        g.run_well(step);
        REQUIRE(g.all_alike());
      }
    }
}

TEST_CASE("small tensors go dense beside the others, exact") {
  for (const std::string& schedule : schedules) {
    CAPTURE(schedule);
    world::options o;
    o.ranks = 3;
    o.plan = "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw exchange=" + schedule;
    o.sizes = {100, 50000, 999, 1000};
    o.exchange.dense_below = 1000;
    o.exchange.flags = DR_EXCHANGE_SUM;
    group g(o);
    g.draw(1);
    g.run_well(1);
    REQUIRE(g.all_alike());
    for (const size_t t : {0, 2}) {
      const auto total = g.total(t);
      for (size_t i = 0; i < total.size(); ++i) REQUIRE(static_cast<double>(g.ranks[0]->out[t][i]) == total[i]);
    }
    size_t zeros = 0;
    for (const float x : g.ranks[0]->out[3]) zeros += x == 0;
    CHECK(zeros >= 1000 - 3 * 10 * 3);
  }
}
