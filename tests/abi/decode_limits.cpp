// What a receiver allows: elements, workspace, outputs of the right shape; frames at any address, with anything behind them.
#include <algorithm>
#include <cstring>

#include "abi/segmented.hpp"
#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

dr_decode_options limits(uint64_t elements, uint64_t workspace) {
  dr_decode_options l{};
  l.struct_size = sizeof l;
  l.max_elements = elements;
  l.max_workspace = workspace;
  return l;
}

}  // namespace

TEST_CASE("max_elements counts universe times width over the whole frame") {
  client::context c;
  const floats a = client::laplace(100, 1), rows = client::laplace(60, 2);
  dr_tensor wide = client::dense(rows);
  wide.universe = 20;
  wide.width = 3;
  const bytes frame = client::encode(c, "index=golomb", {client::dense(a), wide});
  floats x(100), y(60);
  dr_tensor_out outs[] = {client::dense_out(x), client::dense_out(y)};
  outs[1].universe = 20;
  outs[1].width = 3;
  dr_decode_options l = limits(160, 0);
  CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), &l, outs, sizeof *outs, 2) == DR_OK);
  CHECK(client::same_bits(y, rows));
  for (const uint64_t most : {uint64_t{159}, uint64_t{99}, uint64_t{1}}) {
    l = limits(most, 0);
    CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), &l, outs, sizeof *outs, 2) == DR_E_CAPACITY);
    CHECK(c.error().find(std::to_string(most)) != std::string::npos);
    const dr_bytes frames[] = {{frame.data(), frame.size()}};
    CHECK(dr_merge(c.handle, nullptr, frames, nullptr, 1, &l, outs, sizeof *outs, 2) == DR_E_CAPACITY);
  }
}

TEST_CASE("max_workspace bounds what decode allocates: the limit that suffices is found by trying") {
  client::context c;
  const floats g = client::laplace(2000, 1);
  const bytes frame =
      client::encode(c, "sparsify=topr(ratio=0.2) index=golomb+deflate value=fit_poly", {client::dense(g)});
  floats x(2000);
  dr_tensor_out out = client::dense_out(x);
  uint64_t low = 1, high = 1 << 24;  // refuses at low, suffices at high
  while (high - low > 1) {
    const uint64_t middle = (low + high) / 2;
    const dr_decode_options l = limits(0, middle);
    const dr_status s = dr_decode(c.handle, nullptr, frame.data(), frame.size(), &l, &out, sizeof out, 1);
    REQUIRE((s == DR_OK || s == DR_E_CAPACITY));
    (s == DR_OK ? high : low) = middle;
  }
  CHECK(high > 400 * 4);      // at least the support
  CHECK(high < 1024 * 1024);  // and no more than a few times the tensor
  const dr_decode_options l = limits(0, low);
  CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), &l, &out, sizeof out, 1) == DR_E_CAPACITY);
  CHECK(c.error().find(std::to_string(low)) != std::string::npos);
  CHECK(c.error().find(std::to_string(high)) != std::string::npos);
}

TEST_CASE("a union has no space for what a frame states beyond its output's capacity: nothing is allocated for it") {
  client::context c;
  const std::vector<uint16_t> ones(1 << 22, 0x3c00);
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = DR_F16;
  t.universe = ones.size();
  t.values = ones.data();
  const bytes frame = client::encode(c, "index=all value=sign+zstd", {t});
  REQUIRE(frame.size() < 1000);
  std::vector<uint32_t> indices(1000);
  floats values(1000);
  dr_tensor_out out = client::dense_out(values);
  out.universe = ones.size();
  out.index_dtype = DR_U32;
  out.indices = indices.data();
  out.capacity = indices.size();
  const dr_bytes frames[] = {{frame.data(), frame.size()}};
  CHECK(dr_merge(c.handle, nullptr, frames, nullptr, 1, nullptr, &out, sizeof out, 1) == DR_E_CAPACITY);
  CHECK(dr_last_error(c.handle)->needed == ones.size());
  CHECK(dr_last_error(c.handle)->tensor == 0);
}

TEST_CASE("a frame decodes at any address, and the bytes after it are ignored") {
  client::context c;
  const floats g = client::laplace(300, 1);
  for (const char* text : {"sparsify=topr(ratio=0.1) index=golomb value=qsgd", "index=raw value=raw",
                           "sparsify=topr(ratio=0.2) index=bloom(fpr=0.01) value=fit_poly"}) {
    const bytes frame = client::encode(c, text, {client::dense(g)});
    const floats expected = client::decode(c, frame, g.size());
    for (size_t offset = 0; offset < 8; ++offset) {
      bytes moved(offset, 1);
      moved.insert(moved.end(), frame.begin(), frame.end());
      moved.insert(moved.end(), 13, 0xff);
      floats x(g.size(), 9);
      dr_tensor_out out = client::dense_out(x);
      REQUIRE(dr_decode(c.handle, nullptr, moved.data() + offset, moved.size() - offset, nullptr, &out, sizeof out,
                        1) == DR_OK);
      REQUIRE(client::same_bits(x, expected));
    }
  }
}

TEST_CASE("outputs that do not fit the frame are refused, and the sentence has both sides") {
  client::context c;
  const floats g = client::laplace(300, 1);
  const bytes frame = client::encode(c, "sparsify=topr(count=30) index=golomb", {client::dense(g)});
  floats x(600);
  std::vector<uint64_t> indices(300);
  const auto status = [&](auto change) {
    dr_tensor_out out = client::dense_out(x);
    out.universe = 300;
    change(out);
    return dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1);
  };
  const auto says = [&](const char* word) { return c.error().find(word) != std::string::npos; };
  CHECK(status([](auto& o) { o.universe = 299; }) == DR_E_ARGUMENT);
  CHECK((says("299") && says("300")));
  CHECK(status([](auto& o) { o.width = 2; }) == DR_E_ARGUMENT);
  CHECK(says("width"));
  CHECK(status([](auto& o) { o.dtype = DR_U32; }) == DR_E_ARGUMENT);
  CHECK(status([](auto& o) { o.dtype = 0; }) == DR_E_ARGUMENT);
  CHECK(status([](auto& o) { o.flags = 1; }) == DR_E_UNSUPPORTED);
  CHECK(status([](auto& o) { o.index_dtype = DR_F32; }) == DR_E_ARGUMENT);
  CHECK(status([](auto& o) { o.values = static_cast<char*>(o.values) + 2; }) == DR_E_ARGUMENT);
  CHECK(says("align"));
  const auto sparse = [&](auto& o) {
    o.index_dtype = DR_U64;
    o.indices = indices.data();
    o.capacity = 30;
  };
  CHECK(status(sparse) == DR_OK);
  CHECK(status([&](auto& o) { sparse(o), o.capacity = 29; }) == DR_E_CAPACITY);
  CHECK((says("29") && says("30")));
  CHECK(dr_last_error(c.handle)->needed == 30);
  CHECK(status([&](auto& o) { sparse(o), o.indices = nullptr; }) == DR_E_ARGUMENT);
  CHECK(status([&](auto& o) { sparse(o), o.indices = reinterpret_cast<char*>(indices.data()) + 4; }) == DR_E_ARGUMENT);
  dr_tensor_out two[] = {client::dense_out(x), client::dense_out(x)};
  two[0].universe = two[1].universe = 300;
  CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, two, sizeof *two, 2) == DR_E_ARGUMENT);
  CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, two, sizeof *two, 0) == DR_E_ARGUMENT);
}

TEST_CASE("a dense output is written as a whole, a sparse one as far as its count") {
  client::context c;
  const floats g = client::laplace(300, 1);
  const bytes frame = client::encode(c, "sparsify=topr(count=30) index=golomb", {client::dense(g)});
  floats x(300, 7);
  dr_tensor_out out = client::dense_out(x);
  REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1) == DR_OK);
  CHECK(out.count == 30);
  size_t zeros = 0;
  for (const float v : x) zeros += v == 0;
  CHECK(zeros == 270);
  floats y(40, 7);
  std::vector<int32_t> indices(40, -7);
  dr_tensor_out sparse = client::dense_out(y);
  sparse.universe = 300;
  sparse.index_dtype = DR_I32;
  sparse.indices = indices.data();
  sparse.capacity = 40;
  REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &sparse, sizeof sparse, 1) == DR_OK);
  CHECK(sparse.count == 30);
  for (size_t i = 0; i < 30; ++i) CHECK(x[static_cast<size_t>(indices[i])] == y[i]);
  for (size_t i = 30; i < 40; ++i) CHECK((y[i] == 7 && indices[i] == -7));
}

TEST_CASE("values that are all sent arrive at any address, with any bytes around them") {
  client::context c;
  const uint64_t n = 1003;
  floats g = client::laplace(n, 1);
  g[5] = 0, g[6] = -0.0f;
  dr_call call{};
  call.segment_rows = 320;
  const dr_tensor t = client::dense(g);
  for (const char* plan : {"index=all", "index=all value=sign", "index=all value=half", "index=all value=qsgd"})
    for (const bytes& frame : {client::encode(c, plan, {t}), abi::encode_segmented(c, plan, {t}, call)}) {
      CAPTURE(plan);
      floats first;
      for (const size_t shift : {0, 4, 1, 3}) {
        alignas(64) float room[n + 32];
        std::fill_n(room, n + 32, 7.5f);
        floats x(n);
        dr_tensor_out out = client::dense_out(x);
        out.values = room + 8 + shift;
        REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1) == DR_OK);
        CHECK(out.count == n);
        for (size_t i = 0; i < n + 32; ++i)
          if (i - 8 - shift >= n) CHECK(room[i] == 7.5f);
        x.assign(room + 8 + shift, room + 8 + shift + n);
        if (shift == 0) first = x;
        CHECK(!std::memcmp(x.data(), first.data(), 4 * n));
        if (!std::strcmp(plan, "index=all")) CHECK(!std::memcmp(x.data(), g.data(), 4 * n));
      }
    }
}

TEST_CASE("every truncation of a frame is CORRUPT, in both forms and with several rows") {
  client::context c;
  const floats g = client::laplace(200, 1);
  dr_call call{};
  call.segment_rows = 70;
  for (const bytes& frame :
       {client::encode(c, "sparsify=topr(ratio=0.1) index=golomb value=qsgd", {client::dense(g)}),
        client::encode(c, "sparsify=topr(ratio=0.1) index=golomb value=fit_poly", {client::dense(g), client::dense(g)}),
        abi::encode_segmented(c, "index=raw", {client::dense(g)}, call)}) {
    dr_frame_info info{};
    info.struct_size = sizeof info;
    for (size_t n = 1; n < frame.size(); ++n) {
      const bytes cut(frame.begin(),
                      frame.begin() + static_cast<long>(n));  // of its own, so that a sanitizer sees reads behind it
      REQUIRE(dr_inspect(cut.data(), n, &info, nullptr, 0, 0, nullptr) == DR_E_CORRUPT);
    }
    CHECK(dr_inspect(frame.data(), 0, &info, nullptr, 0, 0, nullptr) == DR_E_CORRUPT);
  }
}

TEST_CASE("a missing place is refused, and the error states it") {
  client::context c;
  const floats g = client::laplace(10, 1);
  client::plan p("index=raw");
  const dr_tensor t = client::dense(g);
  const bytes frame = client::encode(c, "index=raw", {t});
  floats x(10);
  dr_tensor_out out = client::dense_out(x);
  bytes room(1000);
  dr_batch* batch = nullptr;
  dr_place place{};
  place.struct_size = sizeof place;
  const auto all = [&](dr_status wanted) {
    INFO("kind " << place.kind << ", device " << place.device);
    CHECK(dr_decode(c.handle, &place, frame.data(), frame.size(), nullptr, &out, sizeof out, 1) == wanted);
    CHECK(dr_encode(c.handle, p.handle, nullptr, &place, &t, sizeof t, 1, room.data(), room.size(), nullptr) == wanted);
    CHECK(dr_batch_create(c.handle, p.handle, &place, &t, sizeof t, 1, 0, &batch) == wanted);
    if (wanted == DR_OK) dr_batch_destroy(batch);
  };
  all(DR_OK);
  place.kind = 17;
  all(DR_E_ARGUMENT);
  place.kind = DR_PLACE_CPU;
  place.flags = 1u << 31;
  all(DR_E_UNSUPPORTED);
  // No machine has so many GPUs; a library without CUDA has none.
  place.flags = 0;
  place.kind = DR_PLACE_CUDA;
  place.device = 1 << 20;
  const dr_status s = dr_batch_create(c.handle, p.handle, &place, &t, sizeof t, 1, 0, &batch);
  CHECK((s == DR_E_DEVICE || s == DR_E_UNSUPPORTED));
  all(s);
  CHECK(c.error().find("place: ") == 0);
}
