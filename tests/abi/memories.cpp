// The memories beside residual: each against its paper's formula, written out here.
#include <algorithm>
#include <cmath>

#include "abi/kept_memory.hpp"
#include "abi/segmented.hpp"

using namespace abi;

TEST_CASE("dgc: u = momentum u + g, v += u; where an element was sent u is 0 and v what the value leaves") {
  const char* const stages[] = {"sparsify=topr(ratio=0.1) index=golomb value=raw",
                                "sparsify=topr(ratio=0.1) index=rice value=qsgd",
                                "sparsify=dgc(ratio=0.1,sample=1) index=golomb value=raw",
                                "sparsify=topr(ratio=0.1) index=raw value=fit_poly",
                                "sparsify=topr(ratio=0.1) index=bloom(fpr=0.02) value=fit_poly+deflate",
                                "sparsify=topr(ratio=0.1) index=bloom(fpr=0.05,policy=p0) value=qsgd",
                                "sparsify=blocks(ratio=0.1,block=8) index=golomb value=raw",
                                "index=all value=qsgd(levels=7)"};
  for (const char* stage : stages)
    for (const uint64_t segment_rows : {0, 400})
      for (const uint32_t threads : {1, 3}) {
        const std::string plan = std::string(stage) + " feedback=dgc(momentum=0.7)";
        INFO(plan);
        CAPTURE(segment_rows);
        client::context c(threads);
        floats g(threads > 1 ? 300000 : 1501);
        dr_tensor t = client::dense(g);
        memory m(plan, t);
        CHECK(m.size() == 16 + 8 * g.size());
        m.give_to(t);
        dgc_oracle expected(g.size());
        for (uint64_t step = 0; step < (threads > 1 ? 2 : 5); ++step) {
          const floats drawn = client::laplace(g.size(), 10 + step);
          std::copy(drawn.begin(), drawn.end(), g.begin());
          const bytes frame = abi::encode_segmented(c, plan, {t}, at_step(step, threads > 1 ? 0 : segment_rows));
          expected.add(g, 0.7f);
          expected.send(client::decode_sparse(c, frame));
          REQUIRE(client::same_bits(m.residual(), expected.v));
          REQUIRE(client::same_bits(m.momentum(), expected.u));
        }
      }
}

TEST_CASE("dgc: with value=raw the memory is the paper's: v is 0 where it was sent, so none of it is sent twice") {
  const std::string plan = "sparsify=topr(count=5) feedback=dgc(momentum=0.5) index=golomb value=raw";
  client::context c;
  floats g = client::laplace(100, 1);
  dr_tensor t = client::dense(g);
  memory m(plan, t);
  m.give_to(t);
  for (uint64_t step = 0; step < 3; ++step) {
    const client::pairs sent = client::decode_sparse(c, client::encode(c, plan, {t}, at_step(step)));
    CHECK(sent.indices.size() == 5);
    for (const uint64_t i : sent.indices) CHECK((m.residual()[i] == 0 && m.momentum()[i] == 0));
  }
}

TEST_CASE("dgc: without masking and with all sent it is plain momentum") {
  const std::string plan = "index=all value=raw feedback=dgc(momentum=0.9,masking=off)";
  client::context c;
  floats g(333), u(333);
  dr_tensor t = client::dense(g);
  memory m(plan, t);
  m.give_to(t);
  for (uint64_t step = 0; step < 4; ++step) {
    const floats drawn = client::laplace(g.size(), step);
    std::copy(drawn.begin(), drawn.end(), g.begin());
    for (size_t i = 0; i < g.size(); ++i) {
      const float old = 0.9f * u[i];
      u[i] = g[i] + old;
    }
    const floats sent = client::decode(c, client::encode(c, plan, {t}, at_step(step)), g.size());
    CHECK(client::same_bits(sent, u));
    CHECK(client::same_bits(m.residual(), floats(g.size())));
  }
}

TEST_CASE("dgc: without masking, a gradient that is not finite is gone after its step") {
  const std::string plan = "index=all value=raw feedback=dgc(momentum=0.5,masking=off)";
  for (const uint32_t width : {1u, 3u}) {  // (wide rows are added up apart from their state)
    client::context c;
    floats g = client::laplace(333, 1);
    g[17] = INFINITY, g[18] = -INFINITY, g[200] = NAN;
    dr_tensor t = client::dense(g);
    t.universe = g.size() / width, t.width = width;
    memory m(plan, t);
    m.give_to(t);
    (void)client::encode(c, plan, {t}, at_step(0));
    for (const floats& kept : {m.momentum(), m.residual()})
      CHECK(std::all_of(kept.begin(), kept.end(), [](float x) { return std::isfinite(x); }));
    CHECK(m.momentum()[0] == g[0]);
    CHECK(m.momentum()[17] == 0);
  }
}

TEST_CASE("dgc: clip is by the L2 norm over all tensors of the call, whatever the number of threads") {
  for (const uint32_t threads : {1, 4}) {
    const std::string plan = "sparsify=topr(ratio=0.1) feedback=dgc(momentum=0.5,clip=2) index=golomb value=raw";
    client::context c(threads);
    floats g = client::laplace(70001, 5, 1), h = client::laplace(9, 6, 1);
    const double norm = std::sqrt(norm_of(g) * norm_of(g) + norm_of(h) * norm_of(h));
    REQUIRE(norm > 2);
    const auto factor = static_cast<float>(2 / norm);
    std::vector<dr_tensor> both = {client::dense(g), client::dense(h)};
    memory m(plan, both[0]), k(plan, both[1]);
    m.give_to(both[0]), k.give_to(both[1]);
    dgc_oracle large(g.size()), small(h.size());
    (void)client::encode(c, plan, both);
    large.add(g, 0.5f, factor), small.add(h, 0.5f, factor);
    for (const bool second : {false, true}) {
      const floats kept = (second ? k : m).momentum(), was = (second ? small : large).u;
      for (size_t i = 0; i < kept.size(); ++i)
        if (kept[i] != 0) REQUIRE(kept[i] == doctest::Approx(was[i]).epsilon(1e-6));
    }
  }
  // Below the norm nothing changes, and a gradient that is not finite is not scaled but reported.
  const std::string plan = "sparsify=topr(count=2) feedback=dgc(clip=100) index=golomb value=qsgd";
  client::context c;
  floats g = {1, 2, 3};
  dr_tensor t = client::dense(g);
  memory m(plan, t);
  m.give_to(t);
  (void)client::encode(c, plan, {t});
  const floats u = m.momentum();
  CHECK(u[0] == 1);
  const auto before = m.words;
  g[1] = NAN;
  bytes frame;
  CHECK(client::try_encode(c, plan, {t}, frame) == DR_E_ARGUMENT);
  INFO(c.error());
  CHECK(c.error().find("(at 1, value nan)") != std::string::npos);
  CHECK(m.words == before);  // u and v both
}

TEST_CASE("efsignsgd: a residual of 0 stays 0, however far two learning rates are apart") {
  client::context c;
  floats g = client::laplace(50, 3);
  dr_tensor t = client::dense(g);
  memory m("index=all value=raw feedback=efsignsgd(lr=3e38)", t);
  m.give_to(t);
  for (const char* rate : {"3e38", "1e-37"}) {
    const std::string plan = std::string("index=all value=raw feedback=efsignsgd(lr=") + rate + ')';
    CHECK(client::same_bits(client::decode(c, client::encode(c, plan, {t}), g.size()), g));
  }
}

TEST_CASE("momentum: m = (1 - beta) g + beta m is sent, and nothing is subtracted from it") {
  for (const char* stages : {"index=all value=raw", "sparsify=topr(ratio=0.2) index=golomb value=qsgd"}) {
    const std::string plan = std::string(stages) + " feedback=momentum(beta=0.75)";
    client::context c;
    floats g(777), expected(777);
    dr_tensor t = client::dense(g);
    memory m(plan, t);
    m.give_to(t);
    for (uint64_t step = 0; step < 5; ++step) {
      const floats drawn = client::laplace(g.size(), step + 1);
      std::copy(drawn.begin(), drawn.end(), g.begin());
      const bytes frame = client::encode(c, plan, {t}, at_step(step));
      for (size_t i = 0; i < g.size(); ++i) {
        const float fresh = 0.25f * g[i], kept = 0.75f * expected[i];
        expected[i] = fresh + kept;
      }
      CHECK(client::same_bits(m.momentum(), expected));
      if (std::string(stages) == "index=all value=raw") CHECK(client::decode(c, frame, g.size()) == expected);
    }
  }
}

TEST_CASE("momentum: a value that is not finite does not stay") {
  const std::string plan = "index=all value=raw feedback=momentum";
  client::context c;
  floats g(3000, 1);
  g[2999] = INFINITY;
  dr_tensor t = client::dense(g);
  memory m(plan, t);
  m.give_to(t);
  CHECK(std::isinf(client::decode(c, client::encode(c, plan, {t}), g.size())[2999]));
  CHECK(m.momentum()[2999] == 0);
  CHECK(m.momentum()[0] != 0);
}

// EF-SignSGD, Karimireddy et al. 2019, with the error scaled as in Zheng et al. 2019. In their units, updates, p = lr g + e;
// C(p) is sent, e = p - C(p). Ours is in units of the gradient: what is sent times lr is the update.
TEST_CASE("efsignsgd: sent values times lr are the paper's updates, from the first step on, while lr changes") {
  client::context c;
  constexpr size_t n = 500;
  const double rates[] = {0.1, 0.1, 0.05, 0.2, 0.001};
  floats g(n);
  dr_tensor t = client::dense(g);
  const std::string stages = "sparsify=topr(ratio=0.05) index=golomb value=half(type=bf16) ";
  memory m(stages + "feedback=efsignsgd", t);
  CHECK(m.size() == 16 + 4 * n + 8);
  m.give_to(t);
  std::vector<double> e(n), applied(n), told(n);
  for (uint64_t step = 0; step < std::size(rates); ++step) {
    const double lr = rates[step];
    const floats drawn = client::laplace(n, step + 1, 1);
    std::copy(drawn.begin(), drawn.end(), g.begin());
    const std::string plan = stages + "feedback=efsignsgd(lr=" + std::to_string(lr) + ")";
    const floats sent = client::decode(c, client::encode(c, plan, {t}, at_step(step)), n);
    for (size_t i = 0; i < n; ++i) {
      told[i] += lr * double{g[i]};
      const double p = lr * double{g[i]} + e[i];
      e[i] = p - lr * double{sent[i]};
      applied[i] += lr * double{sent[i]};
    }
    const floats kept = m.residual();
    // Nothing is lost: the requested updates = the applied ones + the remaining error.
    for (size_t i = 0; i < n; ++i) {
      REQUIRE(lr * double{kept[i]} == doctest::Approx(e[i]).epsilon(1e-5).scale(0.01));
      REQUIRE(applied[i] + e[i] == doctest::Approx(told[i]).epsilon(1e-9).scale(1));
    }
  }
}

TEST_CASE("efsignsgd at a constant lr, and residual scaled by hand, are the same bits") {
  client::context c;
  floats g = client::laplace(400, 3);
  const std::string stages = "sparsify=topr(ratio=0.05) index=golomb value=raw feedback=";
  dr_tensor a = client::dense(g), b = client::dense(g);
  memory ef(stages + "efsignsgd", a), plain(stages + "residual", b);
  ef.give_to(a), plain.give_to(b);
  for (const auto& [before, lr] : {std::pair{0.5, 0.5}, {0.5, 0.5}, {0.5, 0.25}, {0.25, 0.25}, {0.25, 1.0}}) {
    if (before != lr) REQUIRE(dr_state_scale(plain.words.data(), plain.size(), before / lr, nullptr) == DR_OK);
    const bytes one = client::encode(c, stages + "efsignsgd(lr=" + std::to_string(lr) + ")", {a});
    CHECK(one == client::encode(c, stages + "residual", {b}));
    CHECK(client::same_bits(ef.residual(), plain.residual()));
  }
}

TEST_CASE("memories of sparse tensors, rows of several values, halves and flat buckets follow the same formulas") {
  client::context c;
  const std::vector<uint32_t> indices = {900, 3, 40};
  floats values = {5, 6, 1, 2, 3, 4};  // rows 900, 3, 40
  dr_tensor t = client::sparse(indices, values, 1000, 2);
  const std::string plan = "index=golomb value=raw feedback=dgc(momentum=0.5)";
  memory m(plan, t);
  CHECK(m.size() == 16 + 8 * 2000);
  m.give_to(t);
  dgc_oracle expected(2000);
  floats g(2000);
  g[1800] = 5, g[1801] = 6, g[6] = 1, g[7] = 2, g[80] = 3, g[81] = 4;
  for (uint64_t step = 0; step < 3; ++step) {
    const bytes frame = client::encode(c, plan, {t}, at_step(step));
    expected.add(g, 0.5f);
    expected.send(client::decode_sparse(c, frame), 2);
    CHECK(client::same_bits(m.residual(), expected.v));
    CHECK(client::same_bits(m.momentum(), expected.u));
  }
  // f16, where v is in f32 and what rounding takes stays in it.
  floats x(400);
  std::vector<uint16_t> half(400);
  for (size_t i = 0; i < 400; ++i) {  // 1 + i / 1024
    half[i] = static_cast<uint16_t>(0x3c00 + i);
    x[i] = 1 + static_cast<float>(i) / 1024;
  }
  dr_tensor h = client::dense(x);
  h.dtype = DR_F16;
  h.values = half.data();
  const std::string some = "sparsify=topr(count=20) index=raw value=raw feedback=dgc(momentum=0.3)";
  memory k(some, h);
  k.give_to(h);
  dgc_oracle rounded(400);
  for (uint64_t step = 0; step < 4; ++step) {
    const bytes frame = client::encode(c, some, {h}, at_step(step));
    rounded.add(x, 0.3f);
    rounded.send(client::decode_sparse(c, frame));
    CHECK(client::same_bits(k.residual(), rounded.v));
    CHECK(client::same_bits(k.momentum(), rounded.u));
  }
  // Three tensors as one: each has its own state.
  const std::string flat = "sparsify=topr(count=40) index=golomb value=raw feedback=dgc bucket=flat";
  floats parts[] = {client::laplace(300, 1), client::laplace(7, 2), client::laplace(1000, 3)};
  std::vector<dr_tensor> list;
  std::vector<memory> states;
  floats whole;
  for (const floats& p : parts) {
    list.push_back(client::dense(p));
    states.emplace_back(flat, list.back());
    whole.insert(whole.end(), p.begin(), p.end());
  }
  for (size_t i = 0; i < 3; ++i) states[i].give_to(list[i]);
  dgc_oracle all(whole.size());
  for (uint64_t step = 0; step < 3; ++step) {
    const bytes frame = client::encode(c, flat, list, at_step(step));
    all.add(whole, 0.9f);
    all.send(client::decode_sparse(c, frame));
  }
  floats v, u;
  for (memory& s : states) {
    const floats r = s.residual(), w = s.momentum();
    v.insert(v.end(), r.begin(), r.end());
    u.insert(u.end(), w.begin(), w.end());
  }
  CHECK(client::same_bits(v, all.v));
  CHECK(client::same_bits(u, all.u));
}
