// The prepared form of encode: the same bytes, without allocating, shared between threads.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "abi/segmented.hpp"
#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

struct batch {
  dr_batch* handle = nullptr;
  ~batch() { dr_batch_destroy(handle); }
};

struct aligned_bytes {
  uint8_t* data;
  explicit aligned_bytes(size_t size) : data(static_cast<uint8_t*>(std::aligned_alloc(64, (size + 127) / 64 * 64))) {}
  ~aligned_bytes() { std::free(data); }
};

dr_batch_info describe(const batch& b) {
  dr_batch_info info{};
  info.struct_size = sizeof info;
  REQUIRE(dr_batch_describe(b.handle, &info, nullptr) == DR_OK);
  return info;
}

struct fixture {
  floats a = client::laplace(3000, 1), b = client::laplace(500, 2), values = client::laplace(40, 3);
  std::vector<uint64_t> indices = [] {
    std::vector<uint64_t> i(40);
    for (size_t k = 0; k < i.size(); ++k) i[k] = 997 * k % 1000;
    return i;
  }();
  client::plan own{"index=bloom(policy=p0,fpr=0.01) value=raw"};
  std::vector<dr_tensor> tensors = {client::dense(a), client::dense(b), client::sparse(indices, values, 1000)};
  fixture() { tensors[2].plan = own.handle; }
};

constexpr const char* plan_text = "sparsify=topr(ratio=0.05) index=golomb value=fit_poly";

}  // namespace

TEST_CASE("a prepared batch yields the bytes of dr_encode, again and again, in segments too") {
  for (const uint64_t segment_rows : {uint64_t{0}, uint64_t{700}}) {
    CAPTURE(segment_rows);
    fixture f;
    client::context c;
    client::plan p(plan_text);
    batch b;
    REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, f.tensors.data(), sizeof(dr_tensor), 3, segment_rows,
                            &b.handle) == DR_OK);
    const dr_batch_info info = describe(b);
    CHECK(info.tensors == 3);
    CHECK(info.segments == (segment_rows ? 5 + 1 + 2 : 3));
    CHECK(info.launches == 0);
    aligned_bytes workspace(info.workspace);
    for (uint64_t step = 0; step < 3; ++step) {
      dr_call call{};
      call.step = step;
      call.seed = 5;
      call.segment_rows = segment_rows;
      call.struct_size = sizeof call;
      call.flags = step == 1 ? DR_CALL_TAG : 0;
      call.tag = 77;
      f.a[step] = 4;  // other values, the same shapes
      const bytes expected = abi::encode_segmented(c, plan_text, f.tensors, call);
      bytes frame(info.bound, 0x11);
      dr_result result{.struct_size = sizeof(dr_result)};
      std::memset(workspace.data, 0xe0 + static_cast<int>(step),
                  info.workspace);  // what lies in the workspace does not matter
      REQUIRE(dr_batch_encode(c.handle, b.handle, &call, nullptr, f.tensors.data(), sizeof(dr_tensor), 3,
                              workspace.data, info.workspace, frame.data(), frame.size(), &result) == DR_OK);
      frame.resize(result.size);
      CHECK(frame == expected);
    }
  }
}

TEST_CASE("a prepared batch accepts fewer nonzeros than it was prepared for, and no other change of shape") {
  fixture f;
  client::context c;
  client::plan p(plan_text);
  batch b;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, f.tensors.data(), sizeof(dr_tensor), 3, 0, &b.handle) == DR_OK);
  const dr_batch_info info = describe(b);
  aligned_bytes workspace(info.workspace);
  bytes frame(info.bound);
  dr_result result{.struct_size = sizeof(dr_result)};
  const auto encode = [&](const std::vector<dr_tensor>& tensors) {
    return dr_batch_encode(c.handle, b.handle, nullptr, nullptr, tensors.data(), sizeof(dr_tensor), tensors.size(),
                           workspace.data, info.workspace, frame.data(), frame.size(), &result);
  };
  auto changed = f.tensors;
  changed[2].count = 7;
  REQUIRE(encode(changed) == DR_OK);
  CHECK(client::inspect(bytes(frame.begin(), frame.begin() + static_cast<long>(result.size))).universe == 3000);
  floats x(3000), y(500), z(1000);
  dr_tensor_out outs[3] = {};
  float* const rooms[] = {x.data(), y.data(), z.data()};
  for (size_t i = 0; i < 3; ++i) {
    outs[i].struct_size = sizeof outs[i];
    outs[i].dtype = DR_F32;
    outs[i].universe = f.tensors[i].universe;
    outs[i].values = rooms[i];
  }
  REQUIRE(dr_decode(c.handle, nullptr, frame.data(), result.size, nullptr, outs, sizeof *outs, 3) == DR_OK);
  for (size_t k = 0; k < 7; ++k) CHECK(z[f.indices[k]] == f.values[k]);

  const auto refused = [&](auto change, dr_status wanted = DR_E_ARGUMENT) {
    changed = f.tensors;
    change(changed);
    CHECK(encode(changed) == wanted);
    CHECK(c.error() != "");
    CHECK(result.size == 0);
  };
  refused([](auto& t) { t[0].universe = 2999; });
  refused([](auto& t) { t[2].count = 41; });
  refused([](auto& t) { t[1].dtype = DR_BF16; });
  refused([](auto& t) { t[1].width = 2; });
  refused([](auto& t) { t[2].index_dtype = DR_U32; });
  refused([](auto& t) { t[2].index_dtype = 0; });
  refused([](auto& t) { t.pop_back(); });
  refused([](auto& t) { t.push_back(t[0]); });
  refused([](auto& t) { t[2].flags = DR_TENSOR_SUM_DUPLICATES << 1; }, DR_E_UNSUPPORTED);
}

TEST_CASE("a call has the segments that its batch was prepared for; none is the maximum, in either") {
  constexpr uint64_t whole = UINT32_MAX;
  fixture f;
  client::context c;
  client::plan p(plan_text);
  for (const uint64_t prepared : {uint64_t{0}, whole, uint64_t{700}}) {
    batch b;
    REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, f.tensors.data(), sizeof(dr_tensor), 3, prepared, &b.handle) ==
            DR_OK);
    const dr_batch_info info = describe(b);
    const aligned_bytes workspace(info.workspace);
    bytes frame(info.bound);
    for (const uint64_t asked : {uint64_t{0}, whole, uint64_t{700}}) {
      CAPTURE(prepared);
      CAPTURE(asked);
      dr_call call{sizeof call};
      call.segment_rows = asked;
      const bool same = !asked || asked == (prepared ? prepared : whole);
      CHECK(dr_batch_encode(c.handle, b.handle, &call, nullptr, f.tensors.data(), sizeof(dr_tensor), 3, workspace.data,
                            info.workspace, frame.data(), frame.size(), nullptr) == (same ? DR_OK : DR_E_ARGUMENT));
    }
  }
}

TEST_CASE("a workspace that is too small or not aligned is refused, and one that fits is not overrun") {
  fixture f;
  client::context c;
  client::plan p(plan_text);
  batch b;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, f.tensors.data(), sizeof(dr_tensor), 3, 0, &b.handle) == DR_OK);
  const dr_batch_info info = describe(b);
  aligned_bytes workspace(info.workspace + 64);
  std::memset(workspace.data, 0x5a, info.workspace + 64);
  bytes frame(info.bound);
  const auto encode = [&](uint8_t* memory, uint64_t size) {
    return dr_batch_encode(c.handle, b.handle, nullptr, nullptr, f.tensors.data(), sizeof(dr_tensor), 3, memory, size,
                           frame.data(), frame.size(), nullptr);
  };
  CHECK(encode(workspace.data, info.workspace - 1) == DR_E_CAPACITY);
  CHECK(c.error().find(std::to_string(info.workspace)) != std::string::npos);
  CHECK(dr_last_error(c.handle)->needed == info.workspace);
  CHECK(encode(workspace.data, 0) == DR_E_CAPACITY);
  CHECK(encode(nullptr, info.workspace) == DR_E_ARGUMENT);
  CHECK(c.error() == "workspace is NULL; " + std::to_string(info.workspace) + " bytes are needed");
  CHECK(encode(workspace.data + 8, info.workspace) == DR_E_ARGUMENT);
  CHECK(c.error().find("64") != std::string::npos);
  CHECK(workspace.data[info.workspace - 1] == 0x5a);
  CHECK(encode(workspace.data, info.workspace) == DR_OK);
  for (size_t i = info.workspace; i < info.workspace + 64; ++i) REQUIRE(workspace.data[i] == 0x5a);
}

TEST_CASE(
    "a workspace of every smaller size is refused, and the sentence has both sizes: encode, decode and merge, CPU and "
    "device") {
  client::context c;
  floats g = client::laplace(1000, 1), x(1000);
  for (const uint32_t kind : {uint32_t{DR_PLACE_CPU}, uint32_t{DR_PLACE_EMULATED}})
    for (const char* text :
         {"sparsify=topr(ratio=0.01) index=golomb value=raw",
          "sparsify=topr(ratio=0.01) feedback=residual index=golomb",
          "sparsify=random(ratio=0.1) index=raw value=fit_poly", "sparsify=dgc(ratio=0.01) index=golomb+huffman",
          "sparsify=topr(ratio=0.05) index=bloom(policy=p2,fpr=0.01) value=fit_poly order=bitpack+deflate",
          "sparsify=topr(ratio=0.05) index=auto value=auto(error=0.1)",
          "sparsify=topr(ratio=0.05) index=golomb value=qsgd bucket=flat"}) {
      client::plan p(text);
      CAPTURE(text);
      CAPTURE(kind);
      dr_tensor t = client::dense(g);
      size_t state_size = 0;
      REQUIRE(dr_state_size(p.handle, &t, &state_size, nullptr) == DR_OK);
      std::vector<uint64_t> state(state_size / 8 + 1);
      t.state = state_size ? state.data() : nullptr;
      t.state_size = state_size;
      dr_place place{};
      place.struct_size = sizeof place;
      place.kind = kind;
      batch b;
      const dr_status made = dr_batch_create(c.handle, p.handle, &place, &t, sizeof t, 1, 0, &b.handle);
      if (kind == DR_PLACE_EMULATED && made == DR_E_UNSUPPORTED) continue;  // no such kernels
      REQUIRE(made == DR_OK);
      const dr_batch_info info = describe(b);
      aligned_bytes frame(info.bound);
      // Memory of exactly the size that is stated, so that a sanitizer sees a step outside.
      const auto refuses_less = [&](uint64_t wanted, dr_status status, auto&& run) {
        REQUIRE(wanted > 0);
        uint64_t taken = 0;
        for (uint64_t size = 0; size < wanted; size += 64) {
          aligned_bytes memory(size);
          const dr_status s = run(memory.data, size);
          const bool says = c.error().find(std::to_string(size)) != std::string::npos &&
                            c.error().find(std::to_string(wanted)) != std::string::npos;
          taken += s != status || !says;
        }
        CHECK(taken == 0);
        aligned_bytes memory(wanted);
        CHECK(run(memory.data, wanted) == DR_OK);
      };
      dr_result result{.struct_size = sizeof(dr_result)};
      result.struct_size = sizeof result;
      refuses_less(info.workspace, DR_E_CAPACITY, [&](void* memory, uint64_t size) {
        return dr_batch_encode(c.handle, b.handle, nullptr, &place, &t, sizeof t, 1, memory, size, frame.data,
                               info.bound, &result);
      });
      CHECK(result.status == DR_OK);
      dr_tensor_out out = client::dense_out(x);
      const dr_bytes twice[] = {{frame.data, info.bound}, {frame.data, info.bound}};
      for (const size_t k : {size_t{1}, size_t{2}}) {
        size_t room = 0;
        REQUIRE(dr_batch_merge_workspace(b.handle, k, &room, nullptr) == DR_OK);
        const auto run = [&](void* memory, uint64_t size) {
          return k == 1 ? dr_batch_decode(c.handle, b.handle, &place, frame.data, info.bound, nullptr, &out, sizeof out,
                                          1, memory, size, &result)
                        : dr_batch_merge(c.handle, b.handle, &place, twice, nullptr, k, nullptr, &out, sizeof out, 1,
                                         memory, size, &result);
        };
        // What suffices for any frame is more than one wants, on the CPU.
        REQUIRE(run(nullptr, 0) == DR_E_CAPACITY);
        const uint64_t needed = dr_last_error(c.handle)->needed;
        CHECK(needed <= room);
        if (kind != DR_PLACE_CPU) CHECK(needed == room);
        refuses_less(needed, DR_E_CAPACITY, run);
      }
    }
}

TEST_CASE("threads share a batch and a plan, each with its own context, workspace and state") {
  client::context maker;
  client::plan p("sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd");
  const floats g = client::laplace(5000, 1);
  dr_tensor shape = client::dense(g);
  batch b;
  REQUIRE(dr_batch_create(maker.handle, p.handle, nullptr, &shape, sizeof shape, 1, 900, &b.handle) == DR_OK);
  const dr_batch_info info = describe(b);
  constexpr uint64_t steps = 20;
  const auto work = [&](uint32_t threads_inside, std::vector<bytes>& frames) {
    dr_context_options options{};
    options.struct_size = sizeof options;
    options.threads = threads_inside;
    dr_context* c = nullptr;
    if (dr_context_create(&options, &c, nullptr)) return;
    aligned_bytes workspace(info.workspace);
    std::vector<uint64_t> state(2 + g.size() / 2);
    dr_tensor t = shape;
    t.state = state.data();
    t.state_size = 8 * state.size();
    for (uint64_t step = 0; step < steps; ++step) {
      dr_call call{};
      call.struct_size = sizeof call;
      call.step = step;
      call.segment_rows = 900;
      bytes frame(info.bound);
      dr_result result{.struct_size = sizeof(dr_result)};
      if (dr_batch_encode(c, b.handle, &call, nullptr, &t, sizeof t, 1, workspace.data, info.workspace, frame.data(),
                          frame.size(), &result))
        break;
      frame.resize(result.size);
      frames.push_back(frame);
    }
    dr_context_destroy(c);
  };
  std::vector<std::vector<bytes>> frames(4);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < frames.size(); ++i) threads.emplace_back(work, i % 2 + 1, std::ref(frames[i]));
  for (auto& t : threads) t.join();
  for (const auto& f : frames) {
    CHECK(f.size() == steps);
    CHECK(f == frames[0]);
  }
  std::vector<bytes> alone;
  work(1, alone);
  CHECK(alone == frames[0]);
}

TEST_CASE("the bound holds: a buffer of the frame's size suffices, one byte less is CAPACITY and stays untouched") {
  fixture f;
  client::context c;
  client::plan p(plan_text);
  const bytes expected = client::encode(c, plan_text, f.tensors);
  size_t bound = 0;
  REQUIRE(dr_bound(c.handle, p.handle, nullptr, nullptr, f.tensors.data(), sizeof(dr_tensor), 3, &bound) == DR_OK);
  CHECK(bound >= expected.size());
  bytes room(bound, 0x77);
  dr_result result{.struct_size = sizeof(dr_result)};
  for (const size_t capacity : {expected.size() - 1, expected.size() / 2, size_t{1}, size_t{0}}) {
    CAPTURE(capacity);
    CHECK(dr_encode(c.handle, p.handle, nullptr, nullptr, f.tensors.data(), sizeof(dr_tensor), 3, room.data(), capacity,
                    &result) == DR_E_CAPACITY);
    CHECK(room == bytes(bound, 0x77));
    CHECK(c.error().find(std::to_string(expected.size())) != std::string::npos);
  }
  CHECK(dr_encode(c.handle, p.handle, nullptr, nullptr, f.tensors.data(), sizeof(dr_tensor), 3, room.data(),
                  expected.size(), &result) == DR_OK);
  CHECK(bytes(room.begin(), room.begin() + static_cast<long>(expected.size())) == expected);
  for (size_t i = expected.size(); i < bound; ++i) REQUIRE(room[i] == 0x77);
}

TEST_CASE("a batch outlives the plans that it was made from") {
  client::context c;
  const floats g = client::laplace(100, 1);
  const dr_tensor t = client::dense(g);
  batch b;
  {
    client::plan p("index=golomb value=raw+deflate(level=9)");
    REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &b.handle) == DR_OK);
  }
  const dr_batch_info info = describe(b);
  aligned_bytes workspace(info.workspace);
  bytes frame(info.bound);
  dr_result result{.struct_size = sizeof(dr_result)};
  REQUIRE(dr_batch_encode(c.handle, b.handle, nullptr, nullptr, &t, sizeof t, 1, workspace.data, info.workspace,
                          frame.data(), frame.size(), &result) == DR_OK);
  frame.resize(result.size);
  CHECK(client::same_bits(client::decode(c, frame, 100), g));
}

TEST_CASE("a small support that is replaced and a large one that is not replaced share a frame") {
  client::context c;
  client::plan bloom("sparsify=topr(count=20) index=bloom(fpr=0.01)"), raw("sparsify=topr(count=4000) index=raw");
  const floats a = client::laplace(1000, 1), b = client::laplace(70000, 2);
  std::vector<dr_tensor> tensors = {client::dense(a), client::dense(b)};
  tensors[0].plan = bloom.handle;
  tensors[1].plan = raw.handle;
  const bytes frame = client::encode(c, "index=raw", tensors);
  floats x(a.size()), y(b.size());
  dr_tensor_out outs[] = {client::dense_out(x), client::dense_out(y)};
  const dr_status s = dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, outs, sizeof outs[0], 2);
  INFO(c.error());
  REQUIRE(s == DR_OK);
  CHECK(std::count_if(y.begin(), y.end(), [](float v) { return v != 0; }) == 4000);
}

TEST_CASE("plans of one text are one plan, by whatever handles they come: the same frame, however many there are") {
  constexpr size_t n = 20000;  // more than a frame has room for
  client::context c;
  const floats g = client::laplace(12, 1);
  std::vector<std::unique_ptr<client::plan>> handles;
  for (size_t i = 0; i < n; ++i)
    handles.push_back(std::make_unique<client::plan>(i % 2 ? "index=golomb value=qsgd" : "value=qsgd  index=golomb"));
  const client::plan other("index=rice value=qsgd");
  for (const uint64_t segment_rows : {uint64_t{0}, uint64_t{5}})
    for (const size_t tensors : {size_t{2}, n}) {
      CAPTURE(segment_rows);
      CAPTURE(tensors);
      dr_call call{};
      call.segment_rows = segment_rows;
      std::vector<dr_tensor> one(tensors, client::dense(g)), many(one);
      for (size_t i = 0; i < tensors; ++i) {
        one[i].plan = handles[0]->handle;
        many[i].plan = handles[i]->handle;
      }
      one[1].plan = many[1].plan = other.handle;  // and between them another one
      const bytes expected = client::encode(c, "index=raw", one, call);
      const bytes frame = client::encode(c, "index=raw", many, call);
      CHECK(frame == expected);
      dr_frame_info info{};
      client::inspect(frame, &info);
      CHECK(info.plans == 2);
    }
  std::vector<dr_tensor> flat(2, client::dense(g));
  const client::plan a("index=golomb bucket=flat"), b("bucket=flat index=golomb");
  flat[0].plan = a.handle;
  flat[1].plan = b.handle;
  CHECK(client::encode(c, "index=raw", flat) == client::encode(c, "index=golomb bucket=flat", {flat[0], flat[0]}));
}
