// index=auto and value=auto: each tensor gets what costs least, and the frame names it.
#include <algorithm>

#include "client.hpp"

namespace {

using client::bytes;
using client::floats;

// Of d values about `ratio` are not zero: strewn, or in rows of 100.
floats gradient(uint64_t d, double ratio, bool rows, uint64_t seed) {
  floats g = client::laplace(d, seed);
  for (uint64_t i = 0; i < d; ++i) {
    client::rng r{seed * 977 + (rows ? i / 100 : i)};
    if (r.uniform() >= ratio) g[i] = 0;
  }
  return g;
}

double relative_error(const floats& a, const floats& b) {
  double norm = 0, rest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    norm += double{a[i]} * a[i];
    rest += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  }
  return std::sqrt(rest / norm);
}

}  // namespace

TEST_CASE("index=auto writes the shortest of its codecs' frames, and decodes") {
  client::context c;
  for (const bool rows : {false, true})
    for (const double ratio : {0.001, 0.03, 0.4, 0.7}) {
      CAPTURE(rows);
      CAPTURE(ratio);
      const floats g = gradient(30000, ratio, rows, 7);
      std::pair<size_t, uint64_t> least(~size_t{0}, 0);  // bytes; of the same, padded to 4, the fewest of indices
      std::string expected;
      for (const char* index : {"golomb", "golomb(adaptive=1)", "bitmap", "rle", "gap_huffman"}) {
        const bytes frame = client::encode(c, std::string("value=raw index=") + index, {client::dense(g)});
        const dr_tensor_info info = client::inspect(frame);
        const std::pair<size_t, uint64_t> size(frame.size(), info.index_size);
        if (size < least) least = size, expected = info.plan;
      }
      const bytes frame = client::encode(c, "index=auto", {client::dense(g)});
      CHECK(frame.size() == least.first);
      CHECK(std::string(client::inspect(frame).plan) == expected);
      CHECK(client::same_bits(client::decode(c, frame, g.size()), g));
    }
}

TEST_CASE("tensors of one frame have the codecs that each chose") {
  client::context c;
  const std::vector<floats> g{gradient(20000, 0.01, false, 1), gradient(20000, 0.5, false, 2),
                              gradient(20000, 0.02, true, 3)};
  std::vector<dr_tensor> tensors;
  for (const floats& one : g) tensors.push_back(client::dense(one));
  const bytes frame = client::encode(c, "index=auto", tensors);
  std::vector<dr_tensor_info> infos(g.size());
  for (dr_tensor_info& info : infos) info.struct_size = sizeof info;
  dr_frame_info head{};
  head.struct_size = sizeof head;
  dr_error error{sizeof(dr_error)};
  REQUIRE(dr_inspect(frame.data(), frame.size(), &head, infos.data(), sizeof infos[0], infos.size(), &error) == DR_OK);
  CHECK(std::string(infos[0].plan) == "index=golomb(block=12,adaptive=0) value=raw");
  CHECK(std::string(infos[1].plan) == "index=bitmap value=raw");
  CHECK(std::string(infos[2].plan) == "index=rle(code=0) value=raw");
  std::vector<floats> back;
  std::vector<dr_tensor_out> outs;
  for (const floats& one : g) back.emplace_back(one.size(), -1.0f);
  for (floats& one : back) outs.push_back(client::dense_out(one));
  REQUIRE(dr_decode(c.handle, nullptr, frame.data(), frame.size(), nullptr, outs.data(), sizeof outs[0], outs.size()) ==
          DR_OK);
  for (size_t i = 0; i < g.size(); ++i) CHECK(client::same_bits(back[i], g[i]));
}

TEST_CASE("value=auto meets its error, and is no longer than raw") {
  client::context c;
  for (const float scale : {1.0f, 1e-19f}) {
    CAPTURE(scale);
    floats g = gradient(40000, 0.05, false, 5);
    for (float& v : g) v *= scale;
    const size_t raw = client::encode(c, "index=golomb value=raw", {client::dense(g)}).size();
    size_t before = 0;
    for (const double error : {0.5, 0.2, 0.19, 0.05, 0.005, 0.0005, 1e-7, 0.0}) {
      CAPTURE(error);
      const bytes frame =
          client::encode(c, "index=golomb value=auto(error=" + std::to_string(error) + ")", {client::dense(g)});
      CHECK(relative_error(g, client::decode(c, frame, g.size())) <= error);
      CHECK(frame.size() <= raw);
      CHECK(frame.size() >= before);
      before = frame.size();
    }
    CHECK(before == raw);
  }
}

TEST_CASE("value=auto meets its error at every scale, with outliers and without") {
  client::context c;
  for (const double scale : {1e-44, 1e-38, 1e-20, 1e-3, 1.0, 1e19, 1e37})
    for (const std::string shape : {"laplace", "an outlier", "two magnitudes", "a constant"})
      for (const double error : {0.3, 0.01, 1e-4}) {
        CAPTURE(scale);
        CAPTURE(shape);
        CAPTURE(error);
        floats g = gradient(3000, 0.2, false, 9);
        float* outlier = nullptr;
        for (float& v : g) {
          if (v == 0) continue;
          outlier = &v;
          if (shape == "two magnitudes") v = v > 1 ? 10.0f : -1.0f;
          if (shape == "a constant") v = 3;
          v = static_cast<float>(v * scale);
        }
        if (shape == "an outlier") *outlier = 3.3e38f;
        const bytes frame =
            client::encode(c, "index=auto value=auto(error=" + std::to_string(error) + ")", {client::dense(g)});
        const floats back = client::decode(c, frame, g.size());
        CHECK(std::all_of(back.begin(), back.end(), [](float v) { return std::isfinite(v); }));
        CHECK_FALSE(relative_error(g, back) > error);  // (all may be zeros: not a number)
      }
}

TEST_CASE("value=auto sends exactly what no lossy codec accepts") {
  client::context c;
  floats g = gradient(5000, 0.1, false, 6);
  g[4321] = NAN;
  const bytes frame = client::encode(c, "index=auto value=auto(error=0.01)", {client::dense(g)});
  CHECK(client::same_bits(client::decode(c, frame, g.size()), g));
}

TEST_CASE("auto keeps feedback: what is not sent stays in the state") {
  client::context c;
  const floats g = gradient(9000, 1, false, 8);
  const std::string text = "sparsify=topr(ratio=0.1) feedback=residual index=auto value=auto(error=0.02)";
  dr_tensor t = client::dense(g);
  size_t state_size = 0;
  dr_error error{sizeof(dr_error)};
  REQUIRE(dr_state_size(client::plan(text).handle, &t, &state_size, &error) == DR_OK);
  std::vector<uint64_t> state(state_size / 8 + 1);
  t.state = state.data();
  t.state_size = state_size;
  const floats sent = client::decode(c, client::encode(c, text, {t}), g.size());
  const auto* const rest =
      reinterpret_cast<const float*>(reinterpret_cast<const char*>(state.data()) + state_size - 4 * g.size());
  for (size_t i = 0; i < g.size(); ++i) REQUIRE(rest[i] == g[i] - sent[i]);
}

TEST_CASE("auto reports what it does not do") {
  const auto refused = [](const char* text) {
    dr_plan* plan = nullptr;
    dr_error error{sizeof(dr_error)};
    CHECK(dr_plan_parse(text, &plan, &error) != DR_OK);
    return std::string(error.message);
  };
  CHECK(refused("index=bloom(fpr=0.01) value=auto(error=0.01)").find("bloom, which replaces the support") !=
        std::string::npos);
  CHECK(refused("index=auto value=fit_poly").find("fit_poly, which reorders") != std::string::npos);
  CHECK(refused("index=auto+deflate").find("bytes codec") != std::string::npos);
  CHECK(refused("index=auto(error=1)").find("it has: none") != std::string::npos);
  CHECK(refused("value=auto").find("error=") != std::string::npos);
  CHECK(refused("value=auto(error=2)").find("error=") != std::string::npos);
  CHECK(refused("index=no_such").find("auto") != std::string::npos);
  client::plan p("value=auto(error=0.010) index=auto");
  CHECK(std::string(dr_plan_text(p.handle)) == "index=auto value=auto(error=0.01)");
}

TEST_CASE("index=auto takes memory for what it may choose: not for the bitmap of a universe of 2^32 or 2^40") {
  client::context c;
  const client::plan p("index=auto value=raw");
  for (const uint64_t universe : {(uint64_t{1} << 32) - 1, uint64_t{1} << 40}) {
    CAPTURE(universe);
    std::vector<uint64_t> indices;
    for (uint64_t i = 0; i < 1000; ++i) indices.push_back(i < 500 ? 977 * i : universe - 7 * (1000 - i));
    const floats values = client::laplace(indices.size(), universe);
    const std::vector<dr_tensor> tensors{client::sparse(indices, values, universe)};
    dr_batch* batch = nullptr;
    REQUIRE(dr_batch_create(c.handle, p.handle, nullptr, tensors.data(), sizeof(dr_tensor), 1, 0, &batch) == DR_OK);
    dr_batch_info info{};
    info.struct_size = sizeof info;
    CHECK(dr_batch_describe(batch, &info, nullptr) == DR_OK);
    dr_batch_destroy(batch);
    CHECK(info.workspace < 100000 * uint64_t{info.segments});
    const bytes frame = client::encode(c, "index=auto value=raw", tensors);
    const client::pairs got = client::decode_sparse(c, frame);
    CHECK(got.indices == indices);
    CHECK(client::same_bits(got.values, values));
  }
}

TEST_CASE("index=auto beside a bound that is nearly a bitmap's: the bitmap is chosen where it is the shortest") {
  client::context c;
  for (const uint64_t universe : {8, 100, 1000, 4096})
    for (uint64_t count = 1; count <= universe; count += 1 + count / 5) {
      CAPTURE(universe);
      CAPTURE(count);
      std::vector<uint32_t> indices(count);
      for (uint64_t i = 0; i < count; ++i) indices[i] = static_cast<uint32_t>(i * universe / count);
      const floats values = client::laplace(count, universe);
      const std::vector<dr_tensor> tensors{client::sparse(indices, values, universe)};
      size_t least = ~size_t{0};
      for (const char* index : {"golomb", "golomb(adaptive=1)", "bitmap", "rle", "gap_huffman"})
        least = std::min(least, client::encode(c, std::string("value=raw index=") + index, tensors).size());
      CHECK(client::encode(c, "index=auto", tensors).size() == least);
    }
}
