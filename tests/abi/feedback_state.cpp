// The state of feedback is the caller's memory: what it holds, what it survives, what is refused.
#include <algorithm>
#include <cmath>

#include "abi/segmented.hpp"
#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

struct state {
  std::vector<uint64_t> memory;
  explicit state(size_t elements) : memory(2 + (elements + 1) / 2) {}
  void give_to(dr_tensor& t) {
    t.state = memory.data();
    t.state_size = 8 * memory.size();
  }
  floats residual() {
    float* r = nullptr;
    uint64_t n = 0;
    REQUIRE(dr_state_residual(memory.data(), 8 * memory.size(), &r, &n, nullptr) == DR_OK);
    return floats(r, r + n);
  }
};

dr_call at_step(uint64_t step) {
  dr_call call{};
  call.step = step;
  return call;
}

const char* const plans[] = {"sparsify=topr(ratio=0.1) feedback=residual index=golomb value=raw",
                             "sparsify=topr(ratio=0.1) feedback=residual index=rice value=qsgd",
                             "sparsify=random(ratio=0.1) feedback=residual index=golomb value=qsgd",
                             "sparsify=dgc(ratio=0.1,sample=1) feedback=residual index=golomb value=raw",
                             "sparsify=topr(ratio=0.1) feedback=residual index=raw value=fit_poly",
                             "sparsify=topr(ratio=0.1) feedback=residual index=bloom(fpr=0.02) value=fit_poly+deflate",
                             "sparsify=topr(ratio=0.1) feedback=residual index=bloom(fpr=0.05,policy=p0) value=qsgd",
                             "sparsify=topr(ratio=0.1) feedback=residual index=bloom(fpr=0.05,policy=naive) value=raw",
                             "sparsify=threshold(value=0.001) feedback=residual value=qsgd",  // goes dense
                             "feedback=residual index=golomb value=qsgd(levels=3)"};

}  // namespace

TEST_CASE("a state's size is reported, and is nothing for plans without feedback") {
  client::plan with("feedback=residual"), without("index=raw");
  const floats g(1001);
  dr_tensor t = client::dense(g);
  size_t bytes = 1;
  CHECK(dr_state_size(without.handle, &t, &bytes, nullptr) == DR_OK);
  CHECK(bytes == 0);
  CHECK(dr_state_size(with.handle, &t, &bytes, nullptr) == DR_OK);
  CHECK(bytes >= 4 * 1001);
  const size_t one_row = bytes;
  t.width = 3;
  CHECK(dr_state_size(with.handle, &t, &bytes, nullptr) == DR_OK);
  CHECK(bytes - one_row == 2 * 4 * 1001);
  t.plan = without.handle;  // a tensor's own plan comes first
  CHECK(dr_state_size(with.handle, &t, &bytes, nullptr) == DR_OK);
  CHECK(bytes == 0);
  t.plan = nullptr;
  t.universe = UINT64_MAX;
  dr_error error{sizeof(dr_error)};
  CHECK(dr_state_size(with.handle, &t, &bytes, &error) == DR_E_ARGUMENT);
  CHECK(error.message[0]);
}

TEST_CASE("the residual after a step is gradient plus residual before, less what the receiver decodes") {
  for (const char* text : plans)
    for (const uint64_t segment_rows : {uint64_t{0}, uint64_t{400}, uint64_t{20000}}) {
      const floats g = client::laplace(segment_rows < 20000 ? 1500 : 50000, 3);
      INFO(std::string(text));
      CAPTURE(segment_rows);
      client::context c;
      state s(g.size());
      dr_tensor t = client::dense(g);
      s.give_to(t);
      floats residual(g.size());
      for (uint64_t step = 0; step < 4; ++step) {
        dr_call call = at_step(step);
        call.segment_rows = segment_rows;
        const bytes frame = abi::encode_segmented(c, text, {t}, call);
        const client::pairs sent = client::decode_sparse(c, frame);
        for (size_t i = 0; i < g.size(); ++i) residual[i] = g[i] + residual[i];
        for (size_t k = 0; k < sent.indices.size(); ++k) residual[sent.indices[k]] -= sent.values[k];
        REQUIRE(client::same_bits(s.residual(), residual));
      }
    }
}

TEST_CASE("beta and gamma weigh as they say, in f32, each product rounded") {
  const floats g = client::laplace(300, 4);
  client::context c;
  state s(g.size());
  dr_tensor t = client::dense(g);
  s.give_to(t);
  floats residual(g.size());
  for (uint64_t step = 0; step < 3; ++step) {
    const bytes frame = client::encode(c, "sparsify=topr(count=30) feedback=residual(beta=0.9,gamma=0.3) index=raw",
                                       {t}, at_step(step));
    const floats sent = client::decode(c, frame, g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      const float fresh = 0.3f * g[i], kept = 0.9f * residual[i];
      residual[i] = fresh + kept - sent[i];
    }
    REQUIRE(client::same_bits(s.residual(), residual));
  }
}

TEST_CASE("halves keep their residual in f32, and what rounding took is in it") {
  const floats g = client::laplace(500, 6);
  std::vector<uint16_t> halves(g.size());
  floats exact(g.size());
  for (size_t i = 0; i < g.size(); ++i) {  // bf16: the upper half of an f32
    uint32_t bits;
    std::memcpy(&bits, &g[i], 4);
    bits &= 0xffff0000;
    halves[i] = static_cast<uint16_t>(bits >> 16);
    std::memcpy(&exact[i], &bits, 4);
  }
  client::context c;
  state s(g.size());
  dr_tensor t = client::dense(g);
  t.dtype = DR_BF16;
  t.values = halves.data();
  s.give_to(t);
  floats residual(g.size());
  for (uint64_t step = 0; step < 4; ++step) {
    const bytes frame = client::encode(c, "sparsify=topr(ratio=0.2) feedback=residual(beta=0.7) index=golomb value=raw",
                                       {t}, at_step(step));
    const floats sent = client::decode(c, frame, g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      const float kept = 0.7f * residual[i];
      residual[i] = exact[i] + kept - sent[i];
    }
    REQUIRE(client::same_bits(s.residual(), residual));
  }
}

TEST_CASE("what arrives sparse leaves a residual, too: of what it brings and of what it does not") {
  const std::vector<uint64_t> indices = {90, 3, 17, 55};
  const floats values = {1, -2, 3, -4};
  client::context c;
  state s(100);
  dr_tensor t = client::sparse(indices, values, 100);
  s.give_to(t);
  floats residual(100);
  for (uint64_t step = 0; step < 5; ++step) {
    const bytes frame =
        client::encode(c, "sparsify=topr(count=1) feedback=residual index=raw value=raw", {t}, at_step(step));
    const client::pairs sent = client::decode_sparse(c, frame);
    for (size_t k = 0; k < indices.size(); ++k) residual[indices[k]] += values[k];
    REQUIRE(sent.indices.size() == 1);
    residual[sent.indices[0]] -= sent.values[0];
    REQUIRE(client::same_bits(s.residual(), residual));
  }
}

TEST_CASE("a zeroed state is a fresh one, and a saved state continues as if nothing had been") {
  const floats g = client::laplace(800, 5);
  for (const char* text : plans) {
    INFO(std::string(text));
    client::context c;
    state s(g.size());
    dr_tensor t = client::dense(g);
    s.give_to(t);
    client::encode(c, text, {t}, at_step(0));
    client::encode(c, text, {t}, at_step(1));
    state saved(g.size());
    std::memcpy(saved.memory.data(), s.memory.data(), 8 * s.memory.size());
    dr_tensor other = t;
    saved.give_to(other);
    client::context another(2);
    for (uint64_t step = 2; step < 5; ++step)
      REQUIRE(client::encode(c, text, {t}, at_step(step)) == client::encode(another, text, {other}, at_step(step)));
    CHECK(s.memory == saved.memory);
  }
}

TEST_CASE("a plan may change between steps without losing the residual") {
  const floats g = client::laplace(800, 5);
  client::context c;
  state s(g.size());
  dr_tensor t = client::dense(g);
  s.give_to(t);
  floats residual(g.size());
  uint64_t step = 0;
  for (const char* text : plans) {
    const bytes frame = client::encode(c, text, {t}, at_step(step++));
    const client::pairs sent = client::decode_sparse(c, frame);
    for (size_t i = 0; i < g.size(); ++i) residual[i] = g[i] + residual[i];
    for (size_t k = 0; k < sent.indices.size(); ++k) residual[sent.indices[k]] -= sent.values[k];
    REQUIRE(client::same_bits(s.residual(), residual));
  }
}

TEST_CASE("an encode that fails leaves the state's bytes as they were, whichever tensor fails") {
  const floats g = client::laplace(400, 1);
  floats nan(g);
  nan[399] = NAN;
  const char* text = "sparsify=topr(ratio=0.5) feedback=residual index=golomb value=qsgd";
  client::context c;
  client::plan p(text);
  state s(g.size()), s2(g.size());
  dr_tensor t = client::dense(g), bad = client::dense(nan);
  s.give_to(t);
  s2.give_to(bad);
  client::encode(c, text, {t});
  const auto before = s.memory;
  const auto before2 = s2.memory;
  bytes frame(1 << 14);
  const std::vector<dr_tensor> both = {t, bad};  // the second fails: the first keeps its state, too
  CHECK(dr_encode(c.handle, p.handle, nullptr, nullptr, both.data(), sizeof(dr_tensor), 2, frame.data(), frame.size(),
                  nullptr) == DR_E_ARGUMENT);
  CHECK(dr_last_error(c.handle)->tensor == 1);
  CHECK(s.memory == before);
  CHECK(s2.memory == before2);
  CHECK(dr_encode(c.handle, p.handle, nullptr, nullptr, &t, sizeof t, 1, frame.data(), 50, nullptr) == DR_E_CAPACITY);
  CHECK(s.memory == before);
}

TEST_CASE("after a step with infinities the state is finite again, also of those that were not sent") {
  floats g = client::laplace(20000, 1);
  for (const size_t i : {3u, 4u, 77u, 9000u, 19999u}) g[i] = i % 2 ? INFINITY : -INFINITY;
  g[5] = NAN;
  for (const char* plan : {"sparsify=topr(count=2) feedback=residual index=raw value=raw",
                           "sparsify=topr(count=2) feedback=dgc index=raw value=raw",
                           "sparsify=topr(count=2) feedback=dgc(masking=off) index=raw value=raw",
                           "sparsify=topr(count=9) feedback=residual index=seeded(ratio=0.001) value=raw",
                           "sparsify=topr(count=9) feedback=residual index=bloom(fpr=0.01,policy=middle) value=raw",
                           "sparsify=random(count=5) feedback=residual index=raw value=raw",
                           "sparsify=threshold(value=3) feedback=residual index=bitmap value=raw",
                           "sparsify=blocks(ratio=0.01,block=16) feedback=residual index=raw value=raw",
                           "sparsify=adaq(ratio=0.001) feedback=residual index=raw value=raw",
                           "sparsify=dgc(ratio=0.001) feedback=residual index=raw value=raw"}) {
    CAPTURE(std::string(plan));
    client::context c;
    const client::plan p(plan);
    dr_tensor t = client::dense(g);
    REQUIRE(dr_state_size(p.handle, &t, &t.state_size, nullptr) == DR_OK);
    std::vector<float> memory(t.state_size / sizeof(float));  // a head of 16 bytes, then the arrays
    t.state = memory.data();
    client::encode(c, plan, {t});
    CHECK(std::any_of(memory.begin() + 4, memory.end(), [](float x) { return x != 0; }));
    CHECK(std::all_of(memory.begin() + 4, memory.end(), [](float x) { return std::isfinite(x); }));
  }
}

TEST_CASE("an undelivered frame is restored by merging it into the residual") {
  const floats g = client::laplace(1000, 2);
  for (const char* value : {"raw", "qsgd", "fit_poly"}) {
    INFO(std::string(value));
    client::context c;
    state s(g.size());
    dr_tensor t = client::dense(g);
    s.give_to(t);
    const std::string text = std::string("sparsify=topr(ratio=0.1) feedback=residual index=golomb value=") + value;
    client::encode(c, text, {t}, at_step(0));
    floats acc = s.residual();
    for (size_t i = 0; i < g.size(); ++i) acc[i] = g[i] + acc[i];
    const bytes frame = client::encode(c, text, {t}, at_step(1));
    const floats left = s.residual(), sent = client::decode(c, frame, g.size());
    float* residual = nullptr;
    uint64_t elements = 0;
    REQUIRE(dr_state_residual(s.memory.data(), 8 * s.memory.size(), &residual, &elements, nullptr) == DR_OK);
    dr_tensor_out out{};
    out.struct_size = sizeof out;
    out.dtype = DR_F32;
    out.universe = elements;
    out.values = residual;
    dr_decode_options add{};
    add.struct_size = sizeof add;
    add.flags = DR_DECODE_ADD;
    const dr_bytes frames[] = {{frame.data(), frame.size()}};
    REQUIRE(dr_merge(c.handle, nullptr, frames, nullptr, 1, &add, &out, sizeof out, 1) == DR_OK);
    const floats back = s.residual();
    size_t wrong = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      // Exact where values are; else two roundings, each of at most half a unit of the larger operand.
      const float slack = std::string(value) == "raw" ? 0 : 0x1p-23f * (std::abs(acc[i]) + std::abs(sent[i]));
      wrong += back[i] != left[i] + sent[i] || !(std::abs(back[i] - acc[i]) <= slack);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("states of another size, another tensor, another place or another kind are refused in words") {
  const floats g = client::laplace(100, 1);
  client::context c;
  const std::string text = "feedback=residual index=golomb value=raw";
  client::plan p(text);
  state s(100);
  dr_tensor t = client::dense(g);
  s.give_to(t);
  client::encode(c, text, {t});
  const auto good = s.memory;
  bytes frame(4096);
  const auto refused = [&](dr_tensor bad, const char* word) {
    CHECK(dr_encode(c.handle, p.handle, nullptr, nullptr, &bad, sizeof bad, 1, frame.data(), frame.size(), nullptr) ==
          DR_E_ARGUMENT);
    INFO(c.error());
    CHECK(c.error().find("state") != std::string::npos);
    CHECK(c.error().find(word) != std::string::npos);
  };
  dr_tensor bad = t;
  bad.state_size = 16 + 4 * 100 - 1;
  refused(bad, "416");
  bad = t;
  bad.state_size = 0;
  refused(bad, "416");
  bad = t;
  bad.state = nullptr;
  refused(bad, "416");
  bad = t;
  bad.state = reinterpret_cast<char*>(s.memory.data()) + 4;
  refused(bad, "align");
  bad = t;
  bad.universe = 99;
  refused(bad, "100");
  s.memory[0] ^= 1;  // magic
  refused(t, "not a residual");
  s.memory = good;
  s.memory[0] ^= uint64_t{8} << 32;  // version, or a kind that is not there yet
  refused(t, "version");
  s.memory = good;
  s.memory[1] = 101;
  refused(t, "101");

  float* residual = nullptr;
  uint64_t elements = 0;
  CHECK(dr_state_residual(s.memory.data(), 8 * s.memory.size(), &residual, &elements, nullptr) == DR_E_ARGUMENT);
  s.memory = good;
  CHECK(dr_state_residual(s.memory.data(), 16 + 4 * 100 - 1, &residual, &elements, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_state_residual(s.memory.data(), 8, &residual, &elements, nullptr) == DR_E_ARGUMENT);
  CHECK(dr_state_residual(s.memory.data(), 16 + 4 * 100, &residual, &elements, nullptr) == DR_OK);
  CHECK(elements == 100);
  state fresh(100);
  CHECK(dr_state_residual(fresh.memory.data(), 8 * fresh.memory.size(), &residual, &elements, nullptr) ==
        DR_E_ARGUMENT);
}
