// Of a frame that is not for all: some of its tensors, a tag that it must have, outputs in another type, and memory that overlaps.
#include <algorithm>

#include "abi/plain_types.hpp"
#include "abi/prepared.hpp"
#include "abi/segmented.hpp"
#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

constexpr uint32_t places[] = {DR_PLACE_CPU, DR_PLACE_EMULATED};
constexpr dr_dtype value_types[] = {DR_F32, DR_F16, DR_BF16};

dr_place place_of(uint32_t kind) {
  dr_place place{};
  place.struct_size = sizeof place;
  place.kind = kind;
  return place;
}

dr_decode_options range(uint64_t first, uint64_t n) {
  dr_decode_options o{};
  o.struct_size = sizeof o;
  o.first_tensor = first;
  o.tensors = n;
  return o;
}

// A frame lies where a device reads it.
struct slot {
  abi::aligned_bytes memory;
  size_t size;
  explicit slot(const bytes& frame) : memory(frame.size()), size(frame.size()) {
    std::copy(frame.begin(), frame.end(), memory.data);
  }
  dr_bytes now() const { return {memory.data, size}; }
};

}  // namespace

TEST_CASE("some tensors of a frame, decoded and merged: what all of it yields there") {
  client::context c;
  const std::vector<floats> g = {client::laplace(700, 1), client::laplace(90, 2), client::laplace(0, 3),
                                 client::laplace(400, 4), client::laplace(50, 5)};
  std::vector<dr_tensor> tensors;
  for (const floats& v : g) tensors.push_back(client::dense(v));
  for (const uint64_t segment : {0, 150}) {
    dr_call call{};
    call.segment_rows = segment;
    const bytes frame = abi::encode_segmented(c, "sparsify=topr(ratio=0.2) index=golomb value=qsgd", tensors, call);
    const dr_bytes twice[] = {{frame.data(), frame.size()}, {frame.data(), frame.size()}};
    const auto rooms = [&](size_t first, size_t n, std::vector<floats>& x) {
      x.clear();
      std::vector<dr_tensor_out> outs;
      for (size_t i = first; i < first + n; ++i) x.emplace_back(g[i].size(), 7);
      for (floats& v : x) outs.push_back(client::dense_out(v));
      return outs;
    };
    std::vector<floats> all, part, sum;
    std::vector<dr_tensor_out> outs = rooms(0, 5, all);
    REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, outs.data(), sizeof(dr_tensor_out), 5) ==
            DR_OK);
    for (size_t first = 0; first < 5; ++first)
      for (size_t n = 1; first + n <= 5; ++n) {
        CAPTURE(first);
        CAPTURE(n);
        const dr_decode_options o = range(first, n);
        outs = rooms(first, n, part);
        REQUIRE_MESSAGE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), &o, outs.data(), sizeof(dr_tensor_out),
                                  n) == DR_OK,
                        c.error());
        outs = rooms(first, n, sum);
        REQUIRE(dr_merge(c.handle, nullptr, twice, nullptr, 2, &o, outs.data(), sizeof(dr_tensor_out), n) == DR_OK);
        for (size_t i = 0; i < n; ++i) {
          CHECK(client::same_bits(part[i], all[first + i]));
          for (size_t k = 0; k < part[i].size(); ++k) REQUIRE(sum[i][k] == 2 * part[i][k]);
        }
      }
    // A sparse output of one of them.
    floats values(400), sums(400);
    std::vector<uint32_t> indices(400);
    dr_tensor_out sparse = client::dense_out(values);
    sparse.index_dtype = DR_U32;
    sparse.indices = indices.data();
    sparse.capacity = 400;
    const dr_decode_options o = range(3, 1);
    REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), &o, &sparse, sizeof sparse, 1) == DR_OK);
    const uint64_t count = sparse.count;
    for (size_t i = 0; i < count; ++i) CHECK(values[i] == all[3][indices[i]]);
    sparse.values = sums.data();
    REQUIRE(dr_merge(c.handle, nullptr, twice, nullptr, 2, &o, &sparse, sizeof sparse, 1) == DR_OK);
    CHECK(sparse.count == count);
    for (size_t i = 0; i < count; ++i) CHECK(sums[i] == 2 * all[3][indices[i]]);
  }
}

TEST_CASE("a range beyond the frame is ARGUMENT and names both; what is left out is still verified by its check") {
  client::context c;
  const floats a = client::laplace(60, 1), b = client::laplace(80, 2);
  bytes frame = client::encode(c, "index=raw", {client::dense(a), client::dense(b)});
  floats x(60), y(80);
  std::vector<dr_tensor_out> outs = {client::dense_out(x), client::dense_out(y)};
  const auto decode = [&](dr_decode_options o, size_t n) {
    return dr_decode(c.handle, nullptr, frame.data(), frame.size(), &o, outs.data(), sizeof(dr_tensor_out), n);
  };
  const struct { uint64_t first, n; } bad[] = {{0, 3}, {1, 2}, {2, 1}, {UINT64_MAX, 2}, {1, UINT64_MAX}, {1, 0}};
  for (const auto& r : bad) {
    CHECK(decode(range(r.first, r.n), 2) == DR_E_ARGUMENT);
    CHECK(c.error().find(std::to_string(r.first)) != std::string::npos);
    CHECK(c.error().find(std::to_string(r.n)) != std::string::npos);
    CHECK(c.error().find("frame has 2") != std::string::npos);
  }
  CHECK(decode(range(0, 2), 1) == DR_E_ARGUMENT);
  CHECK(decode(range(0, 1), 2) == DR_E_ARGUMENT);
  CHECK(decode(range(0, 1), 1) == DR_OK);
  // The limit on elements is on what is decoded.
  dr_decode_options o = range(0, 1);
  o.max_elements = 60;
  CHECK(decode(o, 1) == DR_OK);
  o.max_elements = 59;
  CHECK(decode(o, 1) == DR_E_CAPACITY);
  frame.back() ^= 1;
  CHECK(decode(range(0, 1), 1) == DR_E_CORRUPT);
  // bucket=flat is one tensor in the frame: all of it, or nothing.
  frame = client::encode(c, "index=raw bucket=flat", {client::dense(a), client::dense(b)});
  CHECK(decode(range(0, 0), 2) == DR_OK);
  CHECK(decode(range(0, 2), 2) == DR_E_ARGUMENT);
  CHECK(decode(range(0, 1), 2) == DR_E_ARGUMENT);
  floats both(140);
  outs[0] = client::dense_out(both);
  CHECK(decode(range(0, 1), 1) == DR_OK);
  CHECK(std::equal(a.begin(), a.end(), both.begin()));
  // A device has none of it.
  const dr_place place = place_of(DR_PLACE_EMULATED);
  o = range(0, 1);
  CHECK(dr_decode(c.handle, &place, frame.data(), frame.size(), &o, outs.data(), sizeof(dr_tensor_out), 1) ==
        DR_E_UNSUPPORTED);
}

TEST_CASE("a frame of another step, or without a tag, is ARGUMENT where a tag is requested") {
  client::context c;
  const floats g = client::laplace(60, 1);
  dr_call call{};
  call.flags = DR_CALL_TAG;
  call.tag = 71;
  const slot right(client::encode(c, "index=raw", {client::dense(g)}, call));
  call.tag = 72;
  const slot wrong(client::encode(c, "index=raw", {client::dense(g)}, call)),
      none(client::encode(c, "index=raw", {client::dense(g)}));
  floats x(60, 5);
  dr_tensor_out out = client::dense_out(x);
  dr_decode_options o{};
  o.struct_size = sizeof o;
  o.flags = DR_DECODE_TAG;
  o.tag = 71;
  CHECK((dr_feature(DR_FEATURE_DECODE_FLAGS) & DR_DECODE_TAG) != 0);
  for (const uint32_t kind : places) {
    CAPTURE(kind);
    const dr_place place = place_of(kind);
    const auto decode = [&](const slot& s) {
      return dr_decode(c.handle, &place, s.memory.data, s.size, &o, &out, sizeof out, 1);
    };
    const auto merge = [&](const slot& a, const slot& b) {
      const dr_bytes list[] = {a.now(), b.now()};
      return dr_merge(c.handle, &place, list, nullptr, 2, &o, &out, sizeof out, 1);
    };
    x.assign(60, 5);
    CHECK(decode(wrong) == DR_E_ARGUMENT);
    CHECK((c.error().find("71") != std::string::npos && c.error().find("72") != std::string::npos));
    CHECK(dr_last_error(c.handle)->what == 72);
    CHECK(decode(none) == DR_E_ARGUMENT);
    CHECK(c.error().find("no tag") != std::string::npos);
    CHECK(merge(right, wrong) == DR_E_ARGUMENT);
    CHECK(dr_last_error(c.handle)->frame == 1);
    CHECK(c.error().find("frame 1") != std::string::npos);
    CHECK(merge(none, right) == DR_E_ARGUMENT);
    CHECK(dr_last_error(c.handle)->frame == 0);
    CHECK(x == floats(60, 5));
    CHECK(decode(right) == DR_OK);
    CHECK(merge(right, right) == DR_OK);
    // Prepared: on the CPU; a device does not read the tag.
    client::plan p("index=raw");
    const dr_tensor t = client::dense(g);
    abi::batch prepared;
    REQUIRE(dr_batch_create(c.handle, p.handle, &place, &t, sizeof t, 1, 0, &prepared.handle) == DR_OK);
    size_t room = 0;
    REQUIRE(dr_batch_merge_workspace(prepared.handle, 1, &room, nullptr) == DR_OK);
    abi::aligned_bytes workspace(room);
    dr_result result{.struct_size = sizeof(dr_result)};
    const auto prepared_decode = [&](const slot& s) {
      return dr_batch_decode(c.handle, prepared.handle, &place, s.memory.data, s.size, &o, &out, sizeof out, 1,
                             workspace.data, room, &result);
    };
    CHECK(prepared_decode(right) == (kind ? DR_E_UNSUPPORTED : DR_OK));
    CHECK(prepared_decode(wrong) == (kind ? DR_E_UNSUPPORTED : DR_E_ARGUMENT));
  }
}

TEST_CASE("outputs of any type for frames of any type: rounded to nearest, ties to even, as plain conversions do") {
  client::context c;
  // What rounds, what is too large or too small, and what is no number.
  floats list = {0.0f,
                 -0.0f,
                 1.0f,
                 INFINITY,
                 -INFINITY,
                 65504.0f,
                 65519.0f,
                 65520.0f,
                 -65520.0f,
                 3.4e38f,
                 3.39e38f,
                 0x1p-24f,
                 0x1p-25f,
                 0x1.8p-25f,
                 0x1p-26f,
                 0x1p-126f,
                 0x1p-149f,
                 1 + 0x1p-8f,
                 1 + 0x3p-8f,
                 1 + 0x1p-11f,
                 1 + 0x3p-11f,
                 std::bit_cast<float>(0x7fc01234u),
                 std::bit_cast<float>(0xffa00001u)};
  client::rng random{4};
  while (list.size() < 400) list.push_back(std::bit_cast<float>(static_cast<uint32_t>(random.next())));
  while (list.size() < 800) list.push_back(random.laplace(1));
  const size_t n = list.size();
  for (const dr_dtype from : value_types)
    for (const dr_dtype to : value_types)
      for (const uint32_t kind : places)
        for (const bool dense_frame : {true, false}) {
          CAPTURE(from);
          CAPTURE(to);
          CAPTURE(kind);
          const dr_place place = place_of(kind);
          abi::numbers values(from, n), got(to, 4 * n);
          for (size_t i = 0; i < n; ++i) values.set(i, list[i]);
          std::vector<uint32_t> indices(n);
          for (size_t i = 0; i < n; ++i) indices[i] = static_cast<uint32_t>(dense_frame ? i : 2 * i);
          dr_tensor t{};
          t.struct_size = sizeof t;
          t.dtype = from;
          t.universe = dense_frame ? n : 4 * n;  // so many that no dense row is smaller
          t.values = values.bits.data();
          t.index_dtype = DR_U32;
          t.indices = indices.data();
          t.count = n;
          const slot frame(client::encode(c, "index=raw value=raw", {t}));
          dr_tensor_out out{};
          out.struct_size = sizeof out;
          out.dtype = to;
          out.universe = t.universe;
          out.values = got.bits.data();
          REQUIRE_MESSAGE(
              dr_decode(c.handle, &place, frame.memory.data, frame.size, nullptr, &out, sizeof out, 1) == DR_OK,
              c.error());
          size_t wrong = 0;
          const auto plain = [&](size_t i) {
            return from == to ? values.at(i) : abi::from_float(to, abi::to_float(from, values.at(i)));
          };
          for (size_t i = 0; i < n; ++i) wrong += got.at(indices[i]) != plain(i);
          CHECK(wrong == 0);
          // A sparse output.
          std::vector<uint32_t> told(n);
          out.index_dtype = DR_U32;
          out.indices = told.data();
          out.capacity = n;
          REQUIRE(dr_decode(c.handle, &place, frame.memory.data, frame.size, nullptr, &out, sizeof out, 1) == DR_OK);
          for (size_t i = 0; i < n; ++i) wrong += got.at(i) != plain(i);
          CHECK(wrong == 0);
          // Merged, dense: rounded after each of the adds.
          out.index_dtype = 0;
          out.indices = nullptr;
          const dr_bytes twice[] = {frame.now(), frame.now()};
          const float weights[] = {0.75f, -3};
          REQUIRE(dr_merge(c.handle, &place, twice, weights, 2, nullptr, &out, sizeof out, 1) == DR_OK);
          for (size_t i = 0; i < n; ++i) {
            uint32_t sum = 0;
            for (const float w : weights) {
              const float term = w * abi::to_float(from, values.at(i));
              const float next = abi::to_float(to, sum) + term;
              sum = abi::from_float(to, std::isnan(next) ? std::bit_cast<float>(0x7fc00000u) : next);
            }
            wrong += got.at(indices[i]) != sum;
          }
          CHECK(wrong == 0);
        }
}

TEST_CASE("an output that overlaps a frame or another output is ARGUMENT") {
  client::context c;
  const floats g = client::laplace(64, 1);
  const std::vector<uint32_t> rows = {1, 9, 60};
  const bytes frame = client::encode(c, "index=raw", {client::dense(g), client::dense(g)});
  for (const uint32_t kind : places) {
    CAPTURE(kind);
    const dr_place place = place_of(kind);
    abi::aligned_bytes memory(8192);
    const auto decode = [&](size_t frame_at, size_t first, size_t second, uint64_t size) {
      std::copy(frame.begin(), frame.end(), memory.data + frame_at);
      floats unused(64);
      std::vector<dr_tensor_out> outs = {client::dense_out(unused), client::dense_out(unused)};
      outs[0].values = memory.data + first;
      outs[1].values = memory.data + second;
      const dr_bytes list = {memory.data + frame_at, size};
      const dr_status s =
          dr_decode(c.handle, &place, list.data, list.size, nullptr, outs.data(), sizeof(dr_tensor_out), 2);
      const uint64_t tensor = dr_last_error(c.handle)->tensor;
      std::copy(frame.begin(), frame.end(), memory.data + frame_at);
      CHECK(dr_merge(c.handle, &place, &list, nullptr, 1, nullptr, outs.data(), sizeof(dr_tensor_out), 2) == s);
      if (s) CHECK(dr_last_error(c.handle)->tensor == tensor);
      return s == DR_OK ? std::string("ok") : s == DR_E_ARGUMENT ? std::to_string(tensor) : "?";
    };
    const size_t n = frame.size(), behind = 1024 + (n + 3) / 4 * 4;
    REQUIRE(n < 1000);
    CHECK(decode(1024, 0, 256, n) == "ok");
    CHECK(decode(1024, 256, 0, n) == "ok");
    CHECK(decode(1024, 0, 252, n) == "1");
    CHECK(decode(1024, 4, 0, n) == "1");
    CHECK(decode(1024, 0, 0, n) == "1");
    CHECK(decode(1024, 768, 0, n) == "ok");
    CHECK(decode(1024, 772, 0, n) == "0");
    CHECK(decode(1024, 0, 1024, n) == "1");
    CHECK(decode(1024, 0, behind - 4, n) == "1");
    CHECK(decode(1024, 0, behind, n) == "ok");
    // A frame may be shorter than what is readable: its slot.
    CHECK(decode(1024, 0, behind, 4096) == "ok");
  }
  // Indices of a sparse one.
  floats x(64);
  std::vector<uint32_t> indices(64);
  std::vector<dr_tensor_out> outs = {client::dense_out(x), client::dense_out(x)};
  outs[0].index_dtype = DR_U32;
  outs[0].indices = indices.data();
  outs[0].capacity = 64;
  outs[1].values = indices.data();
  CHECK(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, outs.data(), sizeof(dr_tensor_out), 2) ==
        DR_E_ARGUMENT);
  // Of empty outputs nothing overlaps.
  const bytes empty = client::encode(c, "index=raw", {client::dense(floats()), client::dense(g)});
  outs = {client::dense_out(x), client::dense_out(x)};
  outs[0].universe = 0;
  CHECK(dr_decode(c.handle, nullptr, empty.data(), empty.size(), nullptr, outs.data(), sizeof(dr_tensor_out), 2) ==
        DR_OK);
}

TEST_CASE("many outputs in any order are distinguished") {
  client::context c;
  constexpr size_t n = 200;
  floats memory(n * 10), g(10, 1);
  std::vector<dr_tensor> tensors(n, client::dense(g));
  const bytes frame = client::encode(c, "index=raw", tensors);
  std::vector<dr_tensor_out> outs;
  for (size_t i = 0; i < n; ++i) {
    dr_tensor_out& o = outs.emplace_back(client::dense_out(g));
    o.values = memory.data() + 10 * (i * 77 % n);
  }
  const auto decode = [&] {
    return dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, outs.data(), sizeof(dr_tensor_out), n);
  };
  CHECK(decode() == DR_OK);
  outs[150].values = static_cast<float*>(outs[31].values) + 9;
  CHECK(decode() == DR_E_ARGUMENT);
}

TEST_CASE("what overlaps a prepared call's frame, and weights that are not finite, are ARGUMENT on every place") {
  client::context c;
  const floats g = client::laplace(100, 1);
  for (const uint32_t kind : places) {
    CAPTURE(kind);
    const dr_place place = place_of(kind);
    client::plan p("index=raw");
    const dr_tensor t = client::dense(g);
    abi::batch prepared;
    REQUIRE(dr_batch_create(c.handle, p.handle, &place, &t, sizeof t, 1, 0, &prepared.handle) == DR_OK);
    size_t room = 0;
    REQUIRE(dr_batch_merge_workspace(prepared.handle, 2, &room, nullptr) == DR_OK);
    abi::aligned_bytes workspace(room), memory(8192);
    const bytes frame = client::encode(c, "index=raw", {t});
    std::copy(frame.begin(), frame.end(), memory.data);
    floats unused(100);
    dr_tensor_out out = client::dense_out(unused);
    dr_result result{.struct_size = sizeof(dr_result)};
    const dr_bytes list[] = {{memory.data, frame.size()}, {memory.data, frame.size()}};
    const auto merge = [&](const float* weights) {
      return dr_batch_merge(c.handle, prepared.handle, &place, list, weights, 2, nullptr, &out, sizeof out, 1,
                            workspace.data, room, &result);
    };
    const float good[] = {1, 2}, nan[] = {1, NAN}, infinite[] = {-INFINITY, 1};
    out.values = memory.data + 4;
    CHECK(merge(good) == DR_E_ARGUMENT);
    CHECK(c.error().find("overlaps") != std::string::npos);
    out.values = unused.data();
    CHECK(merge(good) == DR_OK);
    for (const float* bad : {nan, infinite}) {
      const std::string which = bad == nan ? "frame 1" : "frame 0";
      CHECK(merge(bad) == DR_E_ARGUMENT);
      CHECK(c.error().find(which) != std::string::npos);
      CHECK(dr_merge(c.handle, &place, list, bad, 2, nullptr, &out, sizeof out, 1) == DR_E_ARGUMENT);
      CHECK(c.error().find(which) != std::string::npos);
    }
    dr_binding* binding = nullptr;
    out.values = memory.data + 4;
    REQUIRE(dr_binding_create(c.handle, prepared.handle, &place, nullptr, 0, &out, sizeof out, 1, 2, &binding) ==
            DR_OK);
    CHECK(dr_binding_merge(binding, list, good, 2, nullptr, &result) == DR_E_ARGUMENT);
    CHECK(c.error().find("overlaps") != std::string::npos);
    dr_binding_destroy(binding);
  }
}
