// A GPU's frames are the CPU's, byte for byte, and either reads the other's.
#include "cuda/gpu_case.hpp"

#include <algorithm>

using namespace client;

namespace {

// Dense tensors with everything sent need a codec that takes that; a filter with no rate for it does not.
bool takes_all(const std::string& pair) { return pair.find("bloom") == std::string::npos; }

}  // namespace

TEST_CASE("the codecs that have kernels run on a GPU, all others say that they do not") {
  const std::vector<std::string> kernels{"raw",     "golomb",    "rice",          "bloom",   "all",
                                         "qsgd",    "log_quant", "uniform_quant", "half",    "sign",
                                         "ternary", "lloyd",     "fit_poly",      "bitpack", "ulp"};
  for (size_t i = 0; i < dr_codec_count(); ++i) {
    const dr_codec& c = *dr_codec_at(i);
    if (c.role == DR_ROLE_SPARSIFY || c.role == DR_ROLE_FEEDBACK || c.role == DR_ROLE_BYTES) continue;
    INFO(std::string(c.name));
    CHECK(runs_on_gpu(c.name, c.role) == (std::find(kernels.begin(), kernels.end(), c.name) != kernels.end()));
  }
}

TEST_SUITE("sample") {
  TEST_CASE("a little of everything, for compute-sanitizer") {
    for (const std::string& pair : pairs_of_codecs()) {
      both_ways("sparsify=topr(ratio=0.1) " + pair, {make(DR_F32, 257, 1), make(DR_F16, 33, 2), make(DR_F32, 0, 3)});
      both_ways("sparsify=topr(ratio=0.05) " + pair, {make(DR_BF16, 20000, 4)});
      both_ways(pair, {make_sparse(DR_F32, 5000, 300, 5)});
    }
    both_ways("sparsify=topr(ratio=0.02) index=golomb value=qsgd", {make(DR_F32, 300000, 1)});
    both_ways("sparsify=topr(ratio=0.2) index=golomb value=fit_poly", {make(DR_F32, 200000, 1)});
    both_ways("sparsify=threshold(value=2) index=golomb value=qsgd", {make(DR_F32, 70000, 1), make(DR_F32, 300, 2)});
    for (const named_gradient& n : awkward(DR_F32, 40000))
      both_ways("sparsify=topr(ratio=0.01) index=golomb value=qsgd", {n.g});
    gradients own{make(DR_F32, 20000, 1), make(DR_F32, 400, 2)};
    for (gradient& g : own) g.give_state();
    both_ways("sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd", own);
    gradients many;
    for (uint64_t i = 0; i < 60; ++i) many.push_back(make(DR_F32, 10 + 17 * i, i));
    both_ways("sparsify=topr(ratio=0.05) index=golomb value=qsgd", many);
    require_no_trouble();
  }
}

TEST_CASE("sizes around a warp, a block and a tile: every pair of codecs, every type") {
  for (const std::string& pair : pairs_of_codecs())
    for (const dr_dtype dtype : value_types)
      for (const uint64_t d : edge_sizes()) {
        INFO("d " << d << ", type " << dtype);
        both_ways("sparsify=topr(ratio=0.1) " + pair, {make(dtype, d, d + dtype)}, {}, static_cast<int32_t>(d % 4));
      }
  require_no_trouble();
}

TEST_CASE("as many values selected as fill a warp, a block or a tile, one less, one more") {
  for (const std::string& pair : pairs_of_codecs())
    for (const uint64_t r : edge_sizes()) {
      if (only_small() && r > 300 && pair.find("bloom") != std::string::npos) continue;
      INFO("r " << r);
      both_ways("sparsify=topr(count=" + std::to_string(r) + ") " + pair, {make(DR_F32, 3 * r + 5, r)});
    }
  require_no_trouble();
}

TEST_CASE("large tensors") {
  if (only_small()) return;
  for (const uint64_t d : {uint64_t{1000000}, uint64_t{25600000}}) {
    const gradient g = make(DR_F32, d, 5), h = make(DR_BF16, d, 6);
    for (const std::string& pair : pairs_of_codecs()) {
      INFO("d " << d);
      both_ways("sparsify=topr(ratio=0.01) " + pair, {g});
      if (d == 1000000) both_ways("sparsify=topr(ratio=0.1) " + pair, {h});
    }
    both_ways("sparsify=topr(ratio=0.1) index=golomb value=qsgd", {g});
    both_ways("sparsify=topr(ratio=0.001) index=golomb value=raw", {g});
    both_ways("sparsify=threshold(value=4) index=golomb value=qsgd", {h});
  }
  require_no_trouble();
}

TEST_CASE("every sparsifier, and tensors that go dense") {
  const uint64_t d = only_small() ? 5000 : 70000;
  for (const std::string& pair : pairs_of_codecs())
    for (const char* s : {"sparsify=topr(ratio=0.01)", "sparsify=topr(ratio=0.9)", "sparsify=topr(ratio=1)",
                          "sparsify=threshold(value=2)", "sparsify=threshold(value=1,max_ratio=0.3)",
                          "sparsify=threshold(value=100)", "sparsify=none"}) {
      if (!takes_all(pair) &&
          (std::string(s).find("none") != std::string::npos || std::string(s).find("=1)") != std::string::npos))
        continue;
      both_ways(std::string(s) + " " + pair, {make(DR_F32, d, 3, 0.6), make(DR_F32, d / 7, 4)});
    }
  require_no_trouble();
}

TEST_CASE("sparse tensors: indices of every type, rows of any width, off any alignment") {
  for (const std::string& pair : pairs_of_codecs()) {
    const bool rows_only = pair.find("fit_poly") != std::string::npos;
    // A filter is asked for every element; or all are sent.
    const bool asks_all = pair.find("bloom") != std::string::npos || pair.find("index=all") != std::string::npos;
    for (const dr_dtype index : {DR_U32, DR_I32, DR_U64, DR_I64})
      for (const size_t shift : {size_t{0}, size_t{1}}) {
        INFO("index type " << index << ", shift " << shift);
        both_ways(pair, {make_sparse(DR_F32, asks_all ? 70000 : 1000000, 3000, index, index)}, {}, 1, shift);
      }
    if (!asks_all)
      both_ways(pair, {make_sparse(DR_F32, 4294967295, 300, 9, DR_U32), make_sparse(DR_BF16, 50, 49, 8, DR_I64)});
    if (rows_only) continue;
    for (const dr_dtype dtype : value_types)
      both_ways(pair, {make_sparse(dtype, 30000, 700, 7, DR_I64, 3),
                       make_sparse(dtype, asks_all ? 400 : 4000, 33, 7, DR_I32, 64)});
  }
  if (!only_small()) {
    both_ways("index=golomb value=raw", {make_sparse(DR_F32, 25600000, 1000000, 4)});
    both_ways("index=golomb value=qsgd", {make_sparse(DR_F32, 25600000, 1000000, 4)});
  }
  require_no_trouble();
}

TEST_CASE("dense tensors of which all is sent: read where they are, off any alignment, of any type and width") {
  const std::string all = "index=all value=";
  for (const std::string& value : stages(DR_ROLE_VALUE))
    for (const dr_dtype dtype : value_types) {
      INFO(value << ", type " << dtype);
      for (const uint64_t d : edge_sizes())
        both_ways(all + value, {make(dtype, d, d + dtype, d % 2 ? 0.3 : 0)}, {}, static_cast<int32_t>(d % 4), d % 7);
      both_ways(all + value, {make(dtype, 9000, 1, 0.9), make(dtype, 0, 2), make(dtype, 64, 3, 1), make(dtype, 1, 4),
                              make(DR_F32, 700, 5)});
      // (Of a few values some codes exceed the dense row.)
      both_ways(all + value, {make(dtype, 1, 1), make(dtype, 2, 2), make(dtype, 3, 3, 0.5), make(dtype, 5, 4)});
      if (value.starts_with("fit_poly")) continue;
      for (const uint32_t width : {2u, 5u, 64u, 3000u})
        both_ways(all + value, {make_of(
                                   dtype, 6000 / width, width,
                                   [&](uint64_t i, rng& r) { return i / width % 3 ? 0.0f : r.laplace(1); }, width)});
    }
  if (!only_small())
    for (const dr_dtype dtype : value_types)
      for (const char* value : {"raw", "uniform_quant(bits=8)", "half", "qsgd"})
        both_ways(all + value, {make(dtype, 25600000, 5), make(dtype, 1000003, 6, 0.5)}, {}, 1, 1);
  require_no_trouble();
}

TEST_CASE("dense tensors of which all is sent: residuals, and tensors of a bucket, step after step") {
  for (const char* value : {"raw", "uniform_quant(bits=4)", "half", "sign(scale=means)", "fit_poly"})
    for (const char* bucket : {"", " bucket=flat"})
      for (const dr_dtype dtype : value_types) {
        const std::string text = std::string("feedback=residual(beta=0.9,gamma=0.5) index=all value=") + value + bucket;
        steps_with_states(
            text,
            {make(dtype, only_small() ? 9000 : 400000, 1), make(dtype, 3, 2), make(dtype, 0, 2), make(dtype, 401, 3)},
            1);
      }
  require_no_trouble();
}

TEST_CASE("dense tensors of which all is sent: a value that is not finite is the CPU's fault, or its bytes") {
  for (const dr_dtype dtype : value_types)
    for (const named_gradient& n : not_finite(dtype, only_small() ? 5000 : 200000)) {
      INFO(n.name << ", type " << dtype);
      for (const char* value : {"raw", "qsgd", "uniform_quant(bits=4)", "half"})
        for (const char* bucket : {"", " bucket=flat"})
          both_ways(std::string("index=all value=") + value + bucket, {make(dtype, 700, 1), n.g, make(dtype, 40, 2)});
    }
  require_no_trouble();
}

TEST_CASE("frames of all elements merge as on the CPU") {
  for (const char* text : {"index=all value=raw", "index=all value=uniform_quant(bits=4)",
                           "sparsify=topr(ratio=0.1) index=all value=half"})
    for (const dr_dtype dtype : {DR_F32, DR_BF16})
      for (const size_t k : {size_t{1}, size_t{2}, size_t{7}})
        require_same_merge(text, dtype, k, [&](size_t i) {
          return gradients{make(dtype, 9000, i, i % 3 == 2 ? 1 : 0), make(dtype, 77, 100 + i), make(dtype, 0, 1)};
        });
  require_no_trouble();
}

TEST_CASE("dense rows of any width") {
  for (const char* pair : {"index=raw value=raw", "index=golomb value=qsgd"})
    for (const dr_dtype dtype : value_types)
      for (const uint32_t width : {2u, 5u, 64u})
        both_ways(pair, {make_of(
                            dtype, 900, width, [&](uint64_t i, rng& r) { return i / width % 3 ? 0.0f : r.laplace(1); },
                            width)});
  require_no_trouble();
}

TEST_CASE("values off any alignment but their own") {
  for (const dr_dtype dtype : value_types)
    for (const size_t shift : {size_t{1}, size_t{2}, size_t{3}, size_t{5}, size_t{7}})
      for (const uint64_t d : {uint64_t{1}, uint64_t{8}, uint64_t{4099}, uint64_t{9000}})
        both_ways("sparsify=topr(ratio=0.2) index=golomb value=raw", {make(dtype, d, d)}, {}, 1, shift);
  require_no_trouble();
}

TEST_CASE("constant, two-valued, sorted and extreme gradients") {
  const std::vector<std::string> plans{"index=raw value=raw", "index=golomb value=qsgd", "index=golomb value=fit_poly",
                                       "index=bloom(policy=p0,fpr=0.01) value=qsgd"};
  for (const uint64_t d :
       only_small() ? std::vector<uint64_t>{300, 5000} : std::vector<uint64_t>{300, 5000, 70000, 1000000})
    for (const dr_dtype dtype : value_types)
      for (const named_gradient& n : awkward(dtype, d)) {
        INFO(n.name << ", d " << d << ", type " << dtype);
        for (const std::string& p : plans)
          for (const char* s : {"sparsify=topr(ratio=0.01) ", "sparsify=topr(ratio=0.3) ",
                                "sparsify=threshold(value=0.5,max_ratio=0.4) "}) {
            if (d > 5000 && p.find("bloom") != std::string::npos && dtype != DR_F32) continue;
            both_ways(s + p, {n.g});
          }
      }
  if (!only_small())
    for (const named_gradient& n : awkward(DR_F32, 25600000)) {
      INFO(n.name);
      both_ways("sparsify=topr(ratio=0.01) index=golomb value=qsgd", {n.g});
    }
  require_no_trouble();
}

TEST_CASE("a value that is not finite is the same fault where it is one, and the same bytes where it is none") {
  for (const uint64_t d : only_small() ? std::vector<uint64_t>{500, 5000} : std::vector<uint64_t>{500, 5000, 200000})
    for (const dr_dtype dtype : value_types)
      for (const named_gradient& n : not_finite(dtype, d)) {
        INFO(n.name << ", d " << d << ", type " << dtype);
        for (const char* p : {"index=raw value=raw", "index=golomb value=qsgd", "index=raw value=fit_poly",
                              "index=bloom(fpr=0.01) value=qsgd"}) {
          both_ways(std::string("sparsify=topr(ratio=0.1) ") + p, {make(dtype, 700, 1), n.g, make(dtype, 40, 2)});
          both_ways(std::string("sparsify=threshold(value=2,max_ratio=0.9) ") + p, {n.g});
        }
      }
  require_no_trouble();
}

TEST_CASE("feedback: states continue as on the CPU, step after step") {
  for (const char* p : {"index=raw value=raw", "index=golomb value=qsgd", "index=golomb value=fit_poly",
                        "index=bloom(policy=p0,fpr=0.01) value=qsgd", "index=bloom(fpr=0.02) value=raw"})
    for (const char* s : {"sparsify=topr(ratio=0.05) feedback=residual(beta=0.9,gamma=0.5) ",
                          "sparsify=threshold(value=2,max_ratio=0.2) feedback=residual "})
      for (const dr_dtype dtype : value_types)
        steps_with_states(std::string(s) + p, {make(dtype, only_small() ? 3000 : 40000, 1), make(dtype, 400, 2)}, 0, {},
                          only_small() ? 3 : 6);
  require_no_trouble();
}

// Known: the sums are in the residual before a value among them is found wanting.
TEST_CASE("a step that fails leaves states as they were" * doctest::should_fail()) {
  for (const bool large : {false, true}) {
    gradients own{make(DR_F32, large && !only_small() ? 300000 : 5000, 1), make(DR_F32, 900, 2)};
    for (gradient& g : own) g.give_state();
    const placed_batch b("sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd", own);
    sender at(b, own);
    REQUIRE(at.encode().status == DR_OK);
    const auto before = std::pair(at.state(0), at.state(1));
    own[1].set(17, std::numeric_limits<float>::infinity());
    at.put(own);
    CHECK(at.encode().status == DR_E_ARGUMENT);
    CHECK(std::pair(at.state(0), at.state(1)) == before);
  }
}

TEST_CASE("many tensors in one frame: none, one element, hundreds of all sizes") {
  const std::vector<std::string> pairs = pairs_of_codecs();
  for (const size_t n : {size_t{2}, size_t{41}, size_t{161}, size_t{401}}) {
    gradients all;
    for (size_t i = 0; i < n; ++i) {
      const uint64_t d = i % 23 == 5 ? 0 : i % 31 == 7 ? 1 : (i * i * 37 + 5) % (only_small() ? 500 : 60000);
      all.push_back(make(value_types[i % 7 == 3 ? 1 : i % 11 == 4 ? 2 : 0], d, i, i % 13 ? 0 : 1));
    }
    for (const std::string& pair : pairs) {
      if (n == 401 && pair.find("fit_poly") != std::string::npos && only_small()) continue;
      INFO(n << " tensors");
      both_ways("sparsify=topr(ratio=0.05) " + pair, all);
    }
  }
  require_no_trouble();
}

TEST_CASE("launches do not grow with the number of tensors") {
  for (const std::string& pair : pairs_of_codecs()) {
    const std::string text = "sparsify=topr(ratio=0.05) " + pair;
    const auto launches = [&](size_t n) {
      gradients all;
      for (size_t i = 0; i < n; ++i) all.push_back(make(DR_F32, 100 + i, i));
      return placed_batch(text, all).info.launches;
    };
    CHECK(launches(161) == launches(2));
    CHECK(launches(1) <= launches(2));  // one block may do all of one small tensor
  }
}

TEST_CASE("tags, lists, seeds and steps; no tensor, no element") {
  dr_call call{};
  call.flags = DR_CALL_TAG | DR_CALL_LIST;
  call.tag = 0x1122334455667788;
  call.step = 9;
  call.seed = 8;
  call.private_seed = 7;
  both_ways("sparsify=topr(ratio=0.1) index=golomb value=qsgd", {make(DR_F32, 5000, 3), make(DR_F32, 50, 3)}, call);
  // A tag costs one tensor its short header, which a prepared decode expects: refused, not misread.
  gradients one{make(DR_F32, 5000, 3)};
  const placed_batch b("sparsify=topr(ratio=0.1) index=golomb value=qsgd", one);
  sender s(b, one);
  const encoded got = s.encode(call), want = encode_on_cpu(b.method, one, call);
  require_same(got.frame, want.frame, "frame");
  receiver r(b, one, 1, got.frame.size(), true);
  const decoded d = r.decode(got.frame);
  if (d.status == DR_OK)
    require_same(d.values[0], decode_on_cpu(want.frame, one, true).values[0], "values");
  else
    CHECK(all_poison(d.values));
  both_ways("index=golomb", {});
  both_ways("sparsify=topr(ratio=0.5) index=golomb", {make(DR_F32, 0, 3), make(DR_F32, 40, 3)});
}

TEST_CASE("without a prepared batch, with the CPU's own waits: dense and sparse outputs") {
  for (const std::string& pair : pairs_of_codecs()) {
    INFO(pair);
    const plan p("sparsify=topr(ratio=0.05) " + pair);
    gradients g{make(DR_F32, 6000, 3)};
    const encoded want = encode_on_cpu(p, g);
    const place::stream stream;
    const dr_place at = stream.at();
    context c;
    const place::buffer values = buffer_with(g[0].values.data(), g[0].values.size());
    const place::buffer frame(want.frame.size() + 65536), result(sizeof(dr_result)), dense(4 * 6000);
    place::start_result(result);
    dr_tensor t = g[0].tensor();
    t.values = values.at();
    dr_status s = dr_encode(c.handle, p.handle, nullptr, &at, &t, sizeof t, 1, frame.at(), frame.size(),
                            reinterpret_cast<dr_result*>(result.at()));
    INFO(c.error());
    REQUIRE(s == DR_OK);
    stream.wait();
    dr_result told;
    place::get(&told, result.at(), sizeof told);
    REQUIRE(told.status == DR_OK);
    require_same(frame.bytes(told.size), want.frame, "frame");

    dr_tensor_out out = out_for(g[0], true, dense.at());
    s = dr_decode(c.handle, &at, frame.at(), told.size, nullptr, &out, sizeof out, 1);
    REQUIRE(s == DR_OK);
    require_same(dense.bytes(), decode_on_cpu(want.frame, g, true).values[0], "dense values");

    context host;
    const pairs sparse = decode_sparse(host, want.frame);
    const place::buffer kept(4 * sparse.values.size()), indices(8 * sparse.indices.size());
    out.index_dtype = DR_U64;
    out.values = kept.at();
    out.indices = indices.at();
    out.capacity = sparse.indices.size();
    s = dr_decode(c.handle, &at, frame.at(), told.size, nullptr, &out, sizeof out, 1);
    REQUIRE(s == DR_OK);
    CHECK(out.count == sparse.indices.size());
    std::vector<uint64_t> got(sparse.indices.size());
    place::get(got.data(), indices.at(), 8 * got.size());
    CHECK(got == sparse.indices);
    floats got_values(sparse.values.size());
    place::get(got_values.data(), kept.at(), 4 * got_values.size());
    CHECK(same_bits(got_values, sparse.values));
    for (const place::buffer* b : {&values, &frame, &result, &dense, &kept, &indices}) CHECK(b->intact());
  }
  require_no_trouble();
}

TEST_CASE("merges are the CPU's, to the bit: into nothing, into something, weighted, of every type") {
  const std::string text = "sparsify=topr(ratio=0.1) index=golomb value=qsgd";
  for (const std::string& pair :
       {text, std::string("sparsify=topr(ratio=0.05) index=bloom(policy=p0,fpr=0.01) value=raw"),
        std::string("sparsify=topr(ratio=0.02) index=golomb value=raw"),  // two of them touch few places of a tile
        std::string("sparsify=topr(ratio=0.2) index=golomb value=fit_poly")})
    for (const dr_dtype dtype : value_types)
      for (const size_t k : {size_t{0}, size_t{1}, size_t{2}, size_t{8}, size_t{17}}) {
        const uint64_t d = only_small() ? 4500 : 300000;
        require_same_merge(pair, dtype, k, [&](size_t i) {
          return gradients{make(dtype, d, i), make(dtype, 77, 100 + i)};
        });
      }
  require_no_trouble();
}

// The bits of each element, as they are.
gradient bits_of(dr_dtype dtype, uint64_t n, uint64_t first, uint64_t stride) {
  gradient g;
  g.dtype = dtype;
  g.universe = n;
  g.values.resize(n * bytes_of(dtype));
  for (uint64_t i = 0; i < n; ++i) {
    const auto bits = static_cast<uint32_t>(first + i * stride);
    std::memcpy(&g.values[i * bytes_of(dtype)], &bits, bytes_of(dtype));
  }
  return g;
}

TEST_CASE("every f16 and bf16, and f32 of every exponent, are converted and added as on the CPU") {
  const std::string all = "sparsify=none index=raw value=raw";
  const auto compare = [&](const gradient& sent, const gradient& to, const std::vector<bytes>& before, bool adds) {
    const plan p(all);
    gradients g{sent};
    const encoded frame = encode_on_cpu(p, g);
    REQUIRE(frame.status == DR_OK);
    const placed_batch b(all, {sent});
    receiver r(b, {to}, 1, frame.frame.size(), false);
    r.put_frame(0, frame.frame);
    r.put_values(before);
    r.enqueue_merge({0.75f}, adds);
    const decoded got = r.read(), want = merge_on_cpu({frame.frame}, {0.75f}, adds, {to}, false, before);
    r.check_guards();
    REQUIRE(want.status == DR_OK);
    REQUIRE(got.status == DR_OK);
    require_same(got.values[0], want.values[0], "sums");
  };
  constexpr uint64_t halves = 65536;
  for (const dr_dtype from : {DR_F16, DR_BF16})
    for (const dr_dtype to : value_types) {
      INFO("from type " << from << " to type " << to);
      const gradient sent = bits_of(from, halves, 0, 1), like = bits_of(to, halves, 40000, 40503);
      compare(sent, like, {like.values}, false);
      compare(sent, like, {like.values}, true);
    }
  // An odd stride comes to every word in the end; these are one of 256 of them, or of 65,536.
  const uint64_t n = only_small() ? 65536 : 1048576, rounds = only_small() ? 1 : 16;
  for (const dr_dtype to : {DR_F16, DR_BF16})
    for (uint64_t round = 0; round < rounds; ++round) {
      INFO("from f32 to type " << to << ", round " << round);
      const gradient sent = bits_of(DR_F32, n, round * n * 0x9e3779b1, 0x9e3779b1), like = bits_of(to, n, 0, 1);
      compare(sent, like, {like.values}, false);
      compare(sent, like, {like.values}, true);
    }
  require_no_trouble();
}

// 8.6 GB of values, of which one in 65,536 is not zero, and the first, the last and those around 2^31.
TEST_CASE("more than 2^31 elements") {
  if (only_small()) return;
  for (const uint64_t d : {(uint64_t{1} << 31) + 12345, (uint64_t{1} << 32) - 1}) {
    INFO("d " << d);
    gradients g(1);
    g[0].dtype = DR_BF16;
    g[0].universe = d;
    g[0].values.assign(2 * d, 0);
    uint64_t count = 0;
    const auto put = [&](uint64_t i) { g[0].set(i, static_cast<float>(1 + ++count % 113)); };
    for (uint64_t i = 0; i < 500; ++i) {
      put(i);
      put(d - 1 - i);
      put((uint64_t{1} << 31) - 250 + i);
    }
    for (uint64_t i = 65536; i < d - 65536; i += 65536)
      if (i != uint64_t{1} << 31) put(i);
    both_ways("sparsify=topr(count=" + std::to_string(count) + ") index=golomb value=raw", g);
    both_ways("sparsify=topr(count=" + std::to_string(count / 2) + ") index=golomb value=qsgd", g);
    if (d > uint64_t{3} << 30) continue;  // (one output will do)
    const std::string text = "sparsify=topr(count=" + std::to_string(count) + ") index=golomb value=raw";
    const placed_batch b(text, g);
    const bytes frame = encode_on_cpu(b.method, g).frame;
    receiver r(b, g, 1, frame.size(), false);
    const decoded got = r.decode(frame);
    REQUIRE(got.status == DR_OK);
    require_same(got.values[0], g[0].values, "values");
  }
  require_no_trouble();
}

TEST_CASE("a frame of 64 senders") {
  if (only_small()) return;
  const std::string text = "sparsify=topr(count=256000) index=golomb value=qsgd";
  const plan p(text);
  gradients like{make(DR_F32, 25600000, 0)};
  const bytes one = encode_on_cpu(p, like).frame;
  const placed_batch b(text, like);
  receiver r(b, like, 64, one.size(), true);
  const std::vector<bytes> before{like[0].values};
  for (size_t i = 0; i < 64; ++i) r.put_frame(i, one);
  r.put_values(before);
  r.enqueue_merge({}, true);
  const decoded got = r.read(), want = merge_on_cpu(std::vector<bytes>(64, one), {}, true, like, true, before);
  REQUIRE(got.status == DR_OK);
  require_same(got.values[0], want.values[0], "sums");
  require_no_trouble();
}
