// The model of a step (tool/predict): by hand where it is simple, and by its properties.
#include <doctest/doctest.h>

#include <cmath>

#include "predict_parts.hpp"

using namespace parts;

namespace {

constexpr double ms = 1e6;

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
  // A unit has no more than 4 MiB: here each tensor is one. Encode: 8 µs + 3.5 ms; a merge of two frames: 6 µs + 0.7 ms.
  const double encode = 8e3 + 0.5 * 7e6, merge = 2 * (3e3 + 0.05 * 7e6);
  const double size = 24 + 8 + 60 + 0.04 * 7e6, slot = std::ceil(1.024 * size / 64) * 64;
  const double gather = 8e9 * slot / 1e9;
  const outcome o = t.model.step(t.uniform(sparse_plan));
  CHECK(o.encode_ns == doctest::Approx(2 * encode));
  CHECK(o.merge_ns == doctest::Approx(2 * merge));
  CHECK(o.bytes == doctest::Approx(2 * slot));
  // The second gather starts behind backward and both encodes; the first unit is merged meanwhile.
  CHECK(o.step_ns == doctest::Approx(100 * ms + 2 * encode + std::max(gather, merge) + merge));
}

TEST_CASE("every exchange waits for the slowest rank") {
  toy t(training_of({5e5, 5e5}, 100 * ms), 10e9, 4);  // (one unit: backward would hide the wait of the first of two)
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
  CHECK(t.model.step(c).bytes <= alone + 128);  // a sparsifier chooses among all elements
  t.model.how.bypass = 1000;
  const double both = t.model.step(c).bytes;
  CHECK(both > alone + 400);
  CHECK(both < alone + 1000);
}

TEST_CASE("units are those of a sender, whatever DDP's buckets are") {
  // Of 4 MiB at most, from the last tensor to the first, but of a transform 25 MiB; halves are apart; small tensors of a plan
  // with levels for each go exactly.
  toy t(training_of({6e5, 6e5, 100, 6e5, 6e5}, 100 * ms), 1e9, 2);
  const auto units_of = [&](const std::string& text, std::optional<double> dense_below = {}) {
    nlohmann::json p = profile_json();
    for (const char* const operation : {"encode", "merge"})
      p["costs"].push_back({{"plan", std::string(dr::plan(text).text())},
                            {"operation", operation},
                            {"base_ns", 0},
                            {"per_element_ns", 1}});
    const profile costs = parse_profile(p, "p");
    const plan_work w(costs, std::string(dr::plan(text).text()), t.notes);
    const std::vector<const plan_work*> choice(5, &w);
    return hook_units().of(t.model.model, choice, dense_below);
  };
  const auto sent = units_of(sparse_plan);
  REQUIRE(sent.size() == 4);  // two of 2.4 MB are more than 4 MiB
  CHECK(sent[0].tensors[0].position == 4);
  CHECK(sent[1].tensors.size() == 2);
  CHECK(sent[1].tensors[1].position == 2);
  for (const hook_unit& u : sent) {
    CHECK(u.kind == DR_UNIT_FRAMES);
    CHECK(u.frames == 1);
    for (const auto& tensor : u.tensors) CHECK((tensor.flat && !tensor.exact));
  }
  const auto below = units_of(sparse_plan, 1000);
  CHECK(std::ranges::count_if(below[1].tensors, [](const auto& x) { return x.exact && x.position == 2; }) == 1);
  CHECK(below[1].frames == 2);
  const auto levels = units_of("index=all value=uniform_quant(bits=4) exchange=owner");
  REQUIRE(levels.size() == 4);
  CHECK(levels[1].kind == DR_UNIT_OWNER);
  CHECK(std::ranges::any_of(levels[1].tensors, [](const auto& x) { return x.exact && x.position == 2; }));
  CHECK(std::ranges::any_of(levels[1].tensors, [](const auto& x) { return !x.exact && !x.flat; }));
  const auto factors = units_of("transform=lowrank(rank=4) feedback=residual");
  REQUIRE(factors.size() == 1);
  CHECK(factors[0].kind == DR_UNIT_FACTORS);
  CHECK(units_of("index=all value=half")[0].kind == DR_UNIT_HALVES);
  CHECK_THROWS_WITH_AS(units_of(std::string(sparse_plan) + " exchange=ring"), doctest::Contains("exchange=owner"),
                       unsupported_model);
}

TEST_CASE("a hook without plans is not a hook") {
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
  const auto [above, rate] = break_even_rate(t.model, c);
  CHECK(above == 0);
  REQUIRE(rate > 0);
  REQUIRE(std::isfinite(rate));
  const step_model there = t.model.with_rate(rate);
  CHECK(there.step(c).step_ns == doctest::Approx(there.best_dense_ns()).epsilon(1e-4));
  // A link that is twice as fast pays no more.
  CHECK(t.model.with_rate(2 * rate).step(c).step_ns > t.model.with_rate(2 * rate).best_dense_ns());
  // Larger batches hide what dense gradients take.
  const step_model fast = t.model.with_rate(0.7 * rate);
  const double batch = break_even_batch(fast, c).below;
  REQUIRE(std::isfinite(batch));
  CHECK(batch > 1);
}

TEST_CASE("frames of all ranks with half the messages of a ring pay on fast links alone, and no limit says always") {
  toy t(training_of({1e5}, 1 * ms), 1e9, 64, 1 * ms);
  const candidate c = t.uniform(lossy_plan);
  const auto [above, below] = break_even_rate(t.model, c);
  CHECK(std::isinf(below));
  REQUIRE(above > 0);
  const auto is_faster = [&](double rate) {
    const step_model m = t.model.with_rate(rate);
    return m.step(c).step_ns < m.best_dense_ns();
  };
  CHECK_FALSE(is_faster(0.99 * above));
  CHECK(is_faster(1.01 * above));
}

TEST_CASE("a step that takes over 31 years is unsupported, and no break-even trips over it") {
  toy t(training_of({1e6}, 100 * ms), 1e9, 4, 1e18);
  CHECK_THROWS_AS(t.model.step(dense_candidate(false)), unsupported_model);
  CHECK_THROWS_AS(t.model.step(t.uniform(sparse_plan)), unsupported_model);
  toy huge(training_of({1e14}, 0), 1e12, 4);  // at 100 kbit/s its dense ring takes 200 years
  CHECK(huge.model.step(dense_candidate(false)).step_ns > 0);
  CHECK(break_even_rate(huge.model, huge.uniform(sparse_plan)).below > 0);
}

TEST_CASE("every exchange of a book continues where the one before ended, with the ranks level") {
  toy t(training_of({3e6, 2e6, 1e6}, 100 * ms), 1e9, 4);
  t.model.hook = hook_kind::exchange;
  candidate c;
  c.works = {t.work(sparse_plan), t.work(lossy_plan)};
  for (const std::vector<int>& choice : {std::vector<int>{0, 1, -1}, {0, 1, 1}, {-1, -1, -1}}) {
    c.choice = choice;
    t.model.how.skew_ns = 0;
    const double level = t.model.step(c).step_ns;
    t.model.how.skew_ns = 3 * ms;
    CHECK(t.model.step(c).step_ns == doctest::Approx(level + 3 * ms));
  }
}

TEST_CASE("too many ranks for a loopback are unsupported") {
  toy t(training_of({1e8}, 100 * ms), 1e9, 5000);
  t.model.hook = hook_kind::exchange;
  CHECK_THROWS_WITH_AS(t.model.step(t.uniform(sparse_plan)), "unsupported: an exchange among 5000 ranks; at most 4096",
                       unsupported_model);
  t.model.net.ranks = 4096;
  CHECK(t.model.step(t.uniform(sparse_plan)).step_ns > 100 * ms);
}

TEST_CASE("a large model among 1,024 ranks is predicted, by the hook and by an exchange") {
  training big = training_of({}, 0);
  big.backward_ns = 100 * ms;
  for (int i = 0; i < 161; ++i) {
    tensor_spec each;
    each.name = "t" + std::to_string(i);
    each.elements = i % 3 ? 1e3 : 4e5, each.ready_ns = 100 * ms * (161 - i) / 161;
    big.tensors.push_back(each);
  }
  toy t(big, 10e9, 1024, 15e3);
  for (const auto hook : {hook_kind::ddp, hook_kind::exchange}) {
    t.model.hook = hook;
    for (const candidate& c : {dense_candidate(false), t.uniform(sparse_plan),
                               t.uniform(std::string(lossy_plan) + " exchange=owner(parts=4)")}) {
      const outcome o = t.model.step(c);
      CHECK(o.step_ns > 100 * ms);
      CHECK(o.step_ns <= doctest::Approx(o.no_overlap_ns));
    }
  }
}

TEST_CASE("another machine computes all of it at another speed, and another batch backward only") {
  toy t(training_of({100, 7e6}, 100 * ms), 1e12, 2);
  t.model.how.hook_ns = 5 * ms, t.model.flops = 1e9;
  const double rank4 = t.model.step(powersgd_candidate(4)).encode_ns;
  REQUIRE(rank4 > 0);
  const step_model slow = t.model.with_compute(3);
  CHECK(slow.step(powersgd_candidate(4)).encode_ns == doctest::Approx(3 * rank4));
  CHECK(slow.how.hook_ns == 15 * ms);
  CHECK(slow.exact->encode_ns(1e6) == doctest::Approx(3 * t.model.exact->encode_ns(1e6)));
  CHECK(slow.exact->frame_bytes(1e6) == t.model.exact->frame_bytes(1e6));
  candidate c = t.uniform(sparse_plan);
  const outcome before = t.model.step(c);
  for (auto& w : c.works) w = std::make_shared<const plan_work>(w->scaled(3, 1));
  const outcome after = slow.step(c);
  CHECK(after.step_ns - after.link_ns == doctest::Approx(3 * (before.step_ns - before.link_ns)).epsilon(0.01));
  CHECK(t.model.with_batch(3).step(powersgd_candidate(4)).encode_ns == doctest::Approx(rank4));
  CHECK(t.model.with_batch(3).how.hook_ns == 5 * ms);
}

TEST_CASE("frames of sums grow on with the ranks, at most as their number, but where they are sparsified again") {
  // Behind a sparsifier a sum has as many elements as a gradient: 2 % more of 4 ranks is entropy coding's.
  const char* const plain = "index=golomb value=raw";
  nlohmann::json grown = profile_json();
  for (const char* operation : {"encode", "merge"}) {
    grown["costs"].push_back(grown["costs"][0]);
    grown["costs"].back()["plan"] = plain, grown["costs"].back()["operation"] = operation;
  }
  grown["frames"].push_back(grown["frames"][0]);
  grown["frames"][2]["plan"] = plain;
  grown["frames"][2]["sum_growth"] = {{2, 1.5}, {4, 2.5}};
  grown["frames"][0]["sum_growth"] = {{2, 0.96}, {4, 1.02}, {8, 1.07}};
  grown["frames"][1]["sum_growth"] = {{2, 1.01}, {4, 0.99}};
  note_list notes;
  const profile p = parse_profile(grown, "p");
  const std::string ring_plan = std::string(plain) + " exchange=ring";
  const plan_work up(p, std::string(dr::plan(ring_plan).text()), notes), flat(p, p.plans[1].plan, notes);
  const plan_work kept(p, std::string(dr::plan(sparse_plan).text()), notes);
  CHECK(up.sum_growth(3) == doctest::Approx(2));
  CHECK(up.sum_growth(8) == doctest::Approx(4.5));
  CHECK(flat.sum_growth(64) == doctest::Approx(0.99));
  CHECK(kept.sum_growth(3) == doctest::Approx(0.99));
  CHECK(kept.sum_growth(8) == doctest::Approx(1.07));
  CHECK(kept.sum_growth(1024) == doctest::Approx(1.07));
  grown["frames"][2]["sum_growth"] = {{2, 2}, {4, 9}};
  CHECK(plan_work(parse_profile(grown, "p"), up.text(), notes).sum_growth(8) == 8);
  notes.clear();
  up.note_growth(4, notes), flat.note_growth(64, notes);  // (a gather sends no sums)
  CHECK(notes.empty());
  up.note_growth(8, notes);
  CHECK(notes.size() == 1);
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

TEST_CASE("a measured link at its own rate is itself, and its bytes scale with the rate") {
  toy t(training_of({2e6, 2e6}, 10 * ms), 2e10, 2);
  network& n = t.model.net;
  n.measured = t.costs.links.at(0), n.stated = n.wire.has_latency = false;
  n.measured->port_bits_per_second = 1e10;
  n.measured->allreduce->samples = {{1024, 150e3}, {1e6, 900e3}, {1e7, 8e6}};
  for (const auto hook : {hook_kind::ddp, hook_kind::exchange}) {
    t.model.hook = hook;
    for (const candidate& c : {dense_candidate(false), t.uniform(sparse_plan)})
      CHECK(t.model.with_rate(2e10).step(c).step_ns == t.model.step(c).step_ns);
  }
  const network half = n.with_rate(1e10);
  CHECK(!half.stated);
  CHECK(half.allreduce_ns(1024) == doctest::Approx(150e3));  // nothing but what is beside the bytes
  CHECK(half.allreduce_ns(1e6) == doctest::Approx(200e3 + 2 * 700e3));
  CHECK(half.allgather_ns(1e6) == doctest::Approx(150e3 + 2 * 0.6e6));
  CHECK(half.port("exchange=owner").bits_per_second == 0.5e10);
}

TEST_CASE("among other ranks the profile's nearest link counts, and a note says so where it is another") {
  toy t(training_of({2e6}, 0), 2e10, 2);
  measured_link four = t.costs.links.at(0);
  four.ranks = 4, four.bits_per_second = 1e10, four.allreduce->base = 700e3;
  t.costs.links.push_back(four);
  network& n = t.model.net;
  n.measured = t.costs.links[0], n.stated = n.wire.has_latency = false;
  note_list notes;
  const step_model at_four = t.model.with_ranks(4);
  CHECK(at_four.net.allreduce_ns(0) == 700e3);
  CHECK(at_four.net.wire.bits_per_second == 1e10);
  at_four.note_link(notes);
  CHECK(notes.empty());
  t.model.with_ranks(8).note_link(notes);
  CHECK(notes == note_list{"extrapolation: the link was measured among 4 ranks, not 8"});
  // Also for a stated rate without a stated latency.
  n.stated = true, notes.clear();
  CHECK(t.model.with_ranks(8).net.wire.bits_per_second == 2e10);
  t.model.with_ranks(8).note_link(notes);
  CHECK(notes.size() == 1);
  n.wire.has_latency = true, notes.clear();
  t.model.with_ranks(8).note_link(notes);
  CHECK(notes.empty());
}

TEST_CASE("ranks of a host share its link where all send to all") {
  network n;
  n.ranks = 8, n.ranks_per_host = 4, n.wire = {1e9, 0, true};
  // 4 ranks send each 4 frames to the other host: 16 over the link; a rank's port has 7.
  CHECK(7 / n.port("owner").bits_per_second == doctest::Approx(16 / 1e9));
  CHECK(n.port("ring").bits_per_second == 1e9);
  // Unless that was measured.
  n.measured = measured_link{"mpi", 8, 4, 0, 1e9, 3e8, {}, {}};
  CHECK(n.port("owner").bits_per_second != 3e8);
  n.stated = false;
  CHECK(n.port("owner").bits_per_second == 3e8);
  CHECK(n.port("ring").bits_per_second == 1e9);
}
