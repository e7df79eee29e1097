// Tensors that are worked on in blocks and tiles, by one thread and by several: frames, states and gradients are those of a plain loop.
// And what many segments cost.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>

#include "client.hpp"
#include "sweep.hpp"

namespace {

using client::bytes;
using client::floats;

constexpr uint64_t large = 700001;

// A gradient of any type, with a state if it wants one.
struct tensor {
  std::vector<uint8_t> values;
  std::vector<uint64_t> state;
  dr_tensor view{};

  tensor(uint64_t d, uint32_t dtype, uint64_t seed) : state(2 + (d + 1) / 2) {
    const floats f = client::laplace(d, seed);
    view.struct_size = sizeof view;
    view.dtype = dtype;
    view.universe = d;
    values.resize(d * (dtype == DR_F32 ? 4 : 2));
    for (uint64_t i = 0; i < d; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &f[i], 4);
      // (f16: any pattern of a moderate number will do.)
      const uint16_t half =
          static_cast<uint16_t>(dtype == DR_BF16 ? bits >> 16 : (bits >> 16 & 0x8000) | (bits >> 8 & 0x3fff));
      if (dtype == DR_F32)
        std::memcpy(values.data() + 4 * i, &bits, 4);
      else
        std::memcpy(values.data() + 2 * i, &half, 2);
    }
    view.values = values.data();
  }
  dr_tensor with_state() {
    dr_tensor t = view;
    t.state = state.data();
    t.state_size = 8 * state.size();
    return t;
  }
};

dr_status encode(dr_context* c, const char* text, const std::vector<dr_tensor>& all, bytes& frame, uint64_t step = 0,
                 size_t capacity = SIZE_MAX) {
  const client::plan p(text);
  size_t bound = 0;
  REQUIRE(dr_bound(c, p.handle, nullptr, nullptr, all.data(), sizeof(dr_tensor), all.size(), &bound) == DR_OK);
  frame.assign(std::min(bound, capacity), 0xcc);
  dr_call call{};
  call.struct_size = sizeof call;
  call.step = step;
  dr_result result{.struct_size = sizeof(dr_result)};
  const dr_status s = dr_encode(c, p.handle, &call, nullptr, all.data(), sizeof(dr_tensor), all.size(), frame.data(),
                                frame.size(), &result);
  frame.resize(result.size);
  return s;
}

std::vector<dr_tensor_out> cut(floats& values, std::initializer_list<uint64_t> sizes) {
  std::vector<dr_tensor_out> outs;
  float* at = values.data();
  for (const uint64_t n : sizes) {
    dr_tensor_out o{};
    o.struct_size = sizeof o;
    o.dtype = DR_F32;
    o.universe = n;
    o.values = at;
    at += n;
    outs.push_back(o);
  }
  return outs;
}

}  // namespace

TEST_CASE("frames and states of large tensors are the same for any number of threads") {
  const char* const plans[] = {
      "sparsify=topr(ratio=0.01) index=golomb value=qsgd",
      "sparsify=topr(ratio=0.3) index=raw value=raw",
      "sparsify=threshold(value=0.002) index=rice value=raw",
      "index=golomb value=raw",
      "sparsify=topr(ratio=0.01) feedback=residual(beta=0.9,gamma=0.5) index=golomb value=qsgd",
      "sparsify=topr(ratio=0.02) feedback=residual index=golomb value=raw",
      "sparsify=threshold(value=0.02) feedback=residual index=golomb value=raw",
      "sparsify=topr(ratio=0.02) feedback=residual index=bloom(fpr=0.01,policy=p0) value=raw",
      "sparsify=topr(ratio=0.02) feedback=residual index=golomb value=fit_poly",
      "bucket=flat sparsify=topr(ratio=0.02) feedback=residual index=golomb value=fit_poly",
      "bucket=flat sparsify=topr(ratio=0.02) index=bloom(fpr=0.01) value=raw",
  };
  size_t combination = 0;
  for (const uint32_t dtype : {DR_F32, DR_BF16, DR_F16})
    for (const char* text : plans) {
      if (dr::sanitized && combination++ % 2) continue;
      CAPTURE(text);
      CAPTURE(dtype);
      const bool feeds = std::strstr(text, "feedback");
      std::vector<bytes> expected;
      std::vector<std::vector<uint64_t>> states;
      for (const uint32_t threads : {1u, 2u, 4u}) {
        CAPTURE(threads);
        client::context c(threads);
        tensor a(large, dtype, 1), b(3000, dtype, 2), d(400000, dtype, 3);
        std::vector<dr_tensor> all{a.view, b.view, d.view};
        if (feeds) all = {a.with_state(), b.with_state(), d.with_state()};
        for (uint64_t step = 0; step < 3; ++step) {
          bytes frame;
          REQUIRE(encode(c.handle, text, all, frame, step) == DR_OK);
          if (threads == 1)
            expected.push_back(frame);
          else
            CHECK(frame == expected[step]);
        }
        if (threads == 1) states = {a.state, b.state, d.state};
        CHECK(states == std::vector{a.state, b.state, d.state});
      }
    }
}

TEST_CASE("an encode of large tensors that fails leaves states as they were, whatever it fails for") {
  for (const uint32_t threads : {1u, 3u})
    for (const char* text : {"sparsify=topr(ratio=0.01) feedback=residual index=golomb value=qsgd",
                             "sparsify=topr(ratio=0.01) feedback=residual index=golomb value=raw",
                             "bucket=flat sparsify=topr(ratio=0.01) feedback=residual index=golomb value=qsgd"}) {
      CAPTURE(text);
      client::context c(threads);
      tensor a(large, DR_F32, 1), b(3000, DR_F32, 2);
      const std::vector<dr_tensor> all{a.with_state(), b.with_state()};
      bytes frame;
      const auto fresh = a.state;
      CHECK(encode(c.handle, text, all, frame, 0, 100) == DR_E_CAPACITY);
      CHECK(a.state == fresh);
      REQUIRE(encode(c.handle, text, all, frame) == DR_OK);
      CHECK(a.state != fresh);
      const auto before = a.state, before_b = b.state;
      CHECK(encode(c.handle, text, all, frame, 1, 100) == DR_E_CAPACITY);
      CHECK(a.state == before);
      CHECK(b.state == before_b);
      if (std::strstr(text, "raw")) continue;  // which takes NaN as well
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(b.values.data() + 4 * 2999, &nan, 4);
      CHECK(encode(c.handle, text, all, frame, 1) == DR_E_ARGUMENT);
      CHECK(a.state == before);
      CHECK(b.state == before_b);
      // And it goes on as if that had not been.
      std::memcpy(b.values.data() + 4 * 2999, b.values.data(), 4);
      CHECK(encode(c.handle, text, all, frame, 1) == DR_OK);
    }
}

TEST_CASE("decode and merge of large tensors are a plain loop over pairs, for any number of threads") {
  constexpr uint64_t d = 2500000;  // 10 MB: written past the caches
  client::context one;
  std::vector<bytes> frames;
  std::vector<client::pairs> pairs;
  const char* const plans[] = {"sparsify=topr(ratio=0.01) index=golomb value=raw",
                               "sparsify=topr(ratio=0.2) index=raw value=qsgd",
                               "sparsify=threshold(value=0,max_ratio=0.1) value=raw"};  // dense
  for (uint64_t k = 0; k < 3; ++k) {
    const floats g = client::laplace(d, 10 + k);
    frames.push_back(client::encode(one, plans[k], {client::dense(g)}));
    pairs.push_back(client::decode_sparse(one, frames[k]));
  }
  const float weights[] = {0.3f, -2, 1e-3f};
  floats sum(d, 0.125f), from_zero(d);
  for (uint64_t k = 0; k < 3; ++k)
    for (uint64_t i = 0; i < pairs[k].indices.size(); ++i) {
      const float term = weights[k] * pairs[k].values[i];
      sum[pairs[k].indices[i]] += term;
      from_zero[pairs[k].indices[i]] += term;
    }
  std::vector<dr_bytes> list;
  for (const bytes& f : frames) list.push_back({f.data(), f.size()});
  for (const uint32_t threads : {1u, 2u, 5u}) {
    CAPTURE(threads);
    client::context c(threads);
    for (uint64_t k = 0; k < 3; ++k) {
      floats expected(d);
      for (uint64_t i = 0; i < pairs[k].indices.size(); ++i) expected[pairs[k].indices[i]] = pairs[k].values[i];
      floats whole(d, -7), parts(d, -7);
      std::vector<dr_tensor_out> out{client::dense_out(whole)},
          outs = cut(parts, {1, 0, 1000000, d - 1000001 - 77, 77});
      REQUIRE(dr_decode(c.handle, nullptr, frames[k].data(), frames[k].size(), nullptr, out.data(), sizeof out[0], 1) ==
              DR_OK);
      CHECK(client::same_bits(whole, expected));
      CHECK(out[0].count == pairs[k].indices.size());
      // One tensor over many outputs, as of a flat bucket.
      REQUIRE(dr_decode(c.handle, nullptr, frames[k].data(), frames[k].size(), nullptr, outs.data(), sizeof outs[0],
                        outs.size()) == DR_OK);
      CHECK(client::same_bits(parts, expected));
      uint64_t count = 0;
      for (const dr_tensor_out& o : outs) count += o.count;
      CHECK(count == pairs[k].indices.size());
    }
    for (const bool adds : {false, true}) {
      dr_decode_options options{};
      options.struct_size = sizeof options;
      options.flags = adds ? DR_DECODE_ADD : 0;
      floats whole(d, 0.125f), parts(d, 0.125f);
      dr_tensor_out out = client::dense_out(whole);
      REQUIRE(dr_merge(c.handle, nullptr, list.data(), weights, 3, &options, &out, sizeof out, 1) == DR_OK);
      CHECK(client::same_bits(whole, adds ? sum : from_zero));
      auto outs = cut(parts, {800000, 1, d - 800001});
      REQUIRE(dr_merge(c.handle, nullptr, list.data(), weights, 3, &options, outs.data(), sizeof outs[0],
                       outs.size()) == DR_OK);
      CHECK(client::same_bits(parts, adds ? sum : from_zero));
    }
  }
}

TEST_CASE("rows of many values, and segments, reach a dense output whatever tile they begin in") {
  for (const uint32_t width : {3u, 1000u, 40000u}) {
    CAPTURE(width);
    const uint64_t rows = 4000000 / width;
    client::rng random{width};
    std::vector<uint32_t> at;
    for (uint32_t i = 0; i < rows; ++i)
      if (random.uniform() < 0.3) at.push_back(i);
    const floats v = client::laplace(at.size() * width, 5);
    floats expected(rows * width);
    for (size_t i = 0; i < at.size(); ++i) std::memcpy(&expected[uint64_t{at[i]} * width], &v[i * width], 4 * width);
    client::context one;
    dr_call call{};
    for (const uint64_t segment : {uint64_t{0}, rows / 3 + 1, uint64_t{17}}) {
      if (segment && rows / segment > 5000) continue;
      call.segment_rows = segment;
      const client::plan p("index=golomb value=raw");
      const dr_tensor t = client::sparse(at, v, rows, width);
      dr_batch* batch = nullptr;
      REQUIRE(dr_batch_create(one.handle, p.handle, nullptr, &t, sizeof t, 1, segment, &batch) == DR_OK);
      dr_batch_info info{};
      info.struct_size = sizeof info;
      REQUIRE(dr_batch_describe(batch, &info, nullptr) == DR_OK);
      dr_batch_destroy(batch);
      bytes frame(info.bound);
      dr_result result{.struct_size = sizeof(dr_result)};
      call.struct_size = sizeof call;
      REQUIRE(dr_encode(one.handle, p.handle, &call, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), &result) ==
              DR_OK);
      frame.resize(result.size);
      for (const uint32_t threads : {1u, 3u}) {
        client::context c(threads);
        floats out(rows * width, -3);
        dr_tensor_out o = client::dense_out(out, width);
        REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, &o, sizeof o, 1) == DR_OK);
        CHECK(client::same_bits(out, expected));
        floats twice(rows * width, -3);
        o = client::dense_out(twice, width);
        const dr_bytes both[] = {{frame.data(), frame.size()}, {frame.data(), frame.size()}};
        REQUIRE(dr_merge(c.handle, nullptr, both, nullptr, 2, nullptr, &o, sizeof o, 1) == DR_OK);
        for (size_t i = 0; i < out.size(); ++i) out[i] += out[i];
        CHECK(client::same_bits(twice, out));
      }
    }
  }
}

// ---- In many segments ----------------------------------------------------------------------------------------

namespace {

dr_call in_segments(uint64_t rows) {
  dr_call call{};
  call.struct_size = sizeof call;
  call.segment_rows = rows;
  return call;
}

// Seconds of the process of f(n).
template <class F>
double seconds(size_t n, F&& f) {
  const std::clock_t begin = std::clock();
  f(n);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

// Sixteen times as much takes no more than 64 times as long. (What is quadratic takes 256 times.) Others on the machine take
// caches and memory away, so the least of up to ten turns counts, in which the two alternate.
template <class F>
void check_linear(size_t n, F&& f) {
  double few = 1e9, many = 1e9;
  for (int turn = 0; turn < 10 && (turn < 2 || many >= 64 * few); ++turn) {
    few = std::min(few, seconds(n, f));
    many = std::min(many, seconds(16 * n, f));
  }
  CAPTURE(few);
  CAPTURE(many);
  CHECK(many < 64 * few);
}

}  // namespace

TEST_CASE("the time of an encode grows with its segments, not with their square") {
  client::context c;
  const floats g = client::laplace(1 << 19, 1);
  bytes frame(1 << 25);
  check_linear(1 << 12, [&](size_t segments) {
    const client::plan p("sparsify=topr(ratio=0.25) index=bloom(fpr=0.1) value=raw");
    dr_tensor t = client::dense(g);
    t.universe = 8 * segments;
    dr_call call = in_segments(8);
    CHECK(dr_encode(c.handle, p.handle, &call, nullptr, &t, sizeof t, 1, frame.data(), frame.size(), nullptr) == DR_OK);
  });
}

TEST_CASE("the time of an encode of which segments are left out grows with them, not with their square") {
  client::context c;
  const floats g = client::laplace(1 << 19, 1);
  const client::plan p("sparsify=topr(ratio=0.25) feedback=residual index=golomb value=raw");
  std::vector<uint64_t> state(2 + g.size() / 2);
  bytes frame(1 << 21);
  check_linear(1 << 12, [&](size_t segments) {
    dr_tensor t = client::dense(g);
    t.universe = 8 * segments;
    t.state = state.data();
    t.state_size = 16 + 4 * t.universe;
    std::fill(state.begin(), state.end(), 0);
    dr_call call = in_segments(8);
    call.flags = DR_CALL_FIT;
    dr_result result{.struct_size = sizeof(dr_result)};
    const dr_status s =
        dr_encode(c.handle, p.handle, &call, nullptr, &t, sizeof t, 1, frame.data(), 16 * segments + 100, &result);
    INFO(c.error());
    REQUIRE(s == DR_OK);
    CHECK(result.kept < t.universe / 8);
  });
}

TEST_CASE("the time to report the faults of a bucket grows with its values, not with these times the tensors") {
  client::context c;
  const floats g(32, NAN);
  const client::plan p("sparsify=none index=raw value=qsgd bucket=flat");
  bytes frame(1 << 20);
  check_linear(1 << 10, [&](size_t tensors) {
    const std::vector<dr_tensor> all(tensors, client::dense(g));
    std::vector<dr_fault> faults(tensors);
    for (dr_fault& f : faults) f.struct_size = sizeof f;
    for (const uint64_t segment_rows : {0, 20}) {
      dr_call call = in_segments(segment_rows);
      call.faults = faults.data();
      call.fault_stride = sizeof(dr_fault);
      CHECK(dr_encode(c.handle, p.handle, &call, nullptr, all.data(), sizeof(dr_tensor), all.size(), frame.data(),
                      frame.size(), nullptr) == DR_E_ARGUMENT);
      CHECK(std::all_of(faults.begin(), faults.end(), [](const dr_fault& f) { return f.code && f.where == 0; }));
    }
  });
}

TEST_CASE("the time to keep the residuals of a bucket grows with it, also where values are not sent in their order") {
  client::context c;
  const floats g = client::laplace(1 << 18, 1);
  const client::plan p("sparsify=topr(ratio=0.2) feedback=residual index=golomb value=fit_poly bucket=flat");
  bytes frame(1 << 21);
  check_linear(1 << 8, [&](size_t tensors) {
    std::vector<std::vector<uint64_t>> states(tensors, std::vector<uint64_t>(2 + 64 / 2));
    std::vector<dr_tensor> all;
    for (size_t i = 0; i < tensors; ++i) {
      dr_tensor& t = all.emplace_back(client::dense(g));
      t.values = g.data() + 64 * i;
      t.universe = 64;
      t.state = states[i].data();
      t.state_size = 8 * states[i].size();
    }
    CHECK(dr_encode(c.handle, p.handle, nullptr, nullptr, all.data(), sizeof(dr_tensor), all.size(), frame.data(),
                    frame.size(), nullptr) == DR_OK);
  });
}
