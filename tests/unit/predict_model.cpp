// The model of a step (bench/predict): by hand where it is simple, against published figures, and by its properties.
#include <doctest/doctest.h>

#include <cmath>

#include "bench/predict/hipress_model.hpp"
#include "bench/predict/study_model.hpp"
#include "predict_parts.hpp"

using namespace parts;

namespace {

constexpr double ms = 1e6, megabyte = 1e6;

double ring(double bytes, double n, double rate, double latency = 0) {
  return 2 * (n - 1) * (latency + 8e9 * bytes / n / rate);
}

}  // namespace

TEST_CASE("a cost is on the line between two samples, elsewhere on the fit") {
  const curve c{.floor = 5, .base = 1, .slope = 2, .from = 10, .to = 40, .samples = {{10, 30}, {20, 40}, {40, 200}}};
  CHECK(c(10) == 30);
  CHECK(c(15) == 35);
  CHECK(c(30) == 120);
  CHECK(c(40) == 200);
  CHECK(c(9) == 19);
  CHECK(c(41) == 83);
  CHECK(c(1) == 5);
  CHECK(c.scaled(3)(15) == 105);
  CHECK(c.scaled(3)(41) == 249);
}

// ---- The hook's events ---------------------------------------------------------------------------------------

TEST_CASE("a dense step is backward, then the all-reduce of the last bucket, where the link is fast") {
  // 1 MiB closes DDP's first bucket, so the first tensor to be ready, the last, travels during backward.
  toy t(training_of({2e6, 2e6}, 100 * ms), 10e9, 4);
  const outcome o = t.model.step(dense_candidate(false));
  CHECK(o.step_ns == doctest::Approx(100 * ms + ring(8e6, 4, 10e9)));
  CHECK(o.exposed_ns == doctest::Approx(ring(8e6, 4, 10e9)));
  CHECK(o.link_ns == doctest::Approx(2 * ring(8e6, 4, 10e9)));
  CHECK(t.model.step(dense_candidate(true)).step_ns == doctest::Approx(100 * ms + ring(4e6, 4, 10e9)));
}

TEST_CASE("a slow link is busy from the first bucket on") {
  toy t(training_of({2e6, 2e6}, 100 * ms), 100e6, 4);
  CHECK(t.model.step(dense_candidate(false)).step_ns == doctest::Approx(50 * ms + 2 * ring(8e6, 4, 100e6)));
}

TEST_CASE("computing beside the link is slowed down, and only that") {
  toy t(training_of({2e6, 2e6}, 100 * ms), 10e9, 4);
  t.model.how.slowdown = 1.5;
  const double bucket = ring(8e6, 4, 10e9);  // 9.6 ms, in which backward does 6.4 ms of work
  CHECK(t.model.step(dense_candidate(false)).step_ns == doctest::Approx(100 * ms + bucket - bucket / 1.5 + bucket));
}

TEST_CASE("the hook encodes on the thread of backward, and merges in order at its end") {
  toy t(training_of({7e6, 7e6}, 100 * ms), 1e9, 2);
  // A unit has no more than 25 MiB: here each tensor is one. Encode: 8 µs + 3.5 ms; a merge of two frames: 6 µs + 0.7 ms.
  const double encode = 8e3 + 0.5 * 7e6, merge = 2 * (3e3 + 0.05 * 7e6);
  const double size = 8 + 60 + 0.04 * 7e6, slot = std::ceil((size + size / 8) / 64) * 64;
  const double gather = 8e9 * slot / 1e9;
  const outcome o = t.model.step(t.uniform(sparse_plan));
  CHECK(o.encode_ns == doctest::Approx(2 * encode));
  CHECK(o.merge_ns == doctest::Approx(2 * merge));
  CHECK(o.bytes == doctest::Approx(2 * slot));
  // The second gather starts behind backward and both encodes; the first unit is merged meanwhile.
  CHECK(o.step_ns == doctest::Approx(100 * ms + 2 * encode + std::max(gather, merge) + merge));
}

TEST_CASE("every exchange waits for the slowest rank") {
  toy t(training_of({2e6, 2e6}, 100 * ms), 10e9, 4);
  const candidate c = t.uniform(sparse_plan), dense = dense_candidate(false);
  const double before = t.model.step(c).step_ns, dense_before = t.model.step(dense).step_ns;
  t.model.how.skew_ns = 3 * ms;
  CHECK(t.model.step(c).step_ns == doctest::Approx(before + 3 * ms));
  CHECK(t.model.step(dense).step_ns == doctest::Approx(dense_before + 3 * ms));
  t.model.how.hook_ns = 1 * ms;  // beside the wait, in which the link is idle
  CHECK(t.model.step(c).step_ns == doctest::Approx(before + 3 * ms));
  CHECK(t.model.step(dense).step_ns == doctest::Approx(dense_before + 3 * ms));
  t.model.hook = hook_kind::exchange;
  const double late = t.model.step(c).step_ns;
  t.model.how.skew_ns = 0;
  CHECK(late == doctest::Approx(t.model.step(c).step_ns + 3 * ms));
}

TEST_CASE("small tensors travel exactly in the same frames") {
  toy t(training_of({100, 7e6}, 100 * ms), 1e9, 2);
  const double alone = toy(training_of({7e6}, 100 * ms), 1e9, 2).model.step(t.uniform(sparse_plan)).bytes;
  candidate c = t.uniform(sparse_plan);
  const double both = t.model.step(c).bytes;
  CHECK(both > alone + 400);
  CHECK(both < alone + 1000);
}

TEST_CASE("a hook without plans is no hook") {
  toy t(training_of({2e6, 2e6}, 100 * ms), 1e9, 4);
  candidate c = t.uniform(sparse_plan);
  c.choice = {-1, -1};
  CHECK(t.model.step(c).step_ns == t.model.step(dense_candidate(false)).step_ns);
}

TEST_CASE("an exchange behind backward takes what its program takes") {
  toy t(training_of({4e6}, 100 * ms), 1e9, 8);
  t.model.hook = hook_kind::exchange;
  const outcome o = t.model.step(t.uniform(sparse_plan));
  const double frame = 60 + 0.04 * 4e6,
               by_hand = 8e3 + 0.5 * 4e6 + 7 * 8 * frame + 8 * (3e3 + 0.05 * 4e6) + 7 * 8 * 256;
  CHECK(o.step_ns == doctest::Approx(100 * ms + by_hand).epsilon(1e-5));
  CHECK(t.model.step(dense_candidate(false)).step_ns == doctest::Approx(100 * ms + ring(16e6, 8, 1e9)));
  // Parts overlap.
  const double owner = t.model.step(t.uniform(std::string(lossy_plan) + " exchange=owner")).step_ns;
  CHECK(t.model.step(t.uniform(std::string(lossy_plan) + " exchange=owner(parts=4)")).step_ns < owner);
}

TEST_CASE("costs out of all bounds are refused, not added up") {
  toy t(training_of({4e6}, 100 * ms), 1e9, 4);
  t.model.hook = hook_kind::exchange;
  for (plan_profile& p : t.costs.plans) p.encode->slope = 1e18;
  CHECK_THROWS_AS(t.model.step(t.uniform(sparse_plan)), unsupported_model);
  CHECK_THROWS_AS(t.model.step(t.uniform(std::string(sparse_plan) + " exchange=ring")), unsupported_model);
}

TEST_CASE("a step is within its bounds, where computing is not slowed down") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const double rate = std::pow(10, std::uniform_real_distribution<double>(7, 11)(random));
    const uint32_t ranks = std::uniform_int_distribution<uint32_t>(2, 64)(random);
    CAPTURE(i);
    toy t(random_training(random), rate, ranks, 20e3);
    t.model.hook = i % 4 == 0 ? hook_kind::exchange : hook_kind::ddp;
    for (const candidate& c :
         {dense_candidate(false), dense_candidate(true), t.uniform(sparse_plan), t.uniform(lossy_plan)}) {
      const outcome o = t.model.step(c, i % 8 == 0);
      CHECK(o.step_ns <= o.no_overlap_ns * (1 + 1e-9));
      CHECK(o.step_ns >= o.perfect_ns * (1 - 1e-9));
      CHECK(o.exposed_ns >= 0);
      for (const interval& each : o.timeline) {
        CHECK(each.begin_ns <= each.end_ns);
        CHECK(each.end_ns <= o.step_ns * (1 + 1e-9));
      }
    }
  }
}

TEST_CASE("a faster link is never slower, and dense steps gain most from it") {
  std::mt19937_64 random(8);
  for (int i = 0; i < 50; ++i) {
    toy t(random_training(random), 1e8, 8);
    double before = INFINITY;
    for (double rate = 1e7; rate < 1e12; rate *= 3) {
      const double step = t.model.with_rate(rate).step(t.uniform(sparse_plan)).step_ns;
      CHECK(step <= before);
      before = step;
    }
  }
}

TEST_CASE("at the break-even rate both take the same time") {
  toy t(training_of({1e5, 7e6, 7e6, 7e6}, 20 * ms), 1e9, 8);
  const candidate c = t.uniform(sparse_plan);
  const double rate = break_even_rate(t.model, c);
  REQUIRE(rate > 0);
  REQUIRE(std::isfinite(rate));
  const step_model there = t.model.with_rate(rate);
  CHECK(there.step(c).step_ns == doctest::Approx(there.best_dense_ns()).epsilon(1e-4));
  // A link that is twice as fast pays no more.
  CHECK(t.model.with_rate(2 * rate).step(c).step_ns > t.model.with_rate(2 * rate).best_dense_ns());
  // Larger batches hide what dense gradients take.
  const step_model fast = t.model.with_rate(0.7 * rate);
  const double batch = break_even_batch(fast, c);
  REQUIRE(std::isfinite(batch));
  CHECK(batch > 1);
}

// ---- Collectives ---------------------------------------------------------------------------------------------

TEST_CASE("a link without a stated latency has what was measured beside the bytes") {
  toy t(training_of({2e6}, 0), 1e9, 2);
  network n = t.model.net;
  n.measured = t.costs.links.at(0);
  CHECK(n.allreduce_ns(1e6) == doctest::Approx(ring(1e6, 2, 1e9)));
  n.wire.has_latency = false;
  CHECK(n.allreduce_ns(1e6) == doctest::Approx(200e3 + ring(1e6, 2, 1e9)));
  CHECK(n.allgather_ns(1e6) == doctest::Approx(150e3 + 8e6));
  n.stated = false;  // as it was measured
  CHECK(n.allreduce_ns(1e6) == doctest::Approx(200e3 + 0.5e6));
  CHECK(n.with_ranks(8).allgather_ns(1e6) == doctest::Approx(7 * (150e3 + 0.6e6)));
}

TEST_CASE("ranks of a host share its link where all send to all") {
  network n;
  n.ranks = 8, n.ranks_per_host = 4, n.wire = {1e9, 0, true};
  // 4 ranks send each 4 frames to the other host: 16 over the link; a rank's port has 7.
  CHECK(7 / n.port("exchange=owner").bits_per_second == doctest::Approx(16 / 1e9));
  CHECK(n.port("exchange=ring").bits_per_second == 1e9);
  // Unless that was measured.
  n.measured = measured_link{"mpi", 8, 4, 0, 1e9, 3e8, {}, {}};
  CHECK(n.port("exchange=owner").bits_per_second != 3e8);
  n.stated = false;
  CHECK(n.port("exchange=owner").bits_per_second == 3e8);
  CHECK(n.port("exchange=ring").bits_per_second == 1e9);
}

// ---- Published figures ---------------------------------------------------------------------------------------

TEST_CASE("the study's formulas give the figures that follow from its inputs") {
  // ResNet-50: 102 MB, buckets of 26.2 MB, slow-down 1.07, backward 122 ms, 15 µs a hop, 64 ranks.
  const auto sync = [](double gbit) {
    return study_sync_ns(102 * megabyte, 26.2 * megabyte, 122 * ms, 1.07, 64, {1e9 * gbit, 15e3, true}) / ms;
  };
  const auto power = [](double gbit) {
    return study_allreduce_ns(1.6 * megabyte, 2, 122 * ms, 45 * ms, 64, {1e9 * gbit, 15e3, true}) / ms;
  };
  for (const auto& [gbit, expected_sync, expected_power] : {std::tuple{1.0, 1618.0, 196.0},
                                                            {4.0, 410.0, 177.0},
                                                            {8.0, 209.0, 174.0},
                                                            {9.0, 186.0, 174.0},
                                                            {10.0, 170.0, 173.0},
                                                            {20.0, 151.0, 172.0}}) {
    CAPTURE(gbit);
    CHECK(sync(gbit) == doctest::Approx(expected_sync).epsilon(0.01));
    CHECK(power(gbit) == doctest::Approx(expected_power).epsilon(0.01));
  }
  double low = 1, high = 20;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (sync(middle) > power(middle) ? low : high) = middle;
  }
  CHECK(low == doctest::Approx(9.7).epsilon(0.01));
}

TEST_CASE("with equal buckets the events give the study's formula where the link never idles") {
  // Its formula has all transfers but the last from the beginning on; so do gradients that are ready at once.
  training t = training_of({1, 1, 1, 1}, 122 * ms);
  for (tensor_spec& each : t.tensors) each.elements = 6.5e6, each.ready_ns = 0;
  t.tensors[0].ready_ns = 122 * ms;
  for (const double gbit : {1.0, 3.0, 100.0}) {
    toy m(t, 1e9 * gbit, 64, 15e3);
    m.model.how.bucket_bytes = m.model.how.first_bucket_bytes = 26e6;
    const double formula = study_sync_ns(4 * 26e6, 26e6, 122 * ms, 1, 64, m.model.net.wire);
    CHECK(m.model.step(dense_candidate(false)).step_ns == doctest::Approx(formula));
  }
}

TEST_CASE("PowerSGD sends two thin matrices, and vectors as they are") {
  training t = sized_training("64x3x3x3,1000,512x2048");
  t.tensors[1].rows = 1000;
  const powersgd_size s = powersgd_of(t, 4);
  CHECK(s.bytes == 4 * (4 * (64 + 27) + 1000 + 4 * (512 + 2048)));
  CHECK(!s.guessed);
  CHECK(powersgd_of(sized_training("1000000"), 4).guessed);
}

TEST_CASE("HiPress's constants give its thresholds and its partitions") {
  using enum hipress_topology;
  // The table has the first of sizes in steps of 5 %, in MiB.
  const auto near = [](double bytes, double expected) {
    CHECK(bytes / (1 << 20) <= expected * 1.002);
    CHECK(bytes / (1 << 20) >= expected / 1.052);
  };
  near(hipress_threshold(4, ps), 2.63), near(hipress_threshold(8, ps), 4.95), near(hipress_threshold(16, ps), 9.80);
  near(hipress_threshold(4, hipress_topology::ring), 2.63), near(hipress_threshold(8, hipress_topology::ring), 4.49);
  near(hipress_threshold(16, hipress_topology::ring), 8.47);
  struct known {
    double megabytes;
    uint32_t nodes, partitions;
    double dense_ms, compressed_ms;
  };
  for (const known& k : {known{16, 16, 6, 8.67, 6.44},
                         {64, 16, 12, 29.0, 8.96},
                         {392, 16, 16, 167.9, 18.9},
                         {4, 4, 1, 2.07, 1.70},
                         {16, 4, 4, 6.34, 2.13},
                         {392, 4, 4, 140, 11.9}}) {
    CAPTURE(k.megabytes);
    CAPTURE(k.nodes);
    const hipress_plan p = hipress_decision(k.megabytes * (1 << 20), k.nodes, ps);
    CHECK(p.compress);
    CHECK(p.partitions == k.partitions);
    CHECK(p.dense_ms == doctest::Approx(k.dense_ms).epsilon(0.01));
    CHECK(p.compressed_ms == doctest::Approx(k.compressed_ms).epsilon(0.01));
  }
  CHECK(!hipress_decision(4 * (1 << 20), 16, ps).compress);
  const hipress_plan large = hipress_decision(16 * (1 << 20), 16, hipress_topology::ring);
  CHECK(large.compress);
  CHECK(large.partitions == 16);
  CHECK_THROWS(hipress_decision(1e6, 5, ps));
}

TEST_CASE("billed by what decode restores, HiPress's planner expects less") {
  const double bytes = 392.0 * (1 << 20);
  CHECK(hipress_decision(bytes, 16, hipress_topology::ps, true).compressed_ms >
        1.05 * hipress_decision(bytes, 16, hipress_topology::ps).compressed_ms);
}
