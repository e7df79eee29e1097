// A batch bound to its memory: the bytes and values of prepared calls, checked once.
#include <deepreduce/deepreduce.hpp>

#include <algorithm>
#include <functional>

#include "abi/bound_pair.hpp"
#include "abi/prepared.hpp"
#include "client.hpp"

namespace {

using abi::aligned_bytes;
using abi::batch;
using client::bytes;
using client::floats;

using abi::binding;
using abi::grown_out;
using abi::no_result;
using abi::places;
using fixture = abi::bound_pair;

}  // namespace

TEST_CASE("a binding encodes the frames of dr_batch_encode and decodes them, on the CPU and on a device") {
  for (const uint32_t kind : places) {
    CAPTURE(kind);
    fixture f(kind);
    // The binding has copied the structs.
    f.tensors[0].assign(2, dr_tensor{});
    for (uint64_t step = 0; step < 4; ++step) {
      CAPTURE(step);
      f.a[step] = 3;
      dr_call call{};
      call.struct_size = sizeof call;
      call.step = step;
      call.flags = step == 2 ? DR_CALL_TAG : 0;
      dr_result expected = no_result();
      REQUIRE(dr_batch_encode(f.c.handle, f.prepared.handle, &call, &f.place, f.tensors[1].data(), sizeof(dr_tensor), 2,
                              f.workspace->data, f.info.workspace, f.again->data, f.info.bound, &expected) == DR_OK);
      const dr_status s = dr_binding_encode(f.bound.handle, &call, f.frame->data, f.info.bound, &f.result);
      INFO(f.c.error());
      REQUIRE(s == DR_OK);
      CHECK(f.made(*f.frame, f.result) == f.made(*f.again, expected));
      CHECK(f.states[0][0] == f.states[1][0]);
      CHECK(f.states[0][1] == f.states[1][1]);

      floats x(3000), y(500);
      dr_tensor_out outs[] = {client::dense_out(x), client::dense_out(y)};
      dr_result told = no_result();
      REQUIRE(dr_decode(f.c.handle, nullptr, f.frame->data, f.result.size, nullptr, outs, sizeof *outs, 2) == DR_OK);
      std::ranges::fill(f.x, -7.0f);
      f.outs[0].now.count = f.outs[1].now.count = 12345;
      REQUIRE(dr_binding_decode(f.bound.handle, f.frame->data, f.result.size, nullptr, &told) == DR_OK);
      CHECK(told.status == DR_OK);
      CHECK(f.x == x);
      CHECK(f.y == y);
      for (size_t i = 0; i < 2; ++i) CHECK(f.outs[i].now.count == (kind == DR_PLACE_CPU ? outs[i].count : 12345));

      const dr_bytes list[] = {{f.frame->data, f.result.size}, {f.again->data, expected.size}};
      const float weights[] = {2, -0.5f};
      dr_decode_options options{};
      options.struct_size = sizeof options;
      options.flags = step % 2 ? DR_DECODE_ADD : 0;
      std::ranges::fill(x, 1.0f);
      std::ranges::fill(f.x, 1.0f);
      REQUIRE(dr_merge(f.c.handle, nullptr, list, weights, 2, &options, outs, sizeof *outs, 2) == DR_OK);
      told = no_result();
      REQUIRE(dr_binding_merge(f.bound.handle, list, weights, 2, &options, &told) == DR_OK);
      CHECK(told.status == DR_OK);
      CHECK(f.x == x);
      CHECK(f.y == y);
    }
    // A state that is zeroed is fresh.
    for (auto* states : f.states)
      for (size_t i = 0; i < 2; ++i) std::ranges::fill(states[i], 0);
    dr_result expected = no_result();
    REQUIRE(dr_batch_encode(f.c.handle, f.prepared.handle, nullptr, &f.place, f.tensors[1].data(), sizeof(dr_tensor), 2,
                            f.workspace->data, f.info.workspace, f.again->data, f.info.bound, &expected) == DR_OK);
    REQUIRE(dr_binding_encode(f.bound.handle, nullptr, f.frame->data, f.info.bound, &f.result) == DR_OK);
    CHECK(f.made(*f.frame, f.result) == f.made(*f.again, expected));
  }
}

TEST_CASE("the faults of a bound call are those of a prepared one") {
  for (const uint32_t kind : places) {
    CAPTURE(kind);
    fixture f(kind);
    REQUIRE(dr_binding_encode(f.bound.handle, nullptr, f.frame->data, f.info.bound, &f.result) == DR_OK);
    const bytes good = f.made(*f.frame, f.result);
    f.frame->data[good.size() - 1] ^= 1;
    dr_result told = no_result();
    const dr_status s = dr_binding_decode(f.bound.handle, f.frame->data, good.size(), nullptr, &told);
    CHECK(told.status == DR_E_CORRUPT);
    CHECK(s == (kind == DR_PLACE_CPU ? dr_status{DR_E_CORRUPT} : dr_status{DR_OK}));
    CHECK(dr_binding_decode(f.bound.handle, nullptr, 5, nullptr, nullptr) == DR_E_ARGUMENT);
    CHECK(dr_binding_merge(f.bound.handle, nullptr, nullptr, 2, nullptr, nullptr) == DR_E_ARGUMENT);
    // More frames than it was made for; no more than that.
    std::copy(good.begin(), good.end(), f.frame->data);
    const std::vector<dr_bytes> list(4, dr_bytes{f.frame->data, good.size()});
    CHECK(dr_binding_merge(f.bound.handle, list.data(), nullptr, 4, nullptr, nullptr) == DR_E_ARGUMENT);
    CHECK(f.c.error().find("at most 3") != std::string::npos);
    CHECK(dr_binding_merge(f.bound.handle, list.data(), nullptr, 3, nullptr, nullptr) == DR_OK);
    CHECK(dr_binding_merge(f.bound.handle, nullptr, nullptr, 0, nullptr, nullptr) == DR_OK);
    CHECK(f.x == floats(3000));
    dr_decode_options options{};
    CHECK(dr_binding_decode(f.bound.handle, f.frame->data, good.size(), &options, nullptr) == DR_E_ARGUMENT);
    options.struct_size = sizeof options;
    options.max_elements = 3499;
    CHECK(dr_binding_decode(f.bound.handle, f.frame->data, good.size(), &options, nullptr) == DR_E_CAPACITY);
    options.max_elements = 3500;
    CHECK(dr_binding_decode(f.bound.handle, f.frame->data, good.size(), &options, nullptr) == DR_OK);
    options.max_workspace = kind == DR_PLACE_CPU ? 20000 : 1000;  // enough for the header
    CHECK(dr_binding_decode(f.bound.handle, f.frame->data, good.size(), &options, nullptr) == DR_E_CAPACITY);
    CHECK(dr_last_error(f.c.handle)->needed > options.max_workspace);
    // The data of an encode, and a frame that does not fit.
    const std::vector<uint64_t> before = f.states[0][0];
    f.a[17] = NAN;
    told = no_result();
    dr_call call{};
    call.struct_size = sizeof call;
    call.flags = DR_CALL_STATUS_FRAME;
    (void)dr_binding_encode(f.bound.handle, &call, f.frame->data, f.info.bound, &told);
    CHECK(told.status == DR_E_ARGUMENT);
    CHECK(told.tensor == 0);
    CHECK(told.size > 0);
    if (kind == DR_PLACE_CPU) CHECK(f.states[0][0] == before);
    told = no_result();
    (void)dr_binding_decode(f.bound.handle, f.frame->data, told.size ? told.size : f.info.bound, nullptr, &told);
    CHECK(told.status == DR_E_PEER);
    f.a[17] = 0;
    CHECK(dr_binding_encode(f.bound.handle, nullptr, nullptr, f.info.bound, nullptr) == DR_E_ARGUMENT);
    told = no_result();
    (void)dr_binding_encode(f.bound.handle, nullptr, f.frame->data, 100, &told);
    CHECK(told.status == DR_E_CAPACITY);
  }
}

TEST_CASE("faults of tensors and outputs are reported when they are bound") {
  for (const uint32_t kind : places) {
    CAPTURE(kind);
    fixture f(kind);
    const auto refused = [&](const std::function<void(fixture&)>& change, dr_status status = DR_E_ARGUMENT) {
      const auto tensors = f.tensors[0];
      const auto outs = f.outs;
      const dr_place place = f.place;
      change(f);
      dr_binding* made = reinterpret_cast<dr_binding*>(&f);
      CHECK(dr_binding_create(f.c.handle, f.prepared.handle, &f.place, f.tensors[0].data(), sizeof(dr_tensor),
                              &f.outs[0].now, sizeof(grown_out), f.tensors[0].size(), 3, &made) == status);
      CHECK(made == nullptr);
      CHECK(f.c.error() != "");
      f.tensors[0] = tensors;
      f.outs = outs;
      f.place = place;
    };
    refused([](fixture& x) { x.tensors[0][1].universe = 499; });
    refused([](fixture& x) { x.tensors[0][0].values = nullptr; });
    refused([](fixture& x) { x.tensors[0][0].values = reinterpret_cast<const uint8_t*>(x.a.data()) + 2; });
    refused([](fixture& x) { x.tensors[0][1].state_size = 8; });
    refused([](fixture& x) { x.tensors[0][1].state = nullptr; });
    refused([](fixture& x) { x.tensors[0][0].struct_size = 0; });
    refused([](fixture& x) { x.tensors[0].pop_back(); });
    refused([](fixture& x) { x.outs[1].now.universe = 499; });
    refused([](fixture& x) { x.outs[1].now.width = 2; });
    refused([](fixture& x) { x.outs[1].now.dtype = 77; });
    refused([](fixture& x) { x.outs[0].now.values = nullptr; });
    refused([](fixture& x) { x.outs[0].now.flags = 1; }, DR_E_UNSUPPORTED);
    refused([](fixture& x) { x.outs[1].now.values = x.outs[0].now.values; });  // they overlap
    refused([](fixture& x) { x.outs[0].later[1] = 1; }, DR_E_UNSUPPORTED);
    refused([](fixture& x) { x.place.kind = x.place.kind ? DR_PLACE_CPU : DR_PLACE_EMULATED; });
    refused([](fixture& x) { x.place.reserved = 1; }, DR_E_UNSUPPORTED);
    dr_binding* made = nullptr;
    const auto create = [&](dr_context* c, const dr_batch* b, const dr_tensor* t, dr_tensor_out* o, size_t n,
                            dr_binding** out) {
      return dr_binding_create(c, b, &f.place, t, sizeof(dr_tensor), o, sizeof(grown_out), n, 1, out);
    };
    const dr_tensor* const t = f.tensors[0].data();
    dr_tensor_out* const o = &f.outs[0].now;
    CHECK(create(nullptr, f.prepared.handle, t, o, 2, &made) == DR_E_ARGUMENT);
    CHECK(create(f.c.handle, nullptr, t, o, 2, &made) == DR_E_ARGUMENT);
    CHECK(create(f.c.handle, f.prepared.handle, t, o, 2, nullptr) == DR_E_ARGUMENT);
    CHECK(create(f.c.handle, f.prepared.handle, nullptr, nullptr, 2, &made) == DR_E_ARGUMENT);
    CHECK(create(f.c.handle, f.prepared.handle, t, o, 1, &made) == DR_E_ARGUMENT);
    CHECK(dr_binding_encode(nullptr, nullptr, nullptr, 0, nullptr) == DR_E_ARGUMENT);
    CHECK(dr_binding_decode(nullptr, nullptr, 0, nullptr, nullptr) == DR_E_ARGUMENT);
    CHECK(dr_binding_merge(nullptr, nullptr, nullptr, 0, nullptr, nullptr) == DR_E_ARGUMENT);
    dr_binding_destroy(nullptr);

    // One that only encodes, one that only decodes.
    binding encodes, decodes;
    REQUIRE(create(f.c.handle, f.prepared.handle, t, nullptr, 2, &encodes.handle) == DR_OK);
    REQUIRE(create(f.c.handle, f.prepared.handle, nullptr, o, 2, &decodes.handle) == DR_OK);
    REQUIRE(dr_binding_encode(encodes.handle, nullptr, f.frame->data, f.info.bound, &f.result) == DR_OK);
    CHECK(dr_binding_decode(encodes.handle, f.frame->data, f.result.size, nullptr, nullptr) == DR_E_ARGUMENT);
    CHECK(dr_binding_merge(encodes.handle, nullptr, nullptr, 0, nullptr, nullptr) == DR_E_ARGUMENT);
    CHECK(dr_binding_encode(decodes.handle, nullptr, f.frame->data, f.info.bound, nullptr) == DR_E_ARGUMENT);
    CHECK(dr_binding_decode(decodes.handle, f.frame->data, f.result.size, nullptr, nullptr) == DR_OK);
  }
}

TEST_CASE("sparse tensors and sparse outputs can be bound, and of a batch of none there is nothing to do") {
  client::context c;
  const client::plan p("index=golomb value=raw");
  std::vector<uint32_t> places = {5, 3, 90}, found(100);
  floats values = {1, 2, 3}, x(100);
  dr_tensor t = client::sparse(places, values, 100);
  batch b;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &b.handle) == DR_OK);
  dr_tensor_out out = client::dense_out(x);
  out.index_dtype = DR_U32;
  out.indices = found.data();
  out.capacity = 2;
  binding bound;
  t.count = 2;  // fewer than prepared for
  REQUIRE(dr_binding_create(c.handle, b.handle, nullptr, &t, sizeof t, &out, sizeof out, 1, 1, &bound.handle) == DR_OK);
  t.count = 3;
  aligned_bytes frame(4096);
  dr_result result = no_result();
  REQUIRE(dr_binding_encode(bound.handle, nullptr, frame.data, 4096, &result) == DR_OK);
  REQUIRE(dr_binding_decode(bound.handle, frame.data, result.size, nullptr, nullptr) == DR_OK);
  CHECK(out.count == 2);
  CHECK(found[0] == 3);
  CHECK(found[1] == 5);
  CHECK(x[0] == 2);
  // Room is a matter of each frame.
  const bytes three = client::encode(c, "index=golomb value=raw", {t});
  out.count = 77;
  CHECK(dr_binding_decode(bound.handle, three.data(), three.size(), nullptr, &result) == DR_E_CAPACITY);
  CHECK(result.status == DR_E_CAPACITY);
  CHECK(out.count == 77);

  batch none;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, nullptr, 0, 0, 0, &none.handle) == DR_OK);
  binding empty;
  REQUIRE(dr_binding_create(c.handle, none.handle, nullptr, nullptr, 0, nullptr, 0, 0, 0, &empty.handle) == DR_OK);
  REQUIRE(dr_binding_encode(empty.handle, nullptr, frame.data, 4096, &result) == DR_OK);
  CHECK(dr_binding_decode(empty.handle, frame.data, result.size, nullptr, nullptr) == DR_OK);
}

TEST_CASE("the workspace of a binding is the context's allocator's, and given back") {
  struct heap {
    size_t blocks = 0, bytes = 0;
    bool dry = false;
  } heap;
  dr_context_options options{};
  options.struct_size = sizeof options;
  options.user = &heap;
  options.allocate = [](void* user, size_t size, size_t alignment) -> void* {
    auto& h = *static_cast<struct heap*>(user);
    if (h.dry) return nullptr;
    ++h.blocks;
    h.bytes += size;
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  };
  options.release = [](void* user, void* memory, size_t size) {
    auto& h = *static_cast<struct heap*>(user);
    --h.blocks;
    h.bytes -= size;
    std::free(memory);
  };
  dr_context* c = nullptr;
  REQUIRE(dr_context_create(&options, &c, nullptr) == DR_OK);
  const floats g = client::laplace(1000, 1);
  floats x(1000);
  const dr_tensor t = client::dense(g);
  dr_tensor_out out = client::dense_out(x);
  const client::plan p("sparsify=topr(ratio=0.1) index=golomb value=qsgd");
  batch b;
  REQUIRE(dr_batch_create(c, p.handle, nullptr, &t, sizeof t, 1, 0, &b.handle) == DR_OK);
  size_t merging = 0;
  REQUIRE(dr_batch_merge_workspace(b.handle, 50, &merging, nullptr) == DR_OK);
  const size_t wanted = std::max<size_t>(merging, abi::describe(b).workspace);
  dr_binding* bound = nullptr;
  heap.dry = true;
  CHECK(dr_binding_create(c, b.handle, nullptr, &t, sizeof t, &out, sizeof out, 1, 50, &bound) == DR_E_MEMORY);
  CHECK(bound == nullptr);
  heap.dry = false;
  REQUIRE(dr_binding_create(c, b.handle, nullptr, &t, sizeof t, &out, sizeof out, 1, 50, &bound) == DR_OK);
  CHECK(heap.blocks == 1);
  CHECK(heap.bytes == wanted);
  heap.dry = true;  // calls take no more
  bytes frame(4096);
  dr_result result = no_result();
  CHECK(dr_binding_encode(bound, nullptr, frame.data(), frame.size(), &result) == DR_OK);
  CHECK(dr_binding_decode(bound, frame.data(), result.size, nullptr, nullptr) == DR_OK);
  dr_binding_destroy(bound);
  CHECK(heap.blocks == 0);
  CHECK(heap.bytes == 0);
  dr_context_destroy(c);
}

TEST_CASE("the binding of deepreduce.hpp: encode, decode and merge, step for step") {
  dr::context c;
  const dr::plan p("sparsify=topr(count=2) index=raw value=raw");
  floats g = {1, 0, -3, 0.5f}, x(4);
  const dr_tensor tensors[] = {dr::dense(g)};
  dr_tensor_out outs[] = {dr::dense_out(x)};
  dr::binding b(c, p, tensors, outs, 2);
  std::vector<std::byte> room(b.bound());
  for (int step = 0; step < 2; ++step) {
    const std::span<const std::byte> frame = std::span(room).first(b.encode_into(room));
    b.decode(frame);
    CHECK(x == (step ? floats{0, 7, -3, 0} : floats{1, 0, -3, 0}));
    CHECK(outs[0].count == 2);
    const dr_bytes both[] = {dr::bytes_of(frame), dr::bytes_of(frame)};
    const float weights[] = {1, 2};
    b.merge(both, weights);
    CHECK(x == (step ? floats{0, 21, -9, 0} : floats{3, 0, -9, 0}));
    CHECK_THROWS_AS(b.merge(both, std::span(weights).first(1)), std::invalid_argument);
    g[1] = 7;
  }
  floats h = {0, 5, 0, 6}, y(4);
  const dr_tensor moved[] = {dr::dense(h)};
  dr_tensor_out there[] = {dr::dense_out(y)};
  b.rebind(moved, there);
  b.decode(std::span(room).first(b.encode_into(room)));
  CHECK(y == floats{0, 5, 0, 6});
  CHECK(there[0].count == 2);
  CHECK_THROWS_AS(b.rebind(std::span(moved).first(0), std::span(there).first(0)), dr::error);
  CHECK_THROWS_AS(b.decode(std::span(room).first(3)), dr::error);
  CHECK_THROWS_AS(dr::binding(c, p, tensors, {}, 1).decode(room), dr::error);
}
