// exchange=owner: ranges that owners add up; and shards of a reduce-scatter.
#include "sender_world.hpp"

using namespace sending;

namespace {

const std::string bits4 = "*: index=all value=uniform_quant(bits=4) feedback=residual exchange=owner";

double norm_of(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("owners: all ranks have the same bits, near the mean") {
  for (const uint32_t ranks : {1u, 2u, 3u, 8u}) {
    CAPTURE(ranks);
    world w({{"a", 40000}, {"b", 200}, {"c", 7000, DR_BF16}}, {.book = bits4, .ranks = ranks});
    CHECK(w.unit(0).kind == DR_UNIT_OWNER);
    CHECK(w.unit(0).count == 2);  // small tensors go the way of the others
    for (uint64_t step = 0; step < 3; ++step) {
      w.set_random(step);
      REQUIRE(w.all_ok(step));
      REQUIRE(w.agree());
    }
    w.set_random(9);
    std::vector<float> mean(40000);
    for (size_t r = 0; r < ranks; ++r) {
      const auto x = w.in(r, 0);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += x[i] / static_cast<float>(ranks);
    }
    world fresh({{"a", 40000}}, {.book = bits4, .ranks = ranks});
    for (size_t r = 0; r < ranks; ++r) fresh.set(r, 0, w.in(r, 0));
    REQUIRE(fresh.all_ok(0));
    std::vector<float> error = fresh.out(0, 0);
    for (size_t i = 0; i < error.size(); ++i) error[i] -= mean[i];
    CHECK(norm_of(error) < 0.4 * norm_of(mean));
  }
}

TEST_CASE("owners: what ranks and owners have not sent is in their residuals") {
  world w({{"a", 9000}, {"b", 3000}}, {.book = bits4, .ranks = 3});
  std::vector<std::vector<double>> given(2), got(2);
  given[0].resize(9000), given[1].resize(3000), got[0].resize(9000), got[1].resize(3000);
  for (uint64_t step = 0; step < 10; ++step) {
    w.set_random(step + 50);
    REQUIRE(w.all_ok(step));
    for (size_t t = 0; t < 2; ++t) {
      const auto out = w.out(0, t);
      for (size_t i = 0; i < out.size(); ++i) got[t][i] += out[i];
      for (size_t r = 0; r < 3; ++r) {
        const auto x = w.in(r, t);
        for (size_t i = 0; i < x.size(); ++i) given[t][i] += static_cast<double>(x[i]) / 3;
      }
    }
  }
  for (size_t t = 0; t < 2; ++t) {
    std::vector<double> kept(given[t].size());
    for (size_t r = 0; r < 3; ++r) {
      const auto own = w.residual(r, t), sum = w.residual(r, t, DR_STATE_SUM);
      for (size_t i = 0; i < kept.size(); ++i) kept[i] += own[i] / 3.0 + sum[i];
    }
    for (size_t i = 0; i < kept.size(); ++i) REQUIRE(std::abs(given[t][i] - got[t][i] - kept[i]) < 1e-4);
  }
}

TEST_CASE("owners: gamma weighs each gradient once, and what failed goes back with that weight") {
  world w({{"a", 300}},
          {.book = "*: index=all value=raw feedback=residual(gamma=0.5) exchange=owner", .ranks = 3, .dense_below = 0});
  w.set_random(1);
  REQUIRE(w.all_ok(0));
  const auto out = w.out(0, 0);
  for (size_t i = 0; i < out.size(); ++i)
    REQUIRE(std::abs(out[i] - 0.5f * (w.in(0, 0)[i] + w.in(1, 0)[i] + w.in(2, 0)[i]) / 3) < 1e-6);
  size_t arrivals = 0;  // of rank 1's slots: those for owners, then its sum
  w.on_the_way = [&](size_t, size_t from, size_t, client::bytes& slot) {
    if (from == 1 && arrivals++ >= 3) slot[30] ^= 1;
  };
  for (const dr_status s : w.step(1)) CHECK(s == DR_E_CORRUPT);
  for (size_t r = 0; r < 3; ++r) {
    const auto own = w.residual(r, 0), sums = w.residual(r, 0, DR_STATE_SUM), x = w.in(r, 0);
    for (size_t i = 0; i < x.size(); ++i) REQUIRE(std::abs(own[i] - 0.5f * x[i]) < 1e-6);
    for (const float left : sums) REQUIRE(std::abs(left) < 1e-6);
  }
}

TEST_CASE("owners: the bytes of a rank do not grow with the number of ranks") {
  const auto bytes = [](const std::string& book, uint32_t ranks) {
    world w({{"a", 100000}}, {.book = book, .ranks = ranks});
    for (uint64_t step = 0; step < 2; ++step) {
      w.set_random(step);
      REQUIRE(w.all_ok(step));
    }
    w.set_random(7);
    REQUIRE(w.all_ok(2));
    return w.bytes_sent;
  };
  const uint64_t two = bytes(bits4, 2), eight = bytes(bits4, 8);
  const std::string gathered = "*: index=all value=uniform_quant(bits=4) feedback=residual";
  CHECK(eight < 2.1 * static_cast<double>(two));
  CHECK(static_cast<double>(eight) < 0.4 * static_cast<double>(bytes(gathered, 8)));
}

TEST_CASE("owners: a rank that cannot encode fails all ranks, which name it and the tensor; nothing is lost") {
  world w({{"a", 9000}, {"b.weight", 9000}}, {.book = bits4, .ranks = 3});
  w.set_random(1);
  REQUIRE(w.all_ok(0));
  std::vector<std::vector<float>> before;
  for (size_t r = 0; r < 3; ++r) before.push_back(w.residual(r, 0));
  w.set_random(2);
  auto x = w.in(1, 1);
  x[5] = std::nanf("");
  w.set(1, 1, x);
  const auto outs = w.ranks[0]->out;
  const auto status = w.step(1);
  for (size_t r = 0; r < 3; ++r) {
    INFO(w.ranks[r]->error.message);
    CHECK(status[r] == DR_E_PEER);
    CHECK(w.ranks[r]->error.frame == 1);
    const std::string words = w.ranks[r]->error.message;
    CHECK(words.find("rank 1: ") == 0);
    CHECK(words.find("b.weight") != std::string::npos);
  }
  CHECK(w.ranks[0]->out == outs);
  // The gradient of the step is in the residuals now.
  for (const size_t r : {size_t{0}, size_t{2}}) {
    const auto now = w.residual(r, 0), g = w.in(r, 0);
    for (size_t i = 0; i < now.size(); ++i) REQUIRE(std::abs(now[i] - before[r][i] - g[i]) < 1e-4);
  }
  w.set_random(3);
  REQUIRE(w.all_ok(2));
}

TEST_CASE("owners: a sum that is not finite fails all ranks, which name its owner and the tensor; nothing is lost") {
  world w({{"a", 9000}, {"b.weight", 9000}}, {.book = bits4, .ranks = 3, .flags = DR_SENDER_SUM});
  w.set_random(1);
  REQUIRE(w.all_ok(0));
  const auto before = w.residual(0, 1);
  const auto outs = w.ranks[0]->out;
  w.set_random(2);
  for (size_t r = 0; r < 3; ++r) {
    auto x = w.in(r, 1);
    x[8999] = 3e38f;
    w.set(r, 1, x);
  }
  for (const dr_status s : w.step(1)) CHECK(s == DR_E_PEER);
  for (const auto& r : w.ranks) {
    const std::string words = r->error.message;
    INFO(words);
    CHECK(r->error.frame == 2);
    CHECK(r->error.tensor == 1);
    CHECK(words.find("rank 2: ") == 0);
    CHECK(words.find("b.weight") != std::string::npos);
  }
  CHECK(w.ranks[0]->out == outs);
  const auto now = w.residual(0, 1), g = w.in(0, 1);
  for (size_t i = 0; i + 1 < now.size(); ++i) {
    CAPTURE(i);
    REQUIRE(std::abs(now[i] - before[i] - g[i]) < 1e-4);
  }
  CHECK(now[8999] == doctest::Approx(3e38));
  w.set_random(3);
  for (size_t r = 0; r < 3; ++r) {
    auto x = w.in(r, 1);
    x[8999] = -3e38f;
    w.set(r, 1, x);
  }
  REQUIRE(w.all_ok(2));
}

TEST_CASE("scatter: each rank gets its shard of the mean") {
  for (const std::string plan : {"dense", "index=all value=uniform_quant(bits=8) feedback=residual"}) {
    CAPTURE(plan);
    world w({{"shards", 4 * 5000}}, {.book = "*: " + plan, .ranks = 4, .flags = DR_SENDER_SCATTER});
    CHECK(w.unit(0).kind == DR_UNIT_SCATTER);
    for (uint64_t step = 0; step < 3; ++step) {
      w.set_random(step);
      REQUIRE(w.all_ok(step));
      std::vector<std::vector<float>> given;
      for (size_t q = 0; q < 4; ++q) given.push_back(w.in(q, 0));
      for (size_t r = 0; r < 4; ++r) {
        const auto out = w.out(r, 0);
        REQUIRE(out.size() == 5000);
        for (size_t i = 0; i < out.size(); ++i) {
          float mean = 0;
          for (size_t q = 0; q < 4; ++q) mean += 0.25f * given[q][r * 5000 + i];
          REQUIRE(std::abs(out[i] - mean) <= (plan == "dense" ? 0 : 0.2));
        }
      }
    }
  }
}

TEST_CASE("scatter: a fault of one rank fails all") {
  world w({{"shards", 3 * 5000}},
          {.book = "*: index=all value=uniform_quant(bits=8)", .ranks = 3, .flags = DR_SENDER_SCATTER});
  w.set_random(1);
  auto x = w.in(2, 0);
  x[7000] = INFINITY;
  w.set(2, 0, x);
  for (const dr_status s : w.step(0)) CHECK(s == DR_E_PEER);
  for (const auto& r : w.ranks) CHECK(r->error.frame == 2);
}

TEST_CASE("one rank owns all, and its sender keeps the states though the caller keeps those of other units") {
  const std::string book = "*: sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw exchange=owner";
  world w({{"a", 3000}, {"b", 200}}, {.book = book, .ranks = 1, .flags = DR_SENDER_CALLER_STATES});
  REQUIRE(w.unit(0).kind == DR_UNIT_OWNER);
  for (uint64_t step = 0; step < 3; ++step) {
    w.set_random(step);
    REQUIRE(w.all_ok(step));
  }
  const auto rest = w.residual(0, 0);
  CHECK(std::ranges::any_of(rest, [](float x) { return x != 0; }));
}
