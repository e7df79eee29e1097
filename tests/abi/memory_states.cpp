// States of the memories: what a lost frame and a failed encode leave, what they refuse of one another, how they are handled.
#include "abi/kept_memory.hpp"

using namespace abi;

TEST_CASE("an undelivered frame is restored to v; u stays 0 where it was sent") {
  const std::string plan = "sparsify=topr(ratio=0.1) index=golomb value=qsgd feedback=dgc(momentum=0.6)";
  client::context c;
  const floats g = client::laplace(500, 8);
  dr_tensor t = client::dense(g);
  memory m(plan, t);
  m.give_to(t);
  dgc_oracle expected(g.size());
  bytes lost;
  for (uint64_t step = 0; step < 2; ++step) {
    lost = client::encode(c, plan, {t}, at_step(step));
    expected.add(g, 0.6f);
    if (step == 0) expected.send(client::decode_sparse(c, lost));
  }
  const floats v = expected.v;
  expected.send(client::decode_sparse(c, lost));
  float* residual = nullptr;
  uint64_t n = 0;
  REQUIRE(dr_state_residual(m.words.data(), m.size(), &residual, &n, nullptr) == DR_OK);
  dr_tensor_out out{};
  out.struct_size = sizeof out;
  out.dtype = DR_F32;
  out.universe = n;
  out.values = residual;
  const dr_bytes frame{lost.data(), lost.size()};
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = DR_DECODE_ADD;
  REQUIRE(dr_merge(c.handle, nullptr, &frame, nullptr, 1, &options, &out, sizeof out, 1) == DR_OK);
  const floats back = m.residual();
  for (size_t i = 0; i < n; ++i) REQUIRE(back[i] == doctest::Approx(v[i]).epsilon(1e-5));
  CHECK(client::same_bits(m.momentum(), expected.u));
}

TEST_CASE("a failed encode leaves every memory as it was, sparse or dense") {
  for (const char* feedback : {"dgc", "momentum", "efsignsgd", "residual"})
    for (const bool sparse : {false, true}) {
      const std::string plan = std::string("index=golomb value=qsgd feedback=") + feedback;
      INFO(plan);
      client::context c;
      floats g = client::laplace(50000, 4);
      std::vector<uint32_t> at(g.size());
      for (uint32_t i = 0; i < at.size(); ++i) at[i] = i;
      dr_tensor t = sparse ? client::sparse(at, g, g.size()) : client::dense(g);
      memory m(plan, t);
      m.give_to(t);
      (void)client::encode(c, plan, {t});
      const auto before = m.words;
      g[49990] = NAN;
      bytes frame;
      CHECK(client::try_encode(c, plan, {t}, frame) == DR_E_ARGUMENT);
      CHECK(m.words == before);
    }
}

TEST_CASE("a state of another feedback, shape or learning rate is refused, by name") {
  client::context c;
  const floats g = client::laplace(64, 2);
  const char* const kinds[] = {"residual", "efsignsgd", "dgc", "momentum"};
  for (const char* made : kinds)
    for (const char* given : kinds) {
      const std::string own = std::string("index=all feedback=") + made,
                        other = std::string("index=all feedback=") + given;
      dr_tensor t = client::dense(g);
      memory m(own, t);
      m.words.resize(m.words.size() + g.size());  // (large enough for any)
      t.state = m.words.data();
      t.state_size = 8 * m.words.size();
      (void)client::encode(c, own, {t});
      bytes frame;
      dr_error error{};
      error.struct_size = sizeof error;
      const bool same = std::string(made) == given;
      CHECK(client::try_encode(c, other, {t}, frame) == (same ? DR_OK : DR_E_ARGUMENT));
      CHECK(dr_state_check(client::plan(other).handle, &t, t.state, t.state_size, &error) ==
            (same ? DR_OK : DR_E_ARGUMENT));
      if (same) continue;
      CHECK(c.error().find(std::string("it is of feedback=") + made + "; the plan has feedback=" + given) !=
            std::string::npos);
      CHECK(std::string(error.message).find(made) != std::string::npos);
    }
  dr_tensor t = client::dense(g);
  const std::string plan = "index=all feedback=efsignsgd";
  memory m(plan, t);
  m.give_to(t);
  (void)client::encode(c, plan, {t});
  const auto sound = m.words;
  for (const double rate : {0.0, -1.0, double{NAN}, double{INFINITY}}) {
    std::memcpy(reinterpret_cast<char*>(m.words.data()) + 16 + 4 * g.size(), &rate, 8);
    bytes frame;
    CHECK(client::try_encode(c, plan, {t}, frame) == DR_E_ARGUMENT);
    CHECK(c.error().find("learning rate") != std::string::npos);
  }
  m.words = sound;
  m.words[0] = uint64_t{4} << 32 | 0x52537244;  // a kind that is not there yet
  bytes frame;
  CHECK(client::try_encode(c, plan, {t}, frame) == DR_E_ARGUMENT);
  m.words = sound;
  m.words[1] = 63;
  CHECK(client::try_encode(c, plan, {t}, frame) == DR_E_ARGUMENT);
  CHECK(c.error().find("belongs to a tensor of 63 elements") != std::string::npos);
}

TEST_CASE("states: fill, copy, scale and norm know what each memory has") {
  const floats g = client::laplace(10, 2);
  dr_tensor t = client::dense(g);
  dr_error error{};
  error.struct_size = sizeof error;
  const auto size = [](memory& m) { return m.size(); };
  // dgc: u goes along with v, and both are zeros after a fill.
  client::plan dgc("sparsify=topr(count=1) feedback=dgc");
  memory a("feedback=dgc", t), b("feedback=dgc", t);
  client::context c;
  a.give_to(t);
  (void)client::encode(c, "sparsify=topr(count=1) feedback=dgc", {t});
  REQUIRE(dr_state_fill(dgc.handle, &t, nullptr, b.words.data(), size(b), nullptr) == DR_OK);
  CHECK(client::same_bits(b.momentum(), floats(10)));
  REQUIRE(dr_state_copy(a.words.data(), size(a), 2, b.words.data(), size(b), 5, 4, nullptr) == DR_OK);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(b.residual()[5 + i] == a.residual()[2 + i]);
    CHECK(b.momentum()[5 + i] == a.momentum()[2 + i]);
  }
  CHECK(b.momentum()[9] == 0);
  memory fresh("feedback=dgc", t);
  REQUIRE(dr_state_copy(fresh.words.data(), size(fresh), 0, b.words.data(), size(b), 0, 10, nullptr) == DR_OK);
  CHECK(client::same_bits(b.momentum(), floats(10)));
  CHECK(dr_state_copy(fresh.words.data(), size(fresh), 1, b.words.data(), size(b), 0, 10, &error) == DR_E_ARGUMENT);
  // scale is of v alone.
  const floats u = a.momentum(), v = a.residual();
  REQUIRE(dr_state_scale(a.words.data(), size(a), 0.5, nullptr) == DR_OK);
  CHECK(client::same_bits(a.momentum(), u));
  for (size_t i = 0; i < 10; ++i) CHECK(a.residual()[i] == 0.5f * v[i]);
  CHECK(dr_state_scale(a.words.data(), size(a), NAN, &error) == DR_E_ARGUMENT);
  CHECK(dr_state_scale(fresh.words.data(), size(fresh), 2, nullptr) == DR_OK);
  CHECK(fresh.words == std::vector<uint64_t>(fresh.words.size()));
  // momentum has no residual: not to read, to fill, to scale or to measure.
  client::plan signum("index=all feedback=momentum");
  memory m("feedback=momentum", t);
  dr_tensor s = client::dense(g);
  m.give_to(s);
  (void)client::encode(c, "index=all feedback=momentum", {s});
  float* at = nullptr;
  uint64_t n = 0;
  double norm = -1;
  CHECK(dr_state_residual(m.words.data(), size(m), &at, &n, &error) == DR_E_ARGUMENT);
  CHECK(std::string(error.message).find("feedback=momentum, which keeps no residual") != std::string::npos);
  CHECK(dr_state_fill(signum.handle, &s, g.data(), m.words.data(), size(m), &error) == DR_E_ARGUMENT);
  CHECK(dr_state_scale(m.words.data(), size(m), 2, &error) == DR_E_ARGUMENT);
  CHECK(dr_state_norm(m.words.data(), size(m), &norm, nullptr) == DR_OK);
  CHECK(norm == 0);
  CHECK(dr_state_copy(m.words.data(), size(m), 0, b.words.data(), size(b), 0, 1, &error) == DR_E_ARGUMENT);
  CHECK(std::string(error.message).find("from: of feedback=momentum; to: of feedback=dgc") != std::string::npos);
  // efsignsgd: a copy between learning rates is scaled.
  memory one("feedback=efsignsgd", t), two("feedback=efsignsgd", t);
  REQUIRE(dr_state_fill(client::plan("feedback=efsignsgd(lr=0.5)").handle, &t, g.data(), one.words.data(), size(one),
                        nullptr) == DR_OK);
  REQUIRE(dr_state_fill(client::plan("feedback=efsignsgd(lr=0.25)").handle, &t, nullptr, two.words.data(), size(two),
                        nullptr) == DR_OK);
  REQUIRE(dr_state_copy(one.words.data(), size(one), 0, two.words.data(), size(two), 0, 10, nullptr) == DR_OK);
  for (size_t i = 0; i < 10; ++i) CHECK(two.residual()[i] == 2 * g[i]);
}

TEST_CASE("what does not go with a memory is refused with its name") {
  client::context c;
  const floats g = client::laplace(1000, 2);
  dr_tensor t = client::dense(g);
  bytes frame;
  memory m("index=all feedback=momentum", t);
  m.give_to(t);
  dr_call fit{};
  fit.flags = DR_CALL_FIT;
  CHECK(client::try_encode(c, "index=all feedback=momentum", {t}, frame, fit) == DR_E_ARGUMENT);
  CHECK(c.error().find("momentum keeps none") != std::string::npos);
  const std::vector<uint32_t> at = {1, 1};
  const floats twice = {1, 2};
  dr_tensor sparse = client::sparse(at, twice, 10);
  sparse.flags = DR_TENSOR_SUM_DUPLICATES;
  const std::string clips = "index=golomb feedback=dgc(clip=1)";
  memory k(clips, sparse);
  k.give_to(sparse);
  CHECK(client::try_encode(c, clips, {sparse}, frame) == DR_E_UNSUPPORTED);
  dr_place place{};
  place.struct_size = sizeof place;
  place.kind = DR_PLACE_EMULATED;
  size_t bound = 0;
  dr_tensor dense = client::dense(g);
  for (const char* feedback : {"dgc", "momentum", "efsignsgd"}) {
    client::plan p(std::string("sparsify=topr(ratio=0.1) index=golomb feedback=") + feedback);
    place.flags = 0;
    CHECK(dr_bound(c.handle, p.handle, nullptr, &place, &dense, sizeof dense, 1, &bound) == DR_E_UNSUPPORTED);
    CHECK(c.error().find(std::string(feedback) + " runs on the CPU only") != std::string::npos);
    place.flags = DR_PLACE_ALLOW_HOST;
    CHECK(dr_bound(c.handle, p.handle, nullptr, &place, &dense, sizeof dense, 1, &bound) == DR_OK);
  }
}
