// DR_DECODE_ADD in the calls that decode one frame: a merge of it, with weight 1, into what the outputs hold.
#include <functional>

#include "abi/plain_types.hpp"
#include "abi/prepared.hpp"
#include "client.hpp"
#include "fuzz/fix_check.hpp"

namespace {

using abi::aligned_bytes;
using abi::numbers;
using client::bytes;
using client::floats;

constexpr uint32_t places[] = {DR_PLACE_CPU, DR_PLACE_EMULATED};
constexpr dr_dtype types[] = {DR_F32, DR_F16, DR_BF16};
constexpr size_t n = 3000;

struct binding {
  dr_binding* handle = nullptr;
  ~binding() { dr_binding_destroy(handle); }
};

// A frame of one tensor, what it holds, and the three calls that decode it.
struct fixture {
  client::context c;
  dr_place place{};
  floats gradient = client::laplace(n, 1), sent = floats(n);
  abi::batch prepared;
  std::unique_ptr<aligned_bytes> frame, workspace;
  size_t size = 0, room = 0;

  explicit fixture(uint32_t kind) {
    place.struct_size = sizeof place;
    place.kind = kind;
    const char* const text = "sparsify=topr(ratio=0.05) index=golomb value=qsgd";
    const client::plan p(text);
    const dr_tensor t = client::dense(gradient);
    const bytes made = client::encode(c, text, {t});
    size = made.size();
    frame = std::make_unique<aligned_bytes>(size);
    std::copy(made.begin(), made.end(), frame->data);
    dr_tensor_out o = client::dense_out(sent);
    REQUIRE(dr_decode(c.handle, nullptr, made.data(), size, nullptr, &o, sizeof o, 1) == DR_OK);
    REQUIRE(dr_batch_create(c.handle, p.handle, &place, &t, sizeof t, 1, 0, &prepared.handle) == DR_OK);
    REQUIRE(dr_batch_merge_workspace(prepared.handle, 1, &room, nullptr) == DR_OK);
    workspace = std::make_unique<aligned_bytes>(room);
  }

  using call = std::function<dr_status(const dr_decode_options&, dr_tensor_out&, dr_result&)>;
  // Each of them says in the result what became of it, as a device does for two of them.
  std::vector<std::pair<const char*, call>> calls() {
    return {{"dr_decode",
             [this](const auto& o, auto& out, auto& result) {
               result.status = dr_decode(c.handle, &place, frame->data, size, &o, &out, sizeof out, 1);
               return result.status;
             }},
            {"dr_batch_decode",
             [this](const auto& o, auto& out, auto& result) {
               return dr_batch_decode(c.handle, prepared.handle, &place, frame->data, size, &o, &out, sizeof out, 1,
                                      workspace->data, room, &result);
             }},
            {"dr_binding_decode", [this](const auto& o, auto& out, auto& result) {
               binding b;
               if (const dr_status s = dr_binding_create(c.handle, prepared.handle, &place, nullptr, 0, &out,
                                                         sizeof out, 1, 1, &b.handle))
                 return s;
               return dr_binding_decode(b.handle, frame->data, size, &o, &result);
             }}};
  }
};

dr_decode_options options_of(uint32_t flags) {
  dr_decode_options o{};
  o.struct_size = sizeof o;
  o.flags = flags;
  return o;
}

dr_result no_result() {
  dr_result r{};
  r.struct_size = sizeof r;
  return r;
}

dr_tensor_out out_of(numbers& x) {
  dr_tensor_out o{};
  o.struct_size = sizeof o;
  o.dtype = x.dtype;
  o.universe = n;
  o.values = x.bits.data();
  return o;
}

}  // namespace

TEST_CASE("a decode with DR_DECODE_ADD adds to what the output holds: each call, type and place") {
  for (const uint32_t kind : places) {
    fixture f(kind);
    for (auto& [name, decode] : f.calls())
      for (const dr_dtype type : types) {
        CAPTURE(kind);
        INFO(std::string(name));
        CAPTURE(type);
        numbers x(type, n), expected(type, n);
        for (size_t i = 0; i < n; ++i) x.set(i, static_cast<float>(i % 977) / 64 - 7);
        expected = x;
        size_t support = 0;
        for (size_t i = 0; i < n; ++i) {
          if (f.sent[i] == 0) continue;
          ++support;
          expected.set(i, abi::to_float(type, x.at(i)) + f.sent[i]);
        }
        REQUIRE(support > 100);
        dr_tensor_out out = out_of(x);
        dr_result result = no_result();
        REQUIRE(decode(options_of(DR_DECODE_ADD), out, result) == DR_OK);
        CHECK(result.status == DR_OK);
        CHECK(x.bits == expected.bits);
        const bool counts = kind == DR_PLACE_CPU || name == std::string("dr_decode");
        if (counts) CHECK(out.count >= support);
      }
  }
}

TEST_CASE("a decode with DR_DECODE_ADD leaves its output untouched unless the frame is sound") {
  for (const uint32_t kind : places) {
    fixture f(kind);
    dr_frame_info info{};
    client::inspect(bytes(f.frame->data, f.frame->data + f.size), &info);
    for (const bool payload : {false, true}) {
      if (payload) {  // the norm of qsgd is a NaN, and all checks are right
        f.frame->data[f.size - 1] ^= 0x40;
        f.frame->data[info.header_size + 3] = 0x7f;
        f.frame->data[info.header_size + 2] = 0xc0;
        REQUIRE(frame_check::fix(f.frame->data, f.size));
      } else {
        f.frame->data[f.size - 1] ^= 0x40;
      }
      for (auto& [name, decode] : f.calls()) {
        CAPTURE(kind);
        CAPTURE(payload);
        INFO(std::string(name));
        numbers x(DR_F32, n);
        for (size_t i = 0; i < n; ++i) x.set(i, 5);
        const numbers before = x;
        dr_tensor_out out = out_of(x);
        dr_result result = no_result();
        (void)decode(options_of(DR_DECODE_ADD), out, result);
        CHECK(result.status == DR_E_CORRUPT);
        CHECK(x.bits == before.bits);
      }
    }
  }
}

TEST_CASE("a decode refuses flags that it does not do, in words, and writes nothing") {
  for (const uint32_t kind : places) {
    fixture f(kind);
    for (auto& [name, decode] : f.calls()) {
      CAPTURE(kind);
      INFO(std::string(name));
      numbers x(DR_F32, n);
      const numbers before = x;
      dr_tensor_out out = out_of(x);
      dr_result result = no_result();
      CHECK(decode(options_of(DR_DECODE_VOTE), out, result) == DR_E_ARGUMENT);
      CHECK(f.c.error().find("DR_DECODE_VOTE is for merges") != std::string::npos);
      CHECK(decode(options_of(DR_DECODE_VOTE | DR_DECODE_ADD), out, result) == DR_E_ARGUMENT);
      // Nothing can be added to a list of pairs.
      std::vector<uint32_t> indices(n);
      out.index_dtype = DR_U32;
      out.indices = indices.data();
      out.capacity = n;
      CHECK(decode(options_of(DR_DECODE_ADD), out, result) == DR_E_ARGUMENT);
      CHECK(x.bits == before.bits);
      CHECK(indices == std::vector<uint32_t>(n));
    }
  }
}

TEST_CASE("a decode with DR_DECODE_ADD decodes some tensors of a frame, and cuts one over many outputs") {
  client::context c;
  const floats a = client::laplace(300, 1), b = client::laplace(200, 2);
  const std::vector<dr_tensor> two = {client::dense(a), client::dense(b)};
  const bytes apart = client::encode(c, "index=raw value=raw", two),
              flat = client::encode(c, "bucket=flat index=raw value=raw", two);
  floats x(300, 1), y(200, 1), want_x(a), want_y(b);
  for (float& v : want_x) v = 1 + v;
  for (float& v : want_y) v = 1 + v;
  dr_decode_options options = options_of(DR_DECODE_ADD);
  dr_tensor_out outs[] = {client::dense_out(x), client::dense_out(y)};
  REQUIRE(dr_decode(c.handle, nullptr, flat.data(), flat.size(), &options, outs, sizeof *outs, 2) == DR_OK);
  CHECK(x == want_x);
  CHECK(y == want_y);
  y.assign(200, 1);
  options.first_tensor = options.tensors = 1;
  REQUIRE(dr_decode(c.handle, nullptr, apart.data(), apart.size(), &options, outs + 1, sizeof *outs, 1) == DR_OK);
  CHECK(y == want_y);
}

TEST_CASE("a decode with DR_DECODE_ADD adds in a batch whose plan has merge=vote, whose merges vote") {
  client::context c;
  const floats g = client::laplace(100, 1);
  const dr_tensor t = client::dense(g);
  const client::plan p("index=all value=raw merge=vote");
  abi::batch b;
  REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, &t, sizeof t, 1, 0, &b.handle) == DR_OK);
  const bytes frame = client::encode(c, "index=all value=raw", {t});
  size_t room = 0;
  REQUIRE(dr_batch_merge_workspace(b.handle, 1, &room, nullptr) == DR_OK);
  aligned_bytes workspace(room);
  floats x(100, 2), expected(g);
  for (float& v : expected) v = 2 + v;
  dr_tensor_out out = client::dense_out(x);
  const dr_decode_options options = options_of(DR_DECODE_ADD);
  REQUIRE(dr_batch_decode(c.handle, b.handle, nullptr, frame.data(), frame.size(), &options, &out, sizeof out, 1,
                          workspace.data, room, nullptr) == DR_OK);
  CHECK(x == expected);
}

TEST_CASE("a merge on a device reports how many rows were added, as on the CPU") {
  fixture f(DR_PLACE_EMULATED);
  const dr_bytes list[] = {{f.frame->data, f.size}, {f.frame->data, f.size}};
  numbers x(DR_F32, n), y(DR_F32, n);
  dr_tensor_out here = out_of(x), there = out_of(y);
  here.count = there.count = 77;
  REQUIRE(dr_merge(f.c.handle, nullptr, list, nullptr, 2, nullptr, &here, sizeof here, 1) == DR_OK);
  REQUIRE(dr_merge(f.c.handle, &f.place, list, nullptr, 2, nullptr, &there, sizeof there, 1) == DR_OK);
  CHECK(here.count > 100);
  CHECK(there.count == here.count);
}
