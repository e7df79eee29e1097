// Rounds of PowerSGD: what comes out, what stays behind, and that it is the same on all ranks.
#include <algorithm>
#include <cfloat>
#include <limits>

#include "transform/transform_world.hpp"

using namespace transforms;

namespace {

const std::string plan4 = "transform=lowrank(rank=4) feedback=residual";

double largest(const std::vector<double>& x) {
  double most = 0;
  for (const double v : x) most = std::max(most, std::abs(v));
  return most;
}
double distance(const floats& x, const std::vector<double>& y) {
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) most = std::max(most, std::abs(static_cast<double>(x[i]) - y[i]));
  return most;
}

}  // namespace

TEST_CASE("rounds are the paper's, with residual and warm start, and all ranks have the same bits") {
  const struct {
    const char* plan;
    uint64_t n;
    uint32_t m, r;
    double beta, gamma;
  } cases[] = {{"transform=lowrank(rank=1) feedback=residual", 40, 30, 1, 1, 1},
               {"transform=lowrank(rank=4) feedback=residual", 61, 35, 4, 1, 1},
               {"transform=lowrank(rank=7) feedback=residual(beta=0.5,gamma=2)", 20, 200, 7, 0.5, 2},
               {"transform=lowrank(rank=2)", 33, 47, 2, 0, 1}};
  for (const auto& c : cases) {
    CAPTURE(std::string(c.plan));
    ranks all = make(3, c.plan, {{c.n, c.m}, {5, 1}});
    paper expected{c.n, c.m, c.r, first_q(*all[0], c.m, c.r), {}, c.beta, c.gamma};
    expected.e.assign(3, std::vector<double>(c.n * c.m));
    for (uint64_t step = 0; step < 6; ++step) {
      CAPTURE(step);
      std::vector<const floats*> gradients;
      for (size_t i = 0; i < all.size(); ++i) {
        all[i]->draw(step * 10 + i);
        gradients.push_back(&all[i]->in[0]);
      }
      run(all);
      const std::vector<double> out = expected.step(gradients);
      CHECK(distance(all[0]->out[0], out) < 1e-5 * largest(out));
      for (size_t i = 0; i < all.size(); ++i) {
        CHECK(client::same_bits(all[i]->out[0], all[0]->out[0]));
        CHECK(client::same_bits(all[i]->out[1], all[0]->out[1]));
        if (c.beta > 0) CHECK(distance(all[i]->residual(0), expected.e[i]) < 1e-5 * largest(expected.e[i]));
      }
      for (size_t k = 0; k < 5; ++k) {
        const double mean = (static_cast<double>(all[0]->in[1][k]) + static_cast<double>(all[1]->in[1][k]) +
                             static_cast<double>(all[2]->in[1][k])) /
                            3 * c.gamma;
        CHECK(std::abs(static_cast<double>(all[0]->out[1][k]) - mean) < 1e-6);
      }
    }
    CHECK(all[0]->info().rounds == 6);
  }
}

TEST_CASE("a matrix of the factors' rank comes out as it is, at once") {
  rank one(plan4, {{50, 70}});
  const floats left = normal(50 * 4, 1), right = normal(70 * 4, 2);
  for (size_t i = 0; i < 50; ++i)
    for (size_t j = 0; j < 70; ++j) {
      float& x = one.in[0][i * 70 + j] = 0;
      for (size_t c = 0; c < 4; ++c) x += left[i * 4 + c] * right[j * 4 + c];
    }
  ranks all;
  all.push_back(std::make_unique<rank>(plan4, shapes{{50, 70}}));
  all[0]->in = one.in;
  run(all);
  for (size_t i = 0; i < 3500; ++i) {
    CHECK(all[0]->out[0][i] == doctest::Approx(static_cast<double>(one.in[0][i])).epsilon(1e-4));
    CHECK(std::abs(all[0]->residual(0)[i]) < 1e-4f);
  }
}

TEST_CASE("with feedback the sum of outputs approaches the sum of inputs") {
  ranks all = make(2, "transform=lowrank(rank=2) feedback=residual", {{24, 24}});
  const floats a = normal(576, 1), b = normal(576, 2);
  double total[2] = {};
  std::vector<double> came(576);
  for (int step = 1; step <= 120; ++step) {
    all[0]->in[0] = a;
    all[1]->in[0] = b;
    run(all);
    double miss = 0, norm = 0;
    for (size_t i = 0; i < 576; ++i) {
      came[i] += static_cast<double>(all[0]->out[0][i]);
      const double mean = (static_cast<double>(a[i]) + static_cast<double>(b[i])) / 2 * step;
      miss += (came[i] - mean) * (came[i] - mean);
      norm += mean * mean;
    }
    total[step > 60] = std::sqrt(miss / norm);
  }
  CHECK(total[1] < 0.12);
  CHECK(total[1] < total[0]);
}

TEST_CASE("zeros stay zeros, and what comes after them is still found") {
  ranks all = make(2, plan4, {{30, 40}});
  for (int step = 0; step < 3; ++step) {
    for (auto& r : all) std::fill(r->in[0].begin(), r->in[0].end(), 0.0f);
    run(all);
    CHECK(all[0]->out[0] == floats(1200, 0.0f));
    CHECK(all[1]->residual(0) == floats(1200, 0.0f));
  }
  // Nothing in the first rows and columns, where vectors that stand in for zeros could point.
  for (auto& r : all) r->in[0][29 * 40 + 39] = 3;
  run(all);
  CHECK(all[0]->out[0][29 * 40 + 39] == doctest::Approx(3).epsilon(1e-5));
}

TEST_CASE("shapes that two factors would not make smaller are exact") {
  const shapes of = {{1, 50}, {50, 1}, {4, 100}, {8, 8}, {0, 5}, {3, 3}, {1, 1}, {200, 3}};
  ranks all = make(2, plan4, of);
  const dr_transform_info info = all[0]->info();
  CHECK(info.tensors == 8);
  CHECK(info.matrices == 0);
  CHECK(info.second == 0);
  CHECK(info.first == info.elements);
  for (size_t i = 0; i < 2; ++i)
    for (size_t t = 0; t < of.size(); ++t)
      for (size_t k = 0; k < all[i]->in[t].size(); ++k) all[i]->in[t][k] = static_cast<float>(k * 2 + i * 4);
  run(all);
  for (size_t t = 0; t < of.size(); ++t)
    for (size_t k = 0; k < all[0]->in[t].size(); ++k) CHECK(all[1]->out[t][k] == static_cast<float>(k * 2 + 2));
  CHECK(all[0]->residual(3) == floats(64, 0.0f));
  ranks below = make(1, plan4, {{30, 30}, {40, 40}}, 1000);
  CHECK(below[0]->info().matrices == 1);
}

TEST_CASE("magnitudes of all of f32 pass without a NaN") {
  for (const float scale : {1e-38f, 1e-20f, 1e15f}) {
    CAPTURE(scale);
    ranks all = make(1, plan4, {{30, 40}});
    double error = 0;
    for (int step = 0; step < 4; ++step) {
      all[0]->draw(5);
      for (float& x : all[0]->in[0]) x *= scale;
      floats m = all[0]->residual(0);
      for (size_t i = 0; i < m.size(); ++i) m[i] += all[0]->in[0][i];
      run(all);
      double left = 0, was = 0;
      const floats residual = all[0]->residual(0);
      for (size_t i = 0; i < m.size(); ++i) {
        REQUIRE(std::isfinite(all[0]->out[0][i]));
        left += std::pow(static_cast<double>(residual[i]) / static_cast<double>(scale), 2);
        was += std::pow(static_cast<double>(m[i]) / static_cast<double>(scale), 2);
      }
      error = left / was;
    }
    CHECK(error < 0.9);
  }
}

TEST_CASE("any number of threads and of ranks that share memory for inputs and outputs: the same bits") {
  const shapes of = {{300, 500}, {7, 1}, {600, 300}, {9, 4000}};
  rank one(plan4, of, 1), three(plan4, of, 3);
  for (size_t i = 0; i < of.size(); ++i) three.outs[i].values = three.in[i].data();
  for (uint64_t step = 0; step < 3; ++step) {
    for (rank* r : {&one, &three}) {
      r->draw(step);
      REQUIRE(r->begin() == DR_OK);
      REQUIRE(dr_transform_next(r->handle, 1) == DR_PENDING);
      REQUIRE(dr_transform_next(r->handle, 1) == DR_OK);
    }
    for (size_t i = 0; i < of.size(); ++i) CHECK(client::same_bits(one.out[i], three.in[i]));
    CHECK(one.state() == three.state());
  }
}

TEST_CASE("a cancelled round leaves nothing behind; with KEEP the gradient is in the residual") {
  ranks all = make(2, plan4, {{30, 40}, {6, 1}});
  for (size_t i = 0; i < 2; ++i) all[i]->draw(i);
  run(all);
  const client::bytes before = all[0]->state();
  const floats e = all[0]->residual(0);
  for (int phase = 0; phase < 2; ++phase) {
    all[0]->draw(9);
    std::fill(all[0]->out[0].begin(), all[0]->out[0].end(), -7.0f);
    REQUIRE(all[0]->begin() == DR_OK);
    CHECK(all[0]->info().busy == 1);
    if (phase == 1) REQUIRE(dr_transform_next(all[0]->handle, 1) == DR_PENDING);
    CHECK(dr_transform_cancel(all[0]->handle, 0) == DR_OK);
    CHECK(all[0]->state() == before);
    CHECK(all[0]->out[0] == floats(1200, -7.0f));
  }
  REQUIRE(all[0]->begin() == DR_OK);
  CHECK(dr_transform_cancel(all[0]->handle, DR_TRANSFORM_KEEP) == DR_OK);
  const floats kept = all[0]->residual(0), vector = all[0]->residual(1);
  for (size_t i = 0; i < 1200; ++i) CHECK(kept[i] == all[0]->in[0][i] + e[i]);
  CHECK(vector == all[0]->in[1]);
  // And it leaves it in the next round, which a fresh begin may start at any time.
  std::fill(all[0]->in[1].begin(), all[0]->in[1].end(), 0.0f);
  std::fill(all[1]->in[1].begin(), all[1]->in[1].end(), 0.0f);
  REQUIRE(all[0]->begin() == DR_OK);
  run(all);
  for (size_t i = 0; i < 6; ++i) CHECK(all[1]->out[1][i] == vector[i] / 2);
  CHECK(all[0]->residual(1) == floats(6, 0.0f));
}

TEST_CASE("a state that is saved and loaded continues with the same bits; reset is a new transform") {
  const shapes of = {{30, 40}, {6, 1}};
  rank a(plan4, of), b(plan4, of), fresh(plan4, of);
  const auto round = [](rank& r, uint64_t step) {
    r.draw(step);
    REQUIRE(r.begin() == DR_OK);
    REQUIRE(dr_transform_next(r.handle, 1) == DR_PENDING);
    REQUIRE(dr_transform_next(r.handle, 1) == DR_OK);
  };
  round(a, 1);
  round(a, 2);
  const client::bytes saved = a.state();
  REQUIRE(dr_transform_load(b.handle, saved.data(), saved.size()) == DR_OK);
  CHECK(b.info().rounds == 2);
  round(a, 3);
  round(b, 3);
  CHECK(client::same_bits(a.out[0], b.out[0]));
  CHECK(a.state() == b.state());
  REQUIRE(dr_transform_reset(a.handle) == DR_OK);
  CHECK(a.state() == fresh.state());
}

TEST_CASE("a state of a transform with marks is of any number of ranks, as are older ones that have the marks in it") {
  const auto shapes_of = [](uint64_t marks) { return shapes{{30, 40}, {6, 1}, {marks, 1}}; };
  const auto marked = [&](uint64_t n) {
    return std::make_unique<rank>(plan4, shapes_of(n), 1, 0, 0, DR_TRANSFORM_MARKS);
  };
  const auto round = [](rank& r, uint64_t step) {
    r.draw(step);
    r.in.back().assign(r.in.back().size(), 0.0f);
    REQUIRE(r.begin() == DR_OK);
    REQUIRE(dr_transform_next(r.handle, 1) == DR_PENDING);
    REQUIRE(dr_transform_next(r.handle, 1) == DR_OK);
  };
  rank old(plan4, shapes_of(4));  // its last tensor is one as others
  const auto four = marked(4), two = marked(2), three = marked(3);
  for (const uint64_t step : {1, 2}) round(old, step), round(*four, step);
  CHECK(client::same_bits(old.out[0], four->out[0]));
  const client::bytes state = four->state(), older = old.state();
  CHECK(older.size() == state.size() + 4 * sizeof(float));
  REQUIRE(dr_transform_load(two->handle, state.data(), state.size()) == DR_OK);
  REQUIRE(dr_transform_load(three->handle, older.data(), older.size()) == DR_OK);
  CHECK(two->state() == state);
  CHECK(three->state() == state);
  CHECK(two->info().rounds == 2);
  for (rank* r : {four.get(), two.get(), three.get()}) round(*r, 3);
  CHECK(client::same_bits(two->out[0], four->out[0]));
  CHECK(client::same_bits(three->out[0], four->out[0]));
  // Without residuals nothing of the marks is in a state but their number.
  const std::string bare = "transform=lowrank(rank=4)";
  rank from(bare, shapes_of(4)), to(bare, shapes_of(4), 1, 0, 0, DR_TRANSFORM_MARKS),
      other(bare, shapes_of(3), 1, 0, 0, DR_TRANSFORM_MARKS);
  const client::bytes saved = from.state(), fitting = to.state();
  CHECK(dr_transform_load(to.handle, saved.data(), saved.size()) == DR_OK);
  CHECK(dr_transform_load(other.handle, saved.data(), saved.size()) == DR_E_ARGUMENT);
  CHECK(dr_transform_load(other.handle, fitting.data(), fitting.size()) == DR_OK);
}

TEST_CASE("marks keep no residual, and a state of other shapes is not mistaken for one with marks") {
  const shapes of = {{30, 40}, {6, 1}, {3, 1}};
  rank r(plan4, of, 1, 0, 0, DR_TRANSFORM_MARKS), longer(plan4, shapes{{30, 40}, {9, 1}});
  r.draw(1);
  REQUIRE(r.begin() == DR_OK);
  REQUIRE(dr_transform_cancel(r.handle, DR_TRANSFORM_KEEP) == DR_OK);
  CHECK(r.residual(1) == r.in[1]);
  CHECK(r.residual(2) == floats(3, 0.0f));
  const client::bytes before = r.state(), state = longer.state();
  CHECK(state.size() > before.size());
  CHECK(dr_transform_load(r.handle, state.data(), state.size()) == DR_E_ARGUMENT);
  CHECK(dr_transform_load(r.handle, before.data(), before.size() - 4) == DR_E_ARGUMENT);
  CHECK(dr_transform_load(r.handle, before.data(), 8) == DR_E_ARGUMENT);
  CHECK(r.state() == before);
}
