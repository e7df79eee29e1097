// Merge is a plain loop over frames: weights, order, adding to what is there, and all or nothing.
#include "client.hpp"
#include "fuzz/fix_check.hpp"

namespace {

using client::bytes;
using client::floats;

dr_status merge(client::context& c, const std::vector<bytes>& frames, const float* weights, uint32_t flags,
                std::vector<dr_tensor_out> outs) {
  std::vector<dr_bytes> list;
  for (const bytes& f : frames) list.push_back({f.data(), f.size()});
  dr_decode_options options{};
  options.struct_size = sizeof options;
  options.flags = flags;
  return dr_merge(c.handle, nullptr, list.data(), weights, list.size(), &options, outs.data(), sizeof(dr_tensor_out),
                  outs.size());
}

// Three frames of two tensors each, by three methods.
struct fixture {
  client::context c;
  std::vector<bytes> frames;
  std::vector<floats> first, second;  // what each decodes to
  fixture() {
    const char* plans[] = {"sparsify=topr(ratio=0.2) index=golomb value=qsgd",
                           "sparsify=topr(ratio=0.3) index=bloom(fpr=0.03) value=fit_poly", "index=raw value=raw"};
    for (uint64_t i = 0; i < 3; ++i) {
      const floats a = client::laplace(700, 10 + i), b = client::laplace(90, 20 + i);
      frames.push_back(client::encode(c, plans[i], {client::dense(a), client::dense(b)}));
      floats x(700), y(90);
      dr_tensor_out outs[] = {client::dense_out(x), client::dense_out(y)};
      REQUIRE(dr_decode(c.handle, nullptr, frames[i].data(), frames[i].size(), nullptr, outs, sizeof *outs, 2) ==
              DR_OK);
      first.push_back(x);
      second.push_back(y);
    }
  }
};

void add(floats& to, const floats& from, float weight) {
  for (size_t i = 0; i < to.size(); ++i) {
    const float term = weight * from[i];
    to[i] = to[i] + term;
  }
}

}  // namespace

TEST_CASE("merge adds weight times frame, in the order of the frames, in f32") {
  fixture f;
  const float some[] = {0.1f, -0.7f, 3e5f};
  for (const float* weights : {static_cast<const float*>(nullptr), some}) {
    floats x(700, 5), y(90, 5), expected_x(700), expected_y(90);
    REQUIRE(merge(f.c, f.frames, weights, 0, {client::dense_out(x), client::dense_out(y)}) == DR_OK);
    for (size_t i = 0; i < 3; ++i) {
      add(expected_x, f.first[i], weights ? weights[i] : 1);
      add(expected_y, f.second[i], weights ? weights[i] : 1);
    }
    CHECK(x == expected_x);
    CHECK(y == expected_y);
  }
}

TEST_CASE("another order of frames is another order of adds") {
  client::context c;
  const std::vector<floats> g = {{1e30f}, {1.0f}, {-1e30f}};
  std::vector<bytes> frames;
  for (const floats& v : g) frames.push_back(client::encode(c, "index=raw", {client::dense(v)}));
  floats x(1);
  REQUIRE(merge(c, frames, nullptr, 0, {client::dense_out(x)}) == DR_OK);
  CHECK(x[0] == 0);
  std::swap(frames[1], frames[2]);
  REQUIRE(merge(c, frames, nullptr, 0, {client::dense_out(x)}) == DR_OK);
  CHECK(x[0] == 1);
}

TEST_CASE("DR_DECODE_ADD adds to what the outputs hold; without it they start from zero") {
  fixture f;
  floats x = client::laplace(700, 1), y = client::laplace(90, 2), expected_x(x), expected_y(y);
  REQUIRE(merge(f.c, f.frames, nullptr, DR_DECODE_ADD, {client::dense_out(x), client::dense_out(y)}) == DR_OK);
  for (size_t i = 0; i < 3; ++i) {
    add(expected_x, f.first[i], 1);
    add(expected_y, f.second[i], 1);
  }
  CHECK(x == expected_x);
  CHECK(y == expected_y);
  REQUIRE(merge(f.c, {}, nullptr, DR_DECODE_ADD, {client::dense_out(x)}) == DR_OK);
  CHECK(x == expected_x);
  REQUIRE(merge(f.c, {}, nullptr, 0, {client::dense_out(x)}) == DR_OK);
  CHECK(x == floats(700));
}

TEST_CASE("outputs in the frame's 16-bit type are rounded after each add, outputs in f32 are not") {
  client::context c;
  const std::vector<uint16_t> one = {0x3f80}, small = {0x3b00};  // bf16: 1 and 2^-9, a quarter of 1's last place
  const auto encode = [&](const std::vector<uint16_t>& v) {
    dr_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = DR_BF16;
    t.universe = 1;
    t.values = v.data();
    return client::encode(c, "index=raw", {t});
  };
  const std::vector<bytes> frames = {encode(one), encode(small), encode(small), encode(small), encode(small)};
  uint16_t half = 0;
  dr_tensor_out o{};
  o.struct_size = sizeof o;
  o.dtype = DR_BF16;
  o.universe = 1;
  o.values = &half;
  REQUIRE(merge(c, frames, nullptr, 0, {o}) == DR_OK);
  CHECK(half == 0x3f80);
  floats full(1);
  REQUIRE(merge(c, frames, nullptr, 0, {client::dense_out(full)}) == DR_OK);
  CHECK(full[0] == 1 + 4 * 0x1p-9f);
}

TEST_CASE("outputs are untouched unless every frame is sound, however late the damage shows") {
  fixture f;
  const bytes good = f.frames[2];
  const auto untouched = [&](const bytes& bad, dr_status status) {
    for (const uint32_t flags : {0u, uint32_t{DR_DECODE_ADD}}) {
      floats x(700, 5), y(90, 6);
      CHECK(merge(f.c, {good, bad, good}, nullptr, flags, {client::dense_out(x), client::dense_out(y)}) == status);
      INFO(f.c.error());
      CHECK(f.c.error().find("frame 1") != std::string::npos);
      CHECK(x == floats(700, 5));
      CHECK(y == floats(90, 6));
    }
  };
  bytes bad = f.frames[0];
  bad.back() ^= 0x40;
  untouched(bad, DR_E_CORRUPT);  // the check says so
  bad = f.frames[0];
  bad.resize(bad.size() - 4);
  untouched(bad, DR_E_CORRUPT);
  // A payload that only its codec can judge: the norm of qsgd is a NaN, and all checks are right.
  bad = f.frames[0];
  dr_frame_info info{};
  client::inspect(bad, &info);
  bad[info.header_size + 3] = 0x7f;
  bad[info.header_size + 2] = 0xc0;
  REQUIRE(frame_check::fix(bad.data(), bad.size()));
  client::inspect(bad);
  untouched(bad, DR_E_CORRUPT);
  // Sound, but of other tensors.
  untouched(client::encode(f.c, "index=raw", {client::dense(floats(700, 1)), client::dense(floats(91, 1))}),
            DR_E_ARGUMENT);
  untouched(client::encode(f.c, "index=raw", {client::dense(floats(700, 1))}), DR_E_ARGUMENT);
}

TEST_CASE("merge accepts outputs of the frame's shape only") {
  fixture f;
  floats x(700), y(90);
  CHECK(merge(f.c, f.frames, nullptr, 0, {client::dense_out(x)}) == DR_E_ARGUMENT);
  CHECK(merge(f.c, f.frames, nullptr, 1u << 30, {client::dense_out(x), client::dense_out(y)}) == DR_E_UNSUPPORTED);
  dr_tensor_out other = client::dense_out(y);
  other.universe = 89;
  CHECK(merge(f.c, f.frames, nullptr, 0, {client::dense_out(x), other}) == DR_E_ARGUMENT);
  other = client::dense_out(y);
  other.dtype = DR_I32;
  CHECK(merge(f.c, f.frames, nullptr, 0, {client::dense_out(x), other}) == DR_E_ARGUMENT);
}

TEST_CASE("a weight may be zero, but not infinite or NaN: the error names its frame") {
  client::context c;
  const bytes frame = client::encode(c, "index=raw", {client::dense({2.0f, 0.0f})});
  floats x(2, 7);
  const float zero = 0;
  REQUIRE(merge(c, {frame}, &zero, 0, {client::dense_out(x)}) == DR_OK);
  CHECK(x == floats{0, 0});
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    const float weights[] = {1, bad};
    CHECK(merge(c, {frame, frame}, weights, 0, {client::dense_out(x)}) == DR_E_ARGUMENT);
    CHECK(dr_last_error(c.handle)->frame == 1);
    CHECK(x == floats{0, 0});
  }
}

TEST_CASE("count: the rows that were added over all frames of this call, also where something was there") {
  client::context c;
  const std::vector<uint32_t> some = {1, 4}, others = {4, 5, 6};
  const bytes a = client::encode(c, "index=raw", {client::sparse(some, {1, 2}, 50)}),
              b = client::encode(c, "index=raw", {client::sparse(others, {1, 2, 3}, 50)});
  floats x(50);
  dr_tensor_out out = client::dense_out(x);
  const dr_bytes list[] = {{a.data(), a.size()}, {b.data(), b.size()}};
  dr_decode_options options{};
  options.struct_size = sizeof options;
  for (const uint32_t flags : {0u, uint32_t{DR_DECODE_ADD}, uint32_t{DR_DECODE_ADD}}) {
    options.flags = flags;
    for (const uint64_t before : {0, 1000}) {
      out.count = before;
      REQUIRE(dr_merge(c.handle, nullptr, list, nullptr, 2, &options, &out, sizeof out, 1) == DR_OK);
      CHECK(out.count == 5);
    }
  }
  REQUIRE(dr_merge(c.handle, nullptr, list, nullptr, 0, &options, &out, sizeof out, 1) == DR_OK);
  CHECK(out.count == 0);
}

TEST_CASE("a merge of no frames still looks at its outputs") {
  client::context c;
  floats x(5, 7);
  const auto refused = [&](auto change) {
    dr_tensor_out o = client::dense_out(x);
    change(o);
    CHECK(merge(c, {}, nullptr, 0, {o}) == DR_E_ARGUMENT);
    CHECK(x == floats(5, 7));
  };
  refused([](dr_tensor_out& o) { o.values = nullptr; });
  refused([](dr_tensor_out& o) { o.values = reinterpret_cast<char*>(o.values) + 1; });
  refused([](dr_tensor_out& o) { o.dtype = DR_U64; });
  refused([](dr_tensor_out& o) { o.index_dtype = 99; });
}
