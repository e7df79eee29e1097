// Units whose slots are numbers that an all-reduce adds up (halves, factors), and units of sparse rows.
#include "sender_world.hpp"

#include <deepreduce/transform.h>

#include <cfloat>

using namespace sending;

namespace {

const std::string halves = "index=all value=half(type=bf16)", lowrank = "transform=lowrank(rank=2) feedback=residual";

float bf16(float x) {
  const uint16_t h = to_bf16(x);
  return number(reinterpret_cast<const uint8_t*>(&h), DR_BF16);
}

std::vector<float> warm_start(const world& w, size_t r, size_t t) {
  std::vector<float> q(w.sent_tensor(t).warm_state / 4);
  REQUIRE(dr_sender_read_state(w.ranks[r]->sender, t, DR_STATE_WARM, q.data(), 4 * q.size()) == DR_OK);
  return q;
}

// Both kinds, of two ranks.
std::vector<world> both(uint32_t flags = 0) {
  std::vector<world> all;
  all.push_back(
      {{{"a", 3000}, {"b", 700}}, {.book = "*: " + halves + " feedback=residual", .flags = flags | DR_SENDER_HALVES}});
  all.push_back({{{"a", 3000, DR_F32, "", 60}, {"b", 700, DR_F32, "", 1}},
                 {.book = "*: " + lowrank, .flags = flags, .dense_below = 0}});
  return all;
}

std::vector<float> plus(std::vector<float> x, const std::vector<float>& y, float sign = 1) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += sign * y[i];
  return x;
}

}  // namespace

TEST_CASE("halves: each rank's share is rounded once, their sum is the mean, and a residual has what rounding lost") {
  for (const bool keeps : {false, true}) {
    world w({{"a", 3000}, {"b", 700}},
            {.book = "*: " + halves + (keeps ? " feedback=residual" : ""), .flags = DR_SENDER_HALVES});
    REQUIRE(w.unit(0).kind == DR_UNIT_HALVES);
    REQUIRE(w.unit(0).numbers == DR_BF16);
    REQUIRE(w.unit(0).sum_slot == 0);
    CHECK(w.sent_tensor(0).state == (keeps ? 16 + 4 * 3000 : 0));
    for (uint64_t step = 0; step < 3; ++step) {
      w.set_random(step);
      std::vector<std::vector<float>> given;
      for (size_t r = 0; r < 2; ++r) given.push_back(plus(w.in(r, 0), w.residual(r, 0)));
      REQUIRE(w.all_ok(step));
      CHECK(w.agree());
      const auto out = w.out(0, 0);
      for (size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == bf16(bf16(given[0][i] / 2) + bf16(given[1][i] / 2)));
      for (size_t r = 0; r < 2 && keeps; ++r)
        for (size_t i = 0; i < out.size(); ++i) REQUIRE(w.residual(r, 0)[i] == given[r][i] - 2 * bf16(given[r][i] / 2));
    }
  }
  // Without the flag, and of plans that do more than that, frames travel.
  CHECK(world({{"a", 3000}}, {.book = "*: " + halves}).unit(0).kind == DR_UNIT_FRAMES);
  for (const char* const plan : {"index=golomb value=half", "sparsify=topr(ratio=0.1) index=all value=half",
                                 "index=all value=half feedback=residual(beta=0.5)", "index=all value=raw"})
    CHECK(world({{"a", 3000}}, {.book = std::string("*: ") + plan, .flags = DR_SENDER_HALVES}).unit(0).kind ==
          DR_UNIT_FRAMES);
}

TEST_CASE("halves: values that the type cannot hold add up to a finite number, on every number of ranks") {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 7u, 12u, 33u})
    for (const std::string type : {"f16", "bf16"}) {
      CAPTURE(ranks);
      CAPTURE(type);
      world w({{"a", 4}}, {.book = "*: index=all value=half(type=" + type + ")",
                           .ranks = ranks,
                           .flags = DR_SENDER_HALVES,
                           .dense_below = 0});
      const float most = type == "f16" ? 65504.0f : 0x1.fep127f;
      for (size_t r = 0; r < ranks; ++r) w.set(r, 0, {FLT_MAX, -FLT_MAX, most, 1});
      REQUIRE(w.all_ok(0));
      const auto out = w.out(0, 0);
      for (size_t i = 0; i < 3; ++i) CHECK(std::isfinite(out[i]));
      CHECK(out[0] > 0.93f * most);
      CHECK(out[1] == -out[0]);
      CHECK(std::abs(out[3] - 1) < 0.05f);
    }
}

TEST_CASE("factors are those of a transform, bit for bit") {
  world w({{"m", 3000, DR_F32, "", 60}, {"v", 700, DR_F32, "", 700}}, {.book = "*: " + lowrank, .dense_below = 0});
  REQUIRE(w.unit(0).kind == DR_UNIT_FACTORS);
  client::context contexts[2];
  dr_transform* transforms[2];
  client::plan plan(lowrank);
  dr_tensor shapes[2]{};
  shapes[0] = {.struct_size = sizeof(dr_tensor), .dtype = DR_F32, .universe = 60, .width = 50};
  shapes[1] = {.struct_size = sizeof(dr_tensor), .dtype = DR_F32, .universe = 700, .width = 1};
  for (size_t r = 0; r < 2; ++r)
    REQUIRE(dr_transform_create(contexts[r].handle, plan.handle, nullptr, shapes, sizeof *shapes, 2, &transforms[r]) ==
            DR_OK);
  for (uint64_t step = 0; step < 4; ++step) {
    w.set_random(step);
    std::vector<float> out[2][2];
    for (size_t r = 0; r < 2; ++r) {
      dr_tensor in[2] = {shapes[0], shapes[1]};
      dr_tensor_out outs[2]{};
      std::vector<float> x[2] = {w.in(r, 0), w.in(r, 1)};
      out[r][0] = x[0], out[r][1] = x[1];
      for (size_t t = 0; t < 2; ++t) {
        in[t].values = out[r][t].data();
        outs[t] = {.struct_size = sizeof(dr_tensor_out),
                   .dtype = DR_F32,
                   .universe = in[t].universe,
                   .width = in[t].width,
                   .values = out[r][t].data()};
      }
      REQUIRE(dr_transform_begin(transforms[r], in, sizeof *in, outs, sizeof *outs, 2) == DR_OK);
    }
    dr_status status[2] = {DR_PENDING, DR_PENDING};
    while (status[0] == DR_PENDING) {
      float* factor[2];
      uint64_t n = 0;
      for (size_t r = 0; r < 2; ++r) REQUIRE(dr_transform_factor(transforms[r], &factor[r], &n) == DR_OK);
      for (uint64_t i = 0; i < n; ++i) factor[0][i] = factor[1][i] = factor[0][i] + factor[1][i];
      for (size_t r = 0; r < 2; ++r) status[r] = dr_transform_next(transforms[r], 0.5f);
    }
    REQUIRE(w.all_ok(step));
    for (size_t r = 0; r < 2; ++r)
      for (size_t t = 0; t < 2; ++t) {
        CHECK(w.out(r, t) == out[r][t]);
        float* residual = nullptr;
        uint64_t n = 0;
        REQUIRE(dr_transform_residual(transforms[r], t, &residual, &n) == DR_OK);
        CHECK(w.residual(r, t) == std::vector<float>(residual, residual + n));
      }
  }
  for (dr_transform* t : transforms) dr_transform_destroy(t);
}

TEST_CASE("numbers: a value that is not finite is named by all ranks, and what the others sent goes back") {
  for (world& w : both()) {
    CAPTURE(w.unit(0).kind);
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    const auto kept0 = w.residual(0, 0), kept1 = w.residual(1, 0);
    w.set_random(2);
    auto bad = w.in(1, 0);
    bad[77] = std::numeric_limits<float>::quiet_NaN();
    w.set(1, 0, bad);
    const auto before = w.ranks[0]->out;
    for (const dr_status s : w.step(1)) CHECK(s == DR_E_PEER);
    for (const auto& r : w.ranks) {
      CHECK(r->error.frame == 1);
      CHECK(r->error.tensor == 0);
      CHECK(std::string(r->error.message).find("rank 1: a: ") == 0);
    }
    CHECK(w.ranks[0]->out == before);
    CHECK(w.residual(0, 0) == plus(kept0, w.in(0, 0)));
    CHECK(w.residual(1, 0) == kept1);
    w.set_random(3);
    CHECK(w.all_ok(2));
  }
}

TEST_CASE("numbers: with SKIP a step that is not finite leaves all as it was, and outputs are NaN") {
  for (world& w : both(DR_SENDER_SKIP)) {
    CAPTURE(w.unit(0).kind);
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    const auto kept = w.residual(0, 0);
    const auto warm = warm_start(w, 0, 0);
    w.set_random(2);
    auto bad = w.in(0, 1);
    bad[3] = -std::numeric_limits<float>::infinity();
    w.set(0, 1, bad);
    REQUIRE(w.all_ok(1));
    CHECK(w.skipped == std::vector<bool>{true, true});
    CHECK(std::isnan(w.out(1, 0)[5]));
    CHECK(w.residual(0, 0) == kept);
    CHECK(warm_start(w, 0, 0) == warm);
  }
}

TEST_CASE("halves: a gradient that is not finite is a sentence of its tensor, on its rank and on the others") {
  for (const bool keeps : {false, true}) {
    world w({{"a", 3000}, {"b", 700}},
            {.book = "*: " + halves + (keeps ? " feedback=residual" : ""), .flags = DR_SENDER_HALVES});
    w.set_random(1);
    auto bad = w.in(1, 1);
    bad[5] = std::numeric_limits<float>::infinity();
    w.set(1, 1, bad);
    for (const dr_status s : w.step(0)) CHECK(s == DR_E_PEER);
    const std::string what = std::string("a value of the gradient") + (keeps ? ", with its residual," : "") +
                             " is not finite (infinite or NaN)";
    CHECK(w.ranks[0]->error.message == "rank 1: b: could not encode: " + what);
    CHECK(w.ranks[1]->error.message == "rank 1: b: " + what);
    for (const auto& r : w.ranks) CHECK(r->error.tensor == 1);
  }
}

TEST_CASE(
    "factors: a sum that is not finite is skipped by all with SKIP, and without it fails on all; nothing is lost") {
  for (const bool skips : {false, true})
    for (const bool second : {false, true}) {
      CAPTURE(skips);
      CAPTURE(second);
      world w = std::move(both(skips ? DR_SENDER_SKIP : 0)[1]);
      w.set_random(1);
      REQUIRE(w.all_ok(0));
      const auto kept = w.residual(1, 0), warm = warm_start(w, 1, 0);
      const auto outs = w.ranks[1]->out;
      const dr_unit_info info = w.unit(0);
      REQUIRE(info.slot != info.sum_slot);
      w.set_random(2);
      w.on_the_way = [&](size_t, size_t from, size_t, client::bytes& bytes) {
        if (from == 0 && bytes.size() == (second ? info.sum_slot : info.slot))
          number_types::put(bytes.data(), DR_F32, std::numeric_limits<float>::infinity());
      };
      const auto status = w.step(1);
      w.on_the_way = nullptr;
      for (size_t r = 0; r < 2; ++r) CHECK(status[r] == (skips ? dr_status{DR_OK} : dr_status{DR_E_ARGUMENT}));
      CHECK(w.skipped == std::vector<bool>{skips, skips});
      if (skips) {
        CHECK(std::isnan(w.out(1, 0)[5]));
        CHECK(w.residual(1, 0) == kept);
        CHECK(warm_start(w, 1, 0) == warm);
      } else {
        CHECK(std::string(w.ranks[0]->error.message) == w.ranks[1]->error.message);
        CHECK(std::string(w.ranks[1]->error.message).find("factor: element 0 ") != std::string::npos);
        CHECK(w.ranks[1]->out == outs);
        CHECK(w.residual(1, 0) == plus(kept, w.in(1, 0)));
      }
      w.set_random(3);
      CHECK(w.all_ok(2));
      CHECK(w.agree());
    }
}

TEST_CASE("numbers: ranks at other steps are named, and a damaged head is CORRUPT of its rank") {
  for (world& w : both()) {
    CAPTURE(w.unit(0).kind);
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    for (const dr_status s : w.step(1, {1, 2})) CHECK(s == DR_E_ARGUMENT);
    for (const auto& r : w.ranks) CHECK(r->error.reason == DR_REASON_OUT_OF_STEP);
  }
  for (world& w : both()) {
    w.set_random(1);
    w.on_the_way = [&](size_t, size_t from, size_t, client::bytes& bytes) {
      if (from == 1 && bytes.size() == w.unit(0).slot) bytes[bytes.size() - 48 + 5] ^= 0x40;
    };
    for (const dr_status s : w.step(0)) CHECK(s == DR_E_CORRUPT);
    for (const auto& r : w.ranks) CHECK(r->error.frame == 1);
  }
}

TEST_CASE("numbers: a rank alone with a failure is behind, and withdraws what it took back") {
  for (world& w : both()) {
    CAPTURE(w.unit(0).kind);
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    w.set_random(2);
    REQUIRE(w.all_ok(1));
    const auto done = w.residual(1, 0);
    REQUIRE(dr_sender_take_back(w.ranks[1]->sender, 1) == DR_OK);  // say, its other units failed
    CHECK(w.residual(1, 0) != done);
    w.set_random(3);
    for (const dr_status s : w.step(2)) CHECK(s == DR_E_ARGUMENT);
    const auto x = w.in(1, 0), now = w.residual(1, 0);  // as after step 1, and the failed step's gradient
    for (size_t i = 0; i < x.size(); ++i) REQUIRE(std::abs(now[i] - (done[i] + x[i])) < 1e-4f * (1 + std::abs(x[i])));
    CHECK(w.all_ok(3));
  }
}

TEST_CASE("numbers: of two steps that a rank took back it withdraws the one that the other completed") {
  auto all = both(), sound = both();
  for (size_t kind = 0; kind < 2; ++kind) {
    CAPTURE(kind);
    world& w = all[kind];
    for (world* each : {&w, &sound[kind]})
      for (uint64_t step = 0; step < 2; ++step) {
        each->set_random(step);
        REQUIRE(each->all_ok(step));
      }
    for (world* each : {&w, &sound[kind]})  // step 1 failed on both, say in other units
      for (const auto& r : each->ranks) REQUIRE(dr_sender_take_back(r->sender, 1) == DR_OK);
    const auto before = w.residual(1, 0);
    w.set_random(2);
    const auto x = w.in(1, 0);
    w.on_the_way = [&](size_t, size_t from, size_t to, client::bytes& bytes) {
      if (from == SIZE_MAX && to == 1) bytes[bytes.size() - 48 + 5] ^= 0x40;
    };
    CHECK(w.step(2) == std::vector<dr_status>{DR_OK, DR_E_CORRUPT});
    w.on_the_way = nullptr;
    w.set_random(3);
    for (const dr_status s : w.step(3)) CHECK(s == DR_E_ARGUMENT);
    const auto now = w.residual(1, 0);
    std::vector<float> expected = plus(plus(before, x), w.in(1, 0));
    if (kind == 0) {  // (of factors a rank without their sum cannot know what the other made of its gradient)
      sound[kind].set_random(2);
      REQUIRE(sound[kind].all_ok(2));
      expected = plus(sound[kind].residual(1, 0), w.in(1, 0));
    }
    for (size_t i = 0; i < now.size(); ++i)
      REQUIRE(std::abs(now[i] - expected[i]) < 1e-4f * (1 + std::abs(expected[i])));
    // (A tensor among factors that is sent whole has no residual on the other.)
    const auto whole = w.residual(1, 1),
               left = plus(kind == 0 ? sound[kind].residual(1, 1) : std::vector<float>(700), w.in(1, 1));
    for (size_t i = 0; i < whole.size(); ++i) REQUIRE(std::abs(whole[i] - left[i]) < 1e-4f * (1 + std::abs(left[i])));
    CHECK(w.all_ok(4));
  }
}

TEST_CASE("numbers: sums, f32 outputs of half types, and states by name that go on with the same bits") {
  world sums({{"a", 3000, DR_BF16}, {"b", 700, DR_BF16}},
             {.book = "*: " + halves, .flags = DR_SENDER_HALVES | DR_SENDER_SUM | DR_SENDER_F32});
  world means({{"a", 3000, DR_BF16}, {"b", 700, DR_BF16}}, {.book = "*: " + halves, .flags = DR_SENDER_HALVES});
  sums.set_random(5), means.set_random(5);
  REQUIRE(sums.all_ok(0));
  REQUIRE(means.all_ok(0));
  for (size_t i = 0; i < 700; ++i) REQUIRE(sums.out(0, 1)[i] == 2 * means.out(0, 1)[i]);
  for (size_t kind = 0; kind < 2; ++kind) {
    auto first = both(), second = both();
    world &w = first[kind], &again = second[kind];
    for (uint64_t step = 0; step < 2; ++step) w.set_random(step), REQUIRE(w.all_ok(step));
    for (size_t r = 0; r < 2; ++r)
      for (size_t t = 0; t < 2; ++t)
        for (const uint32_t which : {DR_STATE_OWN, DR_STATE_WARM}) {
          const uint64_t size = which == DR_STATE_WARM ? w.sent_tensor(t).warm_state : w.sent_tensor(t).state;
          std::vector<uint64_t> state(size / 8 + 1);
          REQUIRE(dr_sender_read_state(w.ranks[r]->sender, t, which, state.data(), size) == DR_OK);
          REQUIRE(dr_sender_write_state(again.ranks[r]->sender, t, which, state.data(), size) == DR_OK);
        }
    w.set_random(9), again.set_random(9);
    REQUIRE(w.all_ok(2));
    REQUIRE(again.all_ok(2));
    CHECK(w.ranks[0]->out == again.ranks[0]->out);
    CHECK(w.residual(1, 0) == again.residual(1, 0));
  }
}

TEST_CASE("factors: with states of zeros a sender goes on as a new one") {
  world w = std::move(both()[1]), fresh = std::move(both()[1]);
  for (uint64_t step = 0; step < 2; ++step) w.set_random(step), REQUIRE(w.all_ok(step));
  REQUIRE(warm_start(w, 1, 0) != warm_start(fresh, 1, 0));
  for (const auto& r : w.ranks)
    for (size_t t = 0; t < 2; ++t)
      for (const uint32_t which : {DR_STATE_OWN, DR_STATE_WARM}) {
        const uint64_t size = which == DR_STATE_WARM ? w.sent_tensor(t).warm_state : w.sent_tensor(t).state;
        const std::vector<uint64_t> zeros(size / 8 + 1);
        REQUIRE(dr_sender_write_state(r->sender, t, which, zeros.data(), size) == DR_OK);
      }
  CHECK(warm_start(w, 1, 0) == warm_start(fresh, 1, 0));
  w.set_random(9), fresh.set_random(9);
  REQUIRE(w.all_ok(2));
  REQUIRE(fresh.all_ok(2));
  CHECK(w.ranks[0]->out == fresh.ranks[0]->out);
  CHECK(w.residual(1, 0) == fresh.residual(1, 0));
}

TEST_CASE("numbers: a scale is of all residuals, and not of warm starts") {
  for (world& w : both()) {
    CAPTURE(w.unit(0).kind);
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    const std::vector<std::vector<float>> before{w.residual(1, 0), w.residual(1, 1)};
    REQUIRE(std::ranges::any_of(before[0], [](float x) { return x != 0; }));
    const auto warm = warm_start(w, 1, 0);
    REQUIRE(dr_sender_scale(w.ranks[1]->sender, 0.5) == DR_OK);
    for (size_t t = 0; t < 2; ++t) {
      const auto now = w.residual(1, t);
      for (size_t i = 0; i < now.size(); ++i) REQUIRE(now[i] == before[t][i] / 2);
    }
    CHECK(warm_start(w, 1, 0) == warm);
  }
}

TEST_CASE("factors: a warm start of any finite values is a basis, and rounds go on") {
  world w = std::move(both()[1]);
  const std::vector<float> huge(w.sent_tensor(0).warm_state / 4, 3e38f);
  for (const auto& r : w.ranks)
    REQUIRE(dr_sender_write_state(r->sender, 0, DR_STATE_WARM, huge.data(), 4 * huge.size()) == DR_OK);
  for (uint64_t step = 0; step < 3; ++step) w.set_random(step), CHECK(w.all_ok(step));
  CHECK(w.agree());
}

TEST_CASE("rows: with SKIP an index that is out of range is an error of all ranks, and skips nothing") {
  world w({{"table", 40, DR_F32, "index=golomb value=raw", 10, true}}, {.flags = DR_SENDER_SKIP});
  const std::vector<int64_t> at[2] = {{2, 5}, {5, 10}};
  const std::vector<float> values(8, 1);
  for (size_t r = 0; r < 2; ++r) {
    dr_sent_rows rows{sizeof rows, 2, at[r].data(), values.data(), DR_I64, 0};
    REQUIRE(dr_sender_place_rows(w.ranks[r]->sender, 0, &rows) == DR_OK);
  }
  for (const dr_status s : w.step(0)) CHECK(s == DR_E_PEER);
  for (size_t r = 0; r < 2; ++r) {
    CHECK(!w.skipped[r]);
    CHECK(std::string(w.ranks[r]->error.message).find("10 is not below") != std::string::npos);
  }
}

TEST_CASE("rows: the mean is the union of the ranks' rows, and a rank that cannot encode is named") {
  world w({{"table", 40, DR_F32, "index=golomb value=raw", 10, true}}, {});
  REQUIRE(w.unit(0).kind == DR_UNIT_ROWS);
  const std::vector<int64_t> at[2] = {{2, 5}, {5, 7, 9}};
  std::vector<float> values[2] = {std::vector<float>(8, 1), std::vector<float>(12, 4)};
  const auto place = [&] {
    for (size_t r = 0; r < 2; ++r) {
      dr_sent_rows rows{sizeof rows, at[r].size(), at[r].data(), values[r].data(), DR_I64, 0};
      REQUIRE(dr_sender_place_rows(w.ranks[r]->sender, 0, &rows) == DR_OK);
    }
  };
  place();
  for (uint64_t step = 0; step < 3; ++step) {
    REQUIRE(w.all_ok(step));
    for (const auto& r : w.ranks) {
      dr_sent_rows mean{};
      mean.struct_size = sizeof mean;
      REQUIRE(dr_sender_rows(r->sender, 0, &mean) == DR_OK);
      const auto* const rows = static_cast<const int64_t*>(mean.indices);
      const auto* const x = static_cast<const float*>(mean.values);
      CHECK(std::vector<int64_t>(rows, rows + mean.count) == std::vector<int64_t>{2, 5, 7, 9});
      CHECK(x[0] == 0.5f);
      CHECK(x[4] == 2.5f);
      CHECK(x[8] == 2.0f);
    }
  }
  dr_sent_rows bad{sizeof bad, 11, at[0].data(), values[0].data(), DR_I64, 0};
  CHECK(dr_sender_place_rows(w.ranks[0]->sender, 0, &bad) == DR_E_ARGUMENT);
  world coded({{"table", 40, DR_F32, "index=golomb value=log_quant", 10, true}}, {});
  values[1][5] = std::numeric_limits<float>::quiet_NaN();
  for (size_t r = 0; r < 2; ++r) {
    dr_sent_rows rows{sizeof rows, at[r].size(), at[r].data(), values[r].data(), DR_I64, 0};
    REQUIRE(dr_sender_place_rows(coded.ranks[r]->sender, 0, &rows) == DR_OK);
  }
  for (const dr_status s : coded.step(0)) CHECK(s == DR_E_PEER);
  for (const auto& r : coded.ranks) {
    CHECK(r->error.frame == 1);
    CHECK(r->error.tensor == 0);
    CHECK(std::string(r->error.message).find("rank 1: could not encode") == 0);
  }
}
