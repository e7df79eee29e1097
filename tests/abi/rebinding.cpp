// dr_binding_rebind: a binding goes on with other memory.
#include <algorithm>
#include <functional>

#include "abi/bound_pair.hpp"

namespace {

using abi::batch;
using abi::binding;
using abi::grown_out;
using abi::no_result;
using abi::places;
using client::bytes;
using client::floats;
using fixture = abi::bound_pair;

}  // namespace

TEST_CASE("a rebound binding reads and writes other memory, as one that was created there, and allocates nothing") {
  for (const uint32_t kind : places) {
    CAPTURE(kind);
    fixture f(kind), g(kind);
    std::ranges::fill(g.a, 0.0f);
    for (size_t i = 0; i < 100; ++i) g.a[7 * i] = static_cast<float>(i + 1);
    // f's binding goes to g's memory and back, and does there what g's own does on its second states.
    for (uint64_t step = 0; step < 4; ++step) {
      CAPTURE(step);
      fixture& at = step % 2 ? f : g;
      REQUIRE(dr_binding_rebind(f.bound.handle, at.tensors[0].data(), sizeof(dr_tensor), &at.outs[0].now,
                                sizeof(grown_out), 2) == DR_OK);
      dr_call call{};
      call.struct_size = sizeof call;
      call.step = step;
      dr_result expected = no_result();
      REQUIRE(dr_batch_encode(f.c.handle, f.prepared.handle, &call, &f.place, at.tensors[1].data(), sizeof(dr_tensor),
                              2, f.workspace->data, f.info.workspace, f.again->data, f.info.bound, &expected) == DR_OK);
      REQUIRE(dr_binding_encode(f.bound.handle, &call, f.frame->data, f.info.bound, &f.result) == DR_OK);
      CHECK(f.made(*f.frame, f.result) == f.made(*f.again, expected));
      for (size_t i = 0; i < 2; ++i) CHECK(at.states[0][i] == at.states[1][i]);
      floats x(3000);
      floats y(500);
      dr_tensor_out outs[] = {client::dense_out(x), client::dense_out(y)};
      REQUIRE(dr_decode(f.c.handle, nullptr, f.frame->data, f.result.size, nullptr, outs, sizeof *outs, 2) == DR_OK);
      fixture& other = step % 2 ? g : f;
      const floats before = other.x;
      std::ranges::fill(at.x, -7.0f);
      at.outs[0].now.count = 12345;
      REQUIRE(dr_binding_decode(f.bound.handle, f.frame->data, f.result.size, nullptr, nullptr) == DR_OK);
      CHECK(at.x == x);
      CHECK(at.y == y);
      CHECK(other.x == before);
      if (kind == DR_PLACE_CPU) CHECK(at.outs[0].now.count == outs[0].count);
    }
    // One direction alone: the other stays.
    REQUIRE(dr_binding_rebind(f.bound.handle, nullptr, 0, &g.outs[0].now, sizeof(grown_out), 2) == DR_OK);
    REQUIRE(dr_binding_encode(f.bound.handle, nullptr, f.frame->data, f.info.bound, &f.result) == DR_OK);
    REQUIRE(dr_binding_decode(f.bound.handle, f.frame->data, f.result.size, nullptr, nullptr) == DR_OK);
    CHECK(std::ranges::count_if(g.x, [](float v) { return v != 0; }) > 0);
    // A frame that lies in an output that is bound now is refused; in one that was, it is not.
    const bytes frame = f.made(*f.frame, f.result);
    auto* const in = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(g.x.data()) + 63) / 64 * 64);
    std::copy(frame.begin(), frame.end(), in);
    CHECK(dr_binding_decode(f.bound.handle, in, frame.size(), nullptr, nullptr) == DR_E_ARGUMENT);
    auto* const out = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(f.x.data()) + 63) / 64 * 64);
    std::copy(frame.begin(), frame.end(), out);
    CHECK(dr_binding_decode(f.bound.handle, out, frame.size(), nullptr, nullptr) == DR_OK);
  }
}

TEST_CASE("a binding that cannot be rebound is as it was, both directions of it") {
  for (const uint32_t kind : places) {
    CAPTURE(kind);
    fixture f(kind), g(kind);
    const auto rebind = [&](const std::vector<dr_tensor>& t, std::vector<grown_out>& o) {
      return dr_binding_rebind(f.bound.handle, t.data(), sizeof(dr_tensor), &o[0].now, sizeof(grown_out), t.size());
    };
    const auto refused = [&](const std::function<void(fixture&)>& change, dr_status status = DR_E_ARGUMENT) {
      const auto tensors = g.tensors[0];
      const auto outs = g.outs;
      change(g);
      CHECK(rebind(g.tensors[0], g.outs) == status);
      CHECK(f.c.error() != "");
      g.tensors[0] = tensors;
      g.outs = outs;
      // It still is where it was.
      std::ranges::fill(f.x, -7.0f);
      std::ranges::fill(g.x, -7.0f);
      REQUIRE(dr_binding_encode(f.bound.handle, nullptr, f.frame->data, f.info.bound, &f.result) == DR_OK);
      REQUIRE(dr_binding_decode(f.bound.handle, f.frame->data, f.result.size, nullptr, nullptr) == DR_OK);
      CHECK(f.x != floats(3000, -7.0f));
      CHECK(g.x == floats(3000, -7.0f));
      CHECK(g.states[0][0] == std::vector<uint64_t>(g.states[0][0].size()));
    };
    refused([](fixture& x) { x.tensors[0][1].universe = 499; });
    refused([](fixture& x) { x.tensors[0][0].values = nullptr; });
    refused([](fixture& x) { x.tensors[0][1].state = x.tensors[0][0].state; });
    refused([](fixture& x) { x.tensors[0][0].struct_size = 12; });
    refused([](fixture& x) { x.tensors[0].pop_back(); });
    refused([](fixture& x) { x.outs[1].now.universe = 499; });
    refused([](fixture& x) { x.outs[1].now.values = x.outs[0].now.values; });
    refused([](fixture& x) { x.outs[0].now.flags = 1; }, DR_E_UNSUPPORTED);
    CHECK(dr_binding_rebind(nullptr, nullptr, 0, nullptr, 0, 2) == DR_E_ARGUMENT);
    // A direction without a workspace.
    binding encodes;
    REQUIRE(dr_binding_create(f.c.handle, f.prepared.handle, &f.place, f.tensors[0].data(), sizeof(dr_tensor), nullptr,
                              0, 2, 1, &encodes.handle) == DR_OK);
    CHECK(dr_binding_rebind(encodes.handle, nullptr, 0, &g.outs[0].now, sizeof(grown_out), 2) == DR_E_ARGUMENT);
    CHECK(f.c.error().find("created without outputs") != std::string::npos);
    CHECK(dr_binding_rebind(encodes.handle, g.tensors[0].data(), sizeof(dr_tensor), nullptr, 0, 2) == DR_OK);
  }
}

TEST_CASE("a binding can be rebound to other counts, and to sparse outputs from dense ones") {
  client::context c;
  const client::plan p("index=golomb value=raw");
  std::vector<uint32_t> at = {5, 3, 90}, found(100);
  floats values = {1, 2, 3}, x(100), few(100);
  dr_tensor t = client::sparse(at, values, 100);
  batch b;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &b.handle) == DR_OK);
  dr_tensor_out dense = client::dense_out(x), sparse = client::dense_out(few);
  sparse.index_dtype = DR_U32;
  sparse.indices = found.data();
  sparse.capacity = 100;
  binding bound;
  REQUIRE(dr_binding_create(c.handle, b.handle, nullptr, &t, sizeof t, &dense, sizeof dense, 1, 1, &bound.handle) ==
          DR_OK);
  t.count = 2;
  REQUIRE(dr_binding_rebind(bound.handle, &t, sizeof t, &sparse, sizeof sparse, 1) == DR_OK);
  bytes frame(4096);
  dr_result result = no_result();
  REQUIRE(dr_binding_encode(bound.handle, nullptr, frame.data(), frame.size(), &result) == DR_OK);
  REQUIRE(dr_binding_decode(bound.handle, frame.data(), result.size, nullptr, nullptr) == DR_OK);
  CHECK(sparse.count == 2);
  CHECK(found[1] == 5);
  t.count = 4;
  CHECK(dr_binding_rebind(bound.handle, &t, sizeof t, nullptr, 0, 1) == DR_E_ARGUMENT);
}
