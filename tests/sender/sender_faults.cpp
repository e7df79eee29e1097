// What goes wrong: slots that are damaged, ranks at other steps, gradients that are not finite. Nothing is lost, ranks that
// fail name the same rank, and what was saved goes on.
#include "sender_world.hpp"

using namespace sending;

namespace {

// The inputs and outputs of a world, of its first tensors; up to the residuals they are equal.
struct balance {
  std::vector<std::vector<double>> given, got;

  void begin(const world& w) {
    for (const tensor& t : w.tensors) {
      given.emplace_back(t.elements);
      got.emplace_back(t.elements);
    }
  }
  void add_gradients(const world& w) {
    for (size_t t = 0; t < given.size(); ++t)
      for (size_t r = 0; r < w.ranks.size(); ++r) {
        const auto x = w.in(r, t);
        for (size_t i = 0; i < x.size(); ++i)
          given[t][i] += static_cast<double>(x[i]) / static_cast<double>(w.ranks.size());
      }
  }
  void add_means(const world& w) {
    for (size_t t = 0; t < got.size(); ++t) {
      const auto x = w.out(0, t);
      for (size_t i = 0; i < x.size(); ++i) got[t][i] += x[i];
    }
  }
  double gap(const world& w) const {
    double largest = 0;
    for (size_t t = 0; t < given.size(); ++t) {
      std::vector<double> left(given[t].size());
      for (size_t i = 0; i < left.size(); ++i) left[i] = given[t][i] - got[t][i];
      for (size_t r = 0; r < w.ranks.size(); ++r) {
        const auto own = w.residual(r, t), sum = w.residual(r, t, DR_STATE_SUM);
        for (size_t i = 0; i < left.size(); ++i) left[i] -= own[i] / static_cast<double>(w.ranks.size()) + sum[i];
      }
      for (const double x : left) largest = std::max(largest, std::abs(x));
    }
    return largest;
  }
};

const std::string plans[] = {
    "*: sparsify=topr(ratio=0.05) feedback=residual index=golomb value=log_quant",
    "*: index=all value=uniform_quant(bits=4) feedback=residual exchange=owner",
    "a*: sparsify=threshold(value=1) feedback=residual index=rle\n*: index=all value=sign feedback=residual"};

}  // namespace

TEST_CASE("a script of faults: ranks that fail name one rank, and nothing is lost") {
  for (const std::string& book : plans)
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(book);
      CAPTURE(seed);
      std::mt19937_64 random(seed);
      world w({{"a1", 3000}, {"a2", 200}, {"b", 5000}},
              {.book = book, .ranks = 3, .dense_below = 1000, .unit_bytes = 13000});
      balance sums;
      sums.begin(w);
      for (uint64_t step = 0; step < 12; ++step) {
        CAPTURE(step);
        w.set_random(seed * 100 + step);
        const auto what = random() % 4;
        const size_t victim = random() % 3, maker = random() % 3;
        bool has_nan = false;
        if (what == 1) {  // a rank cannot encode (some plans can)
          auto x = w.in(victim, 2);
          x[random() % x.size()] = std::nanf("");
          w.set(victim, 2, x);
          has_nan = true;
        }
        uint64_t hit = random();
        const size_t unit = random() % world::units(*w.ranks[0]);
        if (what == 2)  // a slot is damaged, behind its header, on the way to all
          w.on_the_way = [&, unit, maker](size_t u, size_t from, size_t, client::bytes& slot) {
            if (u != unit || from != maker) return;
            uint64_t longest;
            std::memcpy(&longest, slot.data() + 8, 8);
            const size_t prefix = 40 + 8 * w.unit(u).frames;
            if (longest > prefix) slot[prefix + hit % (longest - prefix)] ^= 1u << (hit >> 60);
          };
        const auto outs = w.ranks[0]->out;
        const auto status = w.step(step);
        w.on_the_way = nullptr;
        const bool failed = std::any_of(status.begin(), status.end(), [](dr_status s) { return s != DR_OK; });
        for (size_t r = 0; r < 3; ++r) {
          INFO("rank " << r << ": " << w.ranks[r]->error.message);
          CHECK((status[r] != DR_OK) == failed);
          if (failed) CHECK(w.ranks[r]->error.frame == w.ranks[0]->error.frame);
        }
        if (failed && has_nan) CHECK(w.ranks[0]->error.frame == victim);
        if (has_nan) break;  // (what a NaN has left of the others' tensors is another test)
        sums.add_gradients(w);
        if (!failed) {
          CHECK(w.agree());
          sums.add_means(w);
        }
        REQUIRE(sums.gap(w) < 2e-4);
      }
    }
}

TEST_CASE("a damaged header names its rank, and the damaged rank alone fails") {
  world w({{"a", 3000}}, {.ranks = 3});
  w.set_random(1);
  REQUIRE(w.all_ok(0));
  for (const size_t at : {0u, 9u, 17u, 25u, 29u, 33u, 37u, 41u}) {
    CAPTURE(at);
    world v({{"a", 3000}}, {.ranks = 3});
    v.set_random(1);
    REQUIRE(v.all_ok(0));
    v.on_the_way = [&](size_t, size_t from, size_t to, client::bytes& slot) {
      if (from == 1 && to == 2) slot[at] ^= 4;
    };
    const auto status = v.step(1);
    CHECK(status[0] == DR_OK);
    CHECK(status[1] == DR_OK);
    CHECK(status[2] == DR_E_CORRUPT);
    CHECK(std::string(v.ranks[2]->error.message) == "rank 1: the header of its slot is damaged");
    CHECK(v.ranks[2]->error.frame == 1);
  }
}

TEST_CASE("a rank that did not complete a step is found by all, once, and its residuals are as if it had") {
  world w({{"a", 3000}}, {.ranks = 3}), sound({{"a", 3000}}, {.ranks = 3});
  for (uint64_t step = 0; step < 2; ++step) {
    w.set_random(step);
    sound.set_random(step);
    REQUIRE(w.all_ok(step));
    REQUIRE(sound.all_ok(step));
  }
  w.set_random(2);
  sound.set_random(2);
  REQUIRE(sound.all_ok(2));
  w.on_the_way = [&](size_t, size_t from, size_t to, client::bytes& slot) {
    if (from == 0 && to == 2) slot[32 + 8 + 30] ^= 1;
  };
  auto status = w.step(2);
  w.on_the_way = nullptr;
  CHECK(status == std::vector<dr_status>{DR_OK, DR_OK, DR_E_CORRUPT});
  w.set_random(3);
  status = w.step(3);
  for (size_t r = 0; r < 3; ++r) {
    INFO(w.ranks[r]->error.message);
    CHECK(status[r] == DR_E_ARGUMENT);
    CHECK(w.ranks[r]->error.reason == DR_REASON_OUT_OF_STEP);
    CHECK(w.ranks[r]->error.frame == 2);
    CHECK(w.ranks[r]->error.where == 2);
    CHECK(w.ranks[r]->error.what == 0);
    uint32_t behind[4] = {};
    CHECK(dr_sender_behind(w.ranks[r]->sender, behind, 4) == 1);
    CHECK(behind[0] == 2);
  }
  // It went back, and out of the residuals again; the step that failed on all is in them.
  sound.set_random(3);
  for (size_t r = 0; r < 3; ++r) {
    const auto now = w.residual(r, 0), before = sound.residual(r, 0), g = sound.in(r, 0);
    for (size_t i = 0; i < now.size(); ++i) REQUIRE(std::abs(now[i] - before[i] - g[i]) < 1e-5);
  }
  w.set_random(4);
  REQUIRE(w.all_ok(4));
}

TEST_CASE("of several units, too, a rank that is behind has residuals as if it had completed the step") {
  for (const bool fails_before : {false, true})
    for (const bool all_units : {false, true}) {
      CAPTURE(fails_before);
      CAPTURE(all_units);
      const settings how{.ranks = 3, .unit_bytes = 1};
      world w({{"a", 3000}, {"b", 2000}}, how), sound({{"a", 3000}, {"b", 2000}}, how);
      REQUIRE(world::units(*w.ranks[0]) == 2);
      for (uint64_t step = 0; step < 3; ++step)
        for (world* each : {&w, &sound}) {
          each->set_random(step);
          if (step == 1 && fails_before) {  // a slot is damaged on its way to all
            each->on_the_way = [&](size_t, size_t from, size_t, client::bytes& slot) {
              if (from == 1) slot[30] ^= 1;
            };
            for (const dr_status s : each->step(step)) CHECK(s == DR_E_CORRUPT);
            each->on_the_way = nullptr;
          } else if (step == 2 && each == &w) {  // on its way to one, and perhaps of one unit
            w.on_the_way = [&](size_t u, size_t from, size_t to, client::bytes& slot) {
              if ((u == 1 || all_units) && from == 0 && to == 2) slot[30] ^= 1;
            };
            CHECK(w.step(step) == std::vector<dr_status>{DR_OK, DR_OK, DR_E_CORRUPT});
            w.on_the_way = nullptr;
          } else {
            REQUIRE(each->all_ok(step));
          }
        }
      w.set_random(3), sound.set_random(3);
      for (const dr_status s : w.step(3)) CHECK(s == DR_E_ARGUMENT);
      for (size_t r = 0; r < 3; ++r)
        for (size_t t = 0; t < 2; ++t) {
          const auto now = w.residual(r, t), before = sound.residual(r, t), g = sound.in(r, t);
          for (size_t i = 0; i < now.size(); ++i) REQUIRE(std::abs(now[i] - before[i] - g[i]) < 1e-5);
        }
      w.set_random(4);
      REQUIRE(w.all_ok(4));
    }
}

TEST_CASE("a rank that is behind and reads no head of the next step withdraws the step that the others completed") {
  const std::string decays = "*: sparsify=topr(ratio=0.05) feedback=residual(beta=0.5) index=golomb value=log_quant";
  for (const std::string& book : {plans[0], decays}) {
    CAPTURE(book);
    world w({{"a", 3000}}, {.book = book, .ranks = 3}), sound({{"a", 3000}}, {.book = book, .ranks = 3});
    for (uint64_t step = 0; step < 4; ++step) {
      CAPTURE(step);
      w.set_random(step);
      w.on_the_way = [&](size_t, size_t from, size_t to, client::bytes& slot) {
        if (step > 0 && step < 3 && from == 0 && to == 2) slot[step == 1 ? 40 + 30 : 30] ^= 1;
      };
      const auto status = w.step(step);
      for (const auto& r : w.ranks) {  // with the counts that it has, as after every failed step of the torch hooks
        dr_sender_info i{sizeof i};
        REQUIRE(dr_sender_describe(r->sender, &i, nullptr) == DR_OK);
        REQUIRE(dr_sender_resume(r->sender, i.failures, i.failed) == DR_OK);
      }
      CHECK(status[2] == (step == 0 ? DR_OK : step < 3 ? DR_E_CORRUPT : DR_E_ARGUMENT));
      CHECK(status[0] == (step < 2 ? dr_status{DR_OK} : dr_status{DR_E_ARGUMENT}));
      if (step < 2) {
        sound.set_random(step);
        REQUIRE(sound.all_ok(step));
      }
    }
    // Steps 2 and 3 failed on all, and a residual decays in each.
    const float beta = book == decays ? 0.5f : 1;
    for (size_t r = 0; r < 3; ++r) {
      auto expected = sound.residual(r, 0);
      for (uint64_t step = 2; step < 4; ++step) {
        sound.set_random(step);
        const auto g = sound.in(r, 0);
        for (size_t i = 0; i < g.size(); ++i) expected[i] = beta * expected[i] + g[i];
      }
      const auto now = w.residual(r, 0);
      for (size_t i = 0; i < now.size(); ++i)
        REQUIRE(std::abs(now[i] - expected[i]) < 1e-5 * (1 + std::abs(expected[i])));
    }
    w.on_the_way = nullptr;
    w.set_random(4);
    REQUIRE(w.all_ok(4));
  }
}

TEST_CASE("what a rank that is behind withdraws has decayed and was scaled as its residuals") {
  const std::string frames = "sparsify=topr(ratio=0.05) index=golomb value=log_quant feedback=";
  const struct {
    std::string book;
    float betas[2];
    uint32_t flags = 0;
  } cases[] = {{"*: " + frames + "residual", {1, 1}},
               {"a: " + frames + "residual(beta=0.5)\nb: " + frames + "residual", {0.5f, 1}},
               {"*: index=all value=half(type=bf16) feedback=residual", {1, 1}, DR_SENDER_HALVES},
               {"*: transform=lowrank(rank=2) feedback=residual(beta=0.5)", {0.5f, 0.5f}}};
  for (const auto& c : cases)
    for (const double factor : {1.0, 0.1}) {
      CAPTURE(c.book);
      CAPTURE(factor);
      const settings how{.book = c.book, .flags = c.flags, .flat = DR_NOT_FLAT, .dense_below = 0};
      const std::vector<tensor> list{{"a", 3000, DR_F32, "", 60}, {"b", 700, DR_F32, "", 1}};
      world w(list, how), sound(list, how);
      for (world* each : {&w, &sound}) {
        for (uint64_t step = 0; step < 2; ++step) each->set_random(step), REQUIRE(each->all_ok(step));
        if (each == &w) REQUIRE(dr_sender_take_back(w.ranks[1]->sender, 1) == DR_OK);  // say, its other units failed
        REQUIRE(dr_sender_scale(each->ranks[1]->sender, factor) == DR_OK);
      }
      w.set_random(2);
      for (const dr_status s : w.step(2)) CHECK(s == DR_E_ARGUMENT);
      for (size_t t = 0; t < 2; ++t) {
        const auto now = w.residual(1, t), completed = sound.residual(1, t), g = w.in(1, t);
        for (size_t i = 0; i < now.size(); ++i)
          REQUIRE(std::abs(now[i] - (c.betas[t] * completed[i] + g[i])) < 1e-4f * (1 + std::abs(g[i])));
      }
      w.set_random(3);
      CHECK(w.all_ok(3));
    }
}

TEST_CASE("after a resume a step of the same number has nothing of before, and no rank is behind") {
  world w({{"a", 3000}, {"b", 2000}}, {.ranks = 3, .unit_bytes = 1});
  w.set_random(1);
  REQUIRE(w.all_ok(1));
  const auto resume = [&](uint64_t failures, uint64_t failed) {
    for (const auto& r : w.ranks) REQUIRE(dr_sender_resume(r->sender, failures, failed) == DR_OK);
  };
  const auto failures_of = [&](size_t r) {
    dr_sender_info info{sizeof info};
    REQUIRE(dr_sender_describe(w.ranks[r]->sender, &info, nullptr) == DR_OK);
    return info.failures;
  };
  resume(0, 0);
  const auto kept = w.residual(0, 0);
  REQUIRE(dr_sender_take_back(w.ranks[0]->sender, 1) == DR_OK);  // the step of the run before
  CHECK(w.residual(0, 0) == kept);
  // Found behind, then resumed without the end of that step.
  const size_t units = world::units(*w.ranks[0]);
  for (size_t u = 0; u < units; ++u) {
    std::vector<client::bytes> sent;
    std::vector<dr_bytes> slots;
    for (size_t r = 0; r < 3; ++r) {
      const dr_call c = world::call(2, r);
      sent.emplace_back(w.unit(u).bound);
      REQUIRE(dr_sender_encode(w.ranks[r]->sender, u, &c, sent[r].data(), sent[r].size(), nullptr) == DR_OK);
    }
    for (const client::bytes& slot : sent) slots.push_back({slot.data(), slot.size()});
    const dr_call c = world::call(2, 0);
    CHECK(dr_sender_merge(w.ranks[0]->sender, u, &c, slots.data(), 3, nullptr) == DR_E_ARGUMENT);
    CHECK(dr_last_error(w.ranks[0]->context.handle)->reason == DR_REASON_OUT_OF_STEP);
  }
  resume(5, 1);
  for (size_t r = 0; r < 3; ++r) CHECK(failures_of(r) == 5);
  w.set_random(3);
  CHECK(w.all_ok(3));
  w.on_the_way = [](size_t, size_t from, size_t, client::bytes& slot) {
    if (from == 1) slot[30] ^= 1;
  };
  for (const dr_status s : w.step(4)) CHECK(s == DR_E_CORRUPT);
  for (size_t r = 0; r < 3; ++r) CHECK(failures_of(r) == 6);
  w.on_the_way = nullptr;
  CHECK(w.all_ok(5));
}

TEST_CASE("ranks at other steps are distinguished from ranks with other tensors") {
  world w({{"a", 3000}}, {.ranks = 3});
  w.set_random(1);
  REQUIRE(w.all_ok(0));
  const auto status = w.step(5, {5, 4, 5});
  for (size_t r = 0; r < 3; ++r) {
    CHECK(status[r] == DR_E_ARGUMENT);
    CHECK(w.ranks[r]->error.reason == DR_REASON_OUT_OF_STEP);
    CHECK(w.ranks[r]->error.where == UINT64_MAX);
    CHECK(w.ranks[r]->error.frame == 1);
    CHECK(std::string(w.ranks[r]->error.message).find("rank 1 is at step 4, rank 0 at step 5") != std::string::npos);
  }
  world other({{"b", 3000}}, {.ranks = 3});
  other.set_random(1);
  std::swap(w.ranks[2], other.ranks[2]);
  const auto differ = w.step(6);
  for (size_t r = 0; r < 3; ++r) {
    CHECK(differ[r] == DR_E_ARGUMENT);
    CHECK(w.ranks[r]->error.reason == DR_REASON_NONE);
    CHECK(std::string(w.ranks[r]->error.message).find("rank 2 sends other tensors") == 0);
  }
}

TEST_CASE("owners: ranks out of step are found by all") {
  world w({{"a", 3000}}, {.book = plans[1], .ranks = 3});
  w.set_random(1);
  REQUIRE(w.all_ok(0));
  const auto status = w.step(5, {5, 5, 4});
  for (size_t r = 0; r < 3; ++r) {
    CHECK(status[r] == DR_E_ARGUMENT);
    CHECK(w.ranks[r]->error.reason == DR_REASON_OUT_OF_STEP);
    CHECK(w.ranks[r]->error.frame == 2);
  }
  w.set_random(2);
  REQUIRE(w.all_ok(6));
}

TEST_CASE("owners: a slot that is damaged on its way to one owner fails all ranks, which name its maker") {
  world w({{"a", 9000}}, {.book = plans[1], .ranks = 3});
  w.set_random(1);
  REQUIRE(w.all_ok(0));
  w.set_random(2);
  size_t seen = 0;
  w.on_the_way = [&](size_t, size_t from, size_t to, client::bytes& slot) {
    if (from == 1 && to == 2 && seen++ == 0) slot[60] ^= 1;
  };
  const auto status = w.step(1);
  for (size_t r = 0; r < 3; ++r) {
    INFO(w.ranks[r]->error.message);
    CHECK(status[r] == DR_E_PEER);
    CHECK(w.ranks[r]->error.frame == 1);
  }
}

TEST_CASE("owners: a damaged header is CORRUPT at its owner and named by all, also by an owner without elements") {
  for (const uint64_t elements : {9000, 2})  // of three ranks the first owns nothing of two elements
    for (const bool on_device : {false, true}) {
      CAPTURE(elements);
      CAPTURE(on_device);
      world w({{"a", elements}}, {.book = "*: index=all value=raw feedback=residual exchange=owner",
                                  .ranks = 3,
                                  .dense_below = 0,
                                  .on_device = on_device});
      w.set_random(1);
      REQUIRE(w.all_ok(0));
      w.set_random(2);
      std::vector<std::vector<float>> before;
      for (size_t r = 0; r < 3; ++r) before.push_back(w.residual(r, 0));
      size_t arrivals = 0;
      w.on_the_way = [&](size_t, size_t from, size_t to, client::bytes& slot) {
        if (from == 1 && to == 0 && arrivals++ == 0) slot[10] ^= 1;
      };
      const auto status = w.step(1);
      w.on_the_way = nullptr;
      for (size_t r = 0; r < 3; ++r) {
        CAPTURE(r);
        INFO(w.ranks[r]->error.message);
        CHECK(status[r] == (r == 0 ? DR_E_CORRUPT : DR_E_PEER));
        CHECK(w.ranks[r]->error.frame == 1);
        const auto now = w.residual(r, 0), x = w.in(r, 0);
        for (size_t i = 0; i < now.size(); ++i) REQUIRE(std::abs(now[i] - before[r][i] - x[i]) < 1e-5);
      }
      w.set_random(3);
      CHECK(w.all_ok(2));
      CHECK(w.agree());
    }
}

TEST_CASE("a step whose gradient is not finite on one rank is skipped by all: states as before, outputs NaN") {
  for (const std::string& book : plans) {
    CAPTURE(book);
    world w({{"a", 3000}, {"b", 5000}}, {.book = book, .ranks = 3, .flags = DR_SENDER_SKIP});
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    std::vector<std::vector<float>> before;
    for (size_t r = 0; r < 3; ++r)
      for (size_t t = 0; t < 2; ++t) {
        before.push_back(w.residual(r, t));
        before.push_back(w.residual(r, t, DR_STATE_SUM));
      }
    w.set_random(2);
    auto x = w.in(1, 0);
    x[3] = INFINITY;
    w.set(1, 0, x);
    // (A framework skips all units of the step.)
    REQUIRE(w.all_ok(1));
    for (size_t r = 0; r < 3; ++r) {
      CHECK(w.skipped[r]);
      for (size_t t = 0; t < 2; ++t)
        for (const float v : w.out(r, t)) REQUIRE(std::isnan(v));
    }
    size_t next = 0;
    for (size_t r = 0; r < 3; ++r)
      for (size_t t = 0; t < 2; ++t) {
        CHECK(w.residual(r, t) == before[next++]);
        CHECK(w.residual(r, t, DR_STATE_SUM) == before[next++]);
      }
    w.set_random(3);
    REQUIRE(w.all_ok(2));
    CHECK(!w.skipped[0]);
  }
}

TEST_CASE("with SKIP a residual that takes a gradient out of f32 skips the step of all, and stays as it was") {
  world w({{"a", 3000}, {"b", 5000}}, {.book = plans[0], .ranks = 3, .flags = DR_SENDER_SKIP});
  w.set_random(1);
  REQUIRE(w.all_ok(0));
  dr_sender* const sender = w.ranks[1]->sender;
  const size_t size = w.sent_tensor(1).state;
  std::vector<uint64_t> state(size / 8 + 1);
  REQUIRE(dr_sender_read_state(sender, 1, DR_STATE_OWN, state.data(), size) == DR_OK);
  float* residual = nullptr;
  uint64_t elements = 0;
  REQUIRE(dr_state_residual(state.data(), size, &residual, &elements, nullptr) == DR_OK);
  residual[7] = 3e38f;
  REQUIRE(dr_sender_write_state(sender, 1, DR_STATE_OWN, state.data(), size) == DR_OK);
  std::vector<std::vector<float>> before;
  for (size_t r = 0; r < 3; ++r)
    for (size_t t = 0; t < 2; ++t) before.push_back(w.residual(r, t));
  w.set_random(2);
  auto x = w.in(1, 1);
  x[7] = 3e38f;
  w.set(1, 1, x);
  REQUIRE(w.all_ok(1));
  CHECK(w.skipped == std::vector<bool>{true, true, true});
  size_t next = 0;
  for (size_t r = 0; r < 3; ++r)
    for (size_t t = 0; t < 2; ++t) {
      CHECK(w.residual(r, t) == before[next++]);
      CHECK(std::isnan(w.out(r, t)[0]));
    }
  w.set_random(3);
  REQUIRE(w.all_ok(2));
  CHECK(w.skipped == std::vector<bool>{false, false, false});
}

TEST_CASE("owners: who cannot encode is named, also where an owner without elements hears of it first") {
  for (const bool on_device : {false, true})
    for (size_t who = 0; who < 3; ++who) {
      CAPTURE(on_device);
      CAPTURE(who);
      world w({{"a", 2}},
              {.book = "*: index=all value=qsgd exchange=owner", .ranks = 3, .dense_below = 0, .on_device = on_device});
      w.set_random(1);
      auto x = w.in(who, 0);
      x[1] = NAN;
      w.set(who, 0, x);
      const auto status = w.step(0);
      for (size_t r = 0; r < 3; ++r) {
        INFO(w.ranks[r]->error.message);
        CHECK(status[r] == DR_E_PEER);
        CHECK(w.ranks[r]->error.frame == who);
        CHECK(std::string(w.ranks[r]->error.message).find("NaN") != std::string::npos);
      }
    }
}

TEST_CASE(
    "owners: where sums need more room than their slots, all ranks ask for the rest, also one with a damaged header") {
  world w({{"a", 9000}}, {.book = "*: sparsify=threshold(value=3,max_ratio=1) index=golomb value=raw exchange=owner",
                          .ranks = 3,
                          .dense_below = 0});
  for (uint64_t step = 0; step < 3; ++step) w.set_random(step), REQUIRE(w.all_ok(step));
  for (size_t r = 0; r < 3; ++r) w.set(r, 0, std::vector<float>(9000, 5));  // all of it is above the threshold now
  size_t arrivals = 0;
  w.on_the_way = [&](size_t, size_t from, size_t to, client::bytes& slot) {
    if (from == 1 && to == 0 && arrivals++ == 0) slot[10] ^= 1;
  };
  const size_t before = w.rests;
  const auto status = w.step(3);
  w.on_the_way = nullptr;
  CHECK(status == std::vector<dr_status>{DR_E_CORRUPT, DR_E_PEER, DR_E_PEER});
  CHECK((w.rests - before) % 3 == 2);  // rests of sums on three ranks; of the parts rank 0 cannot know
  for (size_t r = 1; r < 3; ++r) CHECK(world::unit(*w.ranks[r], 0).sum_slot == world::unit(*w.ranks[0], 0).sum_slot);
}

TEST_CASE("with SKIP a step that fails, though a rank asks to skip it, goes back to the residuals") {
  for (const std::string way : {"", " exchange=owner"}) {
    CAPTURE(way);
    world w({{"a", 3000}, {"b", 5000}},
            {.book = "a: sparsify=topr(ratio=0.05) feedback=residual index=golomb value=raw" + way +
                     "\nb: index=all value=uniform_quant(bits=4) feedback=residual" + way,
             .ranks = 3,
             .flags = DR_SENDER_SKIP,
             .dense_below = 0});
    REQUIRE(world::units(*w.ranks[0]) == 1);
    REQUIRE(w.unit(0).frames == 2);
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    const size_t size = w.sent_tensor(1).state;
    std::vector<uint64_t> state(size / 8 + 1);
    REQUIRE(dr_sender_read_state(w.ranks[1]->sender, 1, DR_STATE_OWN, state.data(), size) == DR_OK);
    float* residual = nullptr;
    uint64_t elements = 0;
    REQUIRE(dr_state_residual(state.data(), size, &residual, &elements, nullptr) == DR_OK);
    residual[4999] = 3e38f;
    REQUIRE(dr_sender_write_state(w.ranks[1]->sender, 1, DR_STATE_OWN, state.data(), size) == DR_OK);
    w.set_random(2);
    auto x = w.in(1, 1);
    x[4999] = 3e38f;
    w.set(1, 1, x);
    const auto before = w.residual(1, 0), g = w.in(1, 0);
    w.on_the_way = [](size_t, size_t from, size_t, client::bytes& slot) {
      if (from == 0) slot[10] ^= 1;
    };
    for (const dr_status s : w.step(1)) CHECK(s == DR_E_CORRUPT);
    const auto now = w.residual(1, 0);
    for (size_t i = 0; i < now.size(); ++i) REQUIRE(std::abs(now[i] - before[i] - g[i]) < 1e-5);
  }
}

TEST_CASE("a skip of a step that was not encoded changes nothing") {
  for (const std::string& book : plans) {
    world w({{"a", 3000}, {"b", 5000}}, {.book = book, .ranks = 3, .flags = DR_SENDER_SKIP});
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    const auto kept = w.residual(1, 0);
    const auto outs = w.ranks[1]->out;
    CHECK(dr_sender_skip(w.ranks[1]->sender, 1) == DR_OK);
    CHECK(w.ranks[1]->out == outs);
    CHECK(w.residual(1, 0) == kept);
  }
}

TEST_CASE("states that were saved continue bit for bit") {
  const std::vector<tensor> list{{"a", 3000}, {"b", 70000}};
  const std::string dgc = "*: sparsify=topr(ratio=0.05) feedback=dgc index=golomb";
  for (const std::string& book : {plans[0], plans[1], dgc}) {
    CAPTURE(book);
    const settings how{.book = book, .ranks = 3};
    world w(list, how), v(list, how);
    for (uint64_t step = 0; step < 4; ++step) {
      w.set_random(step);
      REQUIRE(w.all_ok(step));
    }
    for (size_t r = 0; r < 3; ++r)
      for (size_t t = 0; t < 2; ++t)
        for (const uint32_t which : {DR_STATE_OWN, DR_STATE_SUM}) {
          const size_t size = which == DR_STATE_SUM ? w.sent_tensor(t).sum_state : w.sent_tensor(t).state;
          std::vector<uint64_t> state((size + 7) / 8 + 1);
          REQUIRE(dr_sender_read_state(w.ranks[r]->sender, t, which, state.data(), size) == DR_OK);
          CHECK(dr_sender_write_state(v.ranks[r]->sender, t, which, state.data(), size + 8) == DR_E_ARGUMENT);
          if (size) CHECK(dr_sender_write_state(v.ranks[r]->sender, t, which, state.data(), size) == DR_OK);
        }
    for (uint64_t step = 4; step < 7; ++step) {
      w.set_random(step);
      v.set_random(step);
      REQUIRE(w.all_ok(step));
      REQUIRE(v.all_ok(step));
      for (size_t t = 0; t < 2; ++t) CHECK(w.out(0, t) == v.out(0, t));
    }
  }
}

TEST_CASE("a state of a tensor is in the order of its elements, however it is cut") {
  const std::vector<tensor> list{{"a", 3000}, {"b", 70000}};
  world w(list, {.book = plans[1], .ranks = 3}), v(list, {.book = plans[1], .ranks = 3, .unit_bytes = 1});
  w.set_random(1);
  REQUIRE(w.all_ok(0));
  for (size_t r = 0; r < 3; ++r)
    for (size_t t = 0; t < 2; ++t) {
      const size_t size = w.sent_tensor(t).state;
      std::vector<uint64_t> state(size / 8 + 1);
      REQUIRE(dr_sender_read_state(w.ranks[r]->sender, t, DR_STATE_OWN, state.data(), size) == DR_OK);
      REQUIRE(dr_sender_write_state(v.ranks[r]->sender, t, DR_STATE_OWN, state.data(), size) == DR_OK);
      CHECK(v.residual(r, t) == w.residual(r, t));
      const auto kept = w.residual(r, t);
      CHECK(std::count(kept.begin(), kept.end(), 0.0f) < static_cast<std::ptrdiff_t>(kept.size() / 2));
      REQUIRE(dr_sender_scale(v.ranks[r]->sender, 2) == DR_OK);
      const auto twice = v.residual(r, t);
      for (size_t i = 0; i < kept.size(); ++i) REQUIRE(twice[i] == 2 * kept[i]);
      REQUIRE(dr_sender_scale(v.ranks[r]->sender, 0.5) == DR_OK);
    }
  std::vector<uint64_t> zeros(w.sent_tensor(0).state / 8 + 1), bad(zeros.size(), 77);
  CHECK(dr_sender_write_state(v.ranks[0]->sender, 0, DR_STATE_OWN, bad.data(), w.sent_tensor(0).state) ==
        DR_E_ARGUMENT);
  CHECK(std::string(v.ranks[0]->context.error()).find("a: ") == 0);
  REQUIRE(dr_sender_write_state(v.ranks[0]->sender, 0, DR_STATE_OWN, zeros.data(), w.sent_tensor(0).state) == DR_OK);
  for (const float x : v.residual(0, 0)) REQUIRE(x == 0);
}

TEST_CASE("a state with a value that is not finite is refused, and what was there stays") {
  for (const std::string& book : {plans[0], plans[1], std::string("*: transform=lowrank(rank=2) feedback=residual")}) {
    CAPTURE(book);
    world w({{.name = "a", .elements = 3000, .rows = 50}}, {.book = book, .ranks = 2});
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    dr_sender* const sender = w.ranks[0]->sender;
    const size_t size = w.sent_tensor(0).state;
    std::vector<uint64_t> state(size / 8 + 1);
    REQUIRE(dr_sender_read_state(sender, 0, DR_STATE_OWN, state.data(), size) == DR_OK);
    const auto kept = w.residual(0, 0);
    float* residual = nullptr;
    uint64_t elements = 0;
    REQUIRE(dr_state_residual(state.data(), size, &residual, &elements, nullptr) == DR_OK);
    residual[7] = std::nanf("");
    CHECK(dr_sender_write_state(sender, 0, DR_STATE_OWN, state.data(), size) == DR_E_ARGUMENT);
    CHECK(w.ranks[0]->context.error() == "a: value 7 of its state is not finite");
    CHECK(dr_last_error(w.ranks[0]->context.handle)->where == 7);
    CHECK(w.residual(0, 0) == kept);
  }
}

TEST_CASE("slots of any bytes are refused, and outputs stay as they are") {
  std::mt19937_64 random(3);
  for (const std::string& book : plans) {
    world w({{"a", 3000}, {"b", 500}}, {.book = book, .ranks = 2});
    w.set_random(1);
    REQUIRE(w.all_ok(0));
    rank& me = *w.ranks[0];
    const auto outs = me.out;
    for (int i = 0; i < 600; ++i) {
      const size_t u = random() % world::units(me);
      const bool sums = w.unit(u).kind == DR_UNIT_OWNER;
      std::vector<client::bytes> slots = me.all[u];
      for (auto& slot : slots) {
        const auto how = random() % 3;
        if (how == 0)
          for (auto& b : slot) b = static_cast<uint8_t>(random());
        else if (how == 1)
          slot.resize(random() % (slot.size() + 1));
        else
          slot[random() % slot.size()] ^= static_cast<uint8_t>(1 + random() % 255);
      }
      std::vector<dr_bytes> list;
      for (auto& slot : slots) list.push_back({slot.data(), slot.size()});
      const dr_call c = world::call(1, 0);
      CHECK(dr_sender_merge(me.sender, u, &c, list.data(), list.size(), nullptr) != DR_OK);
      if (sums) {
        client::bytes room(w.unit(u).sum_bound);
        (void)dr_sender_sum(me.sender, u, &c, list.data(), list.size(), room.data(), room.size(), nullptr);
      }
    }
    CHECK(me.out == outs);
  }
}
