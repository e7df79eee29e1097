// The model of a step (tool/predict) against published figures.
#include <doctest/doctest.h>

#include "predict_parts.hpp"
#include "tool/predict/hipress_model.hpp"
#include "tool/predict/study_model.hpp"

using namespace parts;

namespace {

constexpr double ms = 1e6, megabyte = 1e6;

}  // namespace

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
