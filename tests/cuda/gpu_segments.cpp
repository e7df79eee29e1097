// Tensors in segments (segment_rows) on a GPU: selected as a whole, coded each for itself; frames, states and sums are the CPU's.
#include <algorithm>
#include <cmath>

#include "cuda/gpu_case.hpp"

using namespace client;

namespace {

dr_call in_segments(uint64_t rows, uint64_t step = 0) {
  dr_call call{};
  call.segment_rows = rows;
  call.step = step;
  call.seed = 3;
  call.private_seed = 4;
  return call;
}

bool has_filter(const std::string& pair) { return pair.find("bloom") != std::string::npos; }

void put(gradient& g, uint64_t i, uint32_t f32) {
  if (g.dtype == DR_F32)
    std::memcpy(g.values.data() + 4 * i, &f32, 4);
  else
    g.values[2 * i] = static_cast<uint8_t>(f32 >> 16), g.values[2 * i + 1] = static_cast<uint8_t>(f32 >> 24);
}
constexpr uint32_t an_infinity = 0x7f800000, a_nan = 0x7fc00000;

}  // namespace

TEST_CASE("segments: every sparsifier and pair of codecs, of any type, beside tensors of one segment") {
  for (const std::string& pair : pairs_of_codecs())
    for (const char* s :
         {"sparsify=topr(ratio=0.1)", "sparsify=topr(count=3)", "sparsify=threshold(value=2)",
          "sparsify=threshold(value=1,max_ratio=0.3)", "sparsify=random(ratio=0.2)", "sparsify=random(ratio=0.7)",
          "sparsify=chunks(count=3,size=100)", "sparsify=chunks(ratio=0.1,size=1500)", "sparsify=none"}) {
      if (has_filter(pair) && std::string(s).find("none") != std::string::npos) continue;
      // (A type a pair: which one changes.)
      const auto dtype = static_cast<dr_dtype>(DR_F32 + (pair.size() + std::strlen(s)) % 3);
      both_ways(std::string(s) + " " + pair, {make(dtype, 5000, 3, 0.3), make(DR_F32, 700, 4), make(dtype, 0, 5)},
                in_segments(992), 2);
    }
  require_no_trouble();
}

TEST_CASE("segments of any length: of one row of blocks, of more than a launch has room for, one short") {
  for (const char* pair : {"index=golomb value=qsgd", "index=raw value=fit_poly", "index=bloom(fpr=0.01) value=raw",
                           "index=all value=uniform_quant(bits=4)"})
    for (const char* s : {"sparsify=topr(ratio=0.05) ", "sparsify=threshold(value=2,max_ratio=0.5) "}) {
      for (const uint64_t rows : {uint64_t{32}, uint64_t{4096}, uint64_t{8192}, uint64_t{20000}})
        both_ways(std::string(s) + pair, {make(DR_F32, 1500 + 6 * rows, 3)}, in_segments(rows));
      both_ways(std::string(s) + pair, {make(DR_F16, 32 * 450 + 1, 3), make(DR_F32, 32 * 45, 4)}, in_segments(32));
    }
  require_no_trouble();
}

TEST_CASE("segments: tensors of zeros, of all in one segment, with plateaus that end in one") {
  for (const char* pair : {"index=golomb value=raw", "index=bloom(policy=p0,fpr=0.02) value=qsgd"}) {
    const std::string text = std::string("sparsify=topr(ratio=0.1) ") + pair;
    both_ways(text, {make(DR_F32, 3000, 3, 1)}, in_segments(960));
    const auto at_end = [](uint64_t i, rng& r) { return i < 2500 ? 0 : r.laplace(1); };
    both_ways(text, {make_of(DR_F32, 3000, 1, at_end)}, in_segments(960));
    both_ways(text, {make_of(DR_F32, 30000, 1, [](uint64_t i, rng&) { return i % 7 ? 1.0f : 2.0f; })},
              in_segments(6400));
  }
  require_no_trouble();
}

TEST_CASE("a tensor that a threshold selects too much of is dense in all its segments, in those without a value, too") {
  for (const char* feedback : {"", " feedback=residual(beta=0.9,gamma=0.5)"})
    for (const dr_dtype dtype : {DR_F32, DR_F16})
      for (const char* pair : {" index=golomb value=qsgd", " index=bloom(fpr=0.01) value=raw"}) {
        gradients g{make_of(dtype, 3000, 1, [](uint64_t i, rng& r) { return i / 960 == 1 ? 0 : r.laplace(1); }),
                    make(dtype, 2000, 4, 0.99)};
        for (gradient& one : g)
          if (*feedback) one.give_state();
        both_ways(std::string("sparsify=threshold(value=0.2,max_ratio=0.1)") + feedback + pair, g, in_segments(960));
      }
  require_no_trouble();
}

TEST_CASE("segments of sparse tensors, and of rows of several values") {
  for (const std::string& pair : pairs_of_codecs()) {
    both_ways(pair, {make_sparse(DR_F32, 5000, 300, 5), make_sparse(DR_BF16, 900, 20, 6, DR_U32)}, in_segments(992));
    if (pair.find("fit_poly") != std::string::npos) continue;
    both_ways(pair, {make_sparse(DR_F16, 5000, 300, 5, DR_I64, 3)}, in_segments(992), 1, 1);
    if (has_filter(pair)) continue;
    both_ways(pair,
              {make_of(
                  DR_F32, 2000, 1, [](uint64_t i, rng& r) { return i / 5 % 3 ? 0.0f : r.laplace(1); }, 5)},
              in_segments(320));
  }
  both_ways("index=golomb value=raw", {make_sparse(DR_F32, 4294967295, 300, 9, DR_U32)}, in_segments(1 << 28));
  require_no_trouble();
}

TEST_CASE("segments: a state goes on as on the CPU, step after step") {
  for (const char* s :
       {"sparsify=topr(ratio=0.05) feedback=residual(beta=0.9,gamma=0.5)",
        "sparsify=random(ratio=0.3) feedback=residual", "sparsify=threshold(value=2,max_ratio=0.2) feedback=residual",
        "sparsify=none feedback=residual", "sparsify=chunks(count=3,size=100) feedback=residual"})
    for (const char* pair :
         {"index=golomb value=qsgd", "index=raw value=fit_poly", "index=bloom(policy=p0,fpr=0.02) value=qsgd",
          "index=all value=raw", "index=all value=sign(scale=mean)"})
      for (const dr_dtype dtype : {DR_F32, DR_BF16}) {
        const std::string text = std::string(s) + " " + pair;
        if (has_filter(pair) && text.find("none") != std::string::npos) continue;
        steps_with_states(text, {make(dtype, 3000, 1), make(dtype, 400, 2)}, 0, in_segments(800));
      }
  require_no_trouble();
}

TEST_CASE("segments draw by their number, also for a step that only the device knows") {
  for (const char* text : {"sparsify=topr(ratio=0.1) index=golomb value=qsgd",
                           "sparsify=random(ratio=0.2) index=golomb value=qsgd", "index=all value=ternary"}) {
    gradients g{make(DR_F32, 3000, 1), make(DR_F32, 50, 2)};
    const placed_batch b(text, g, 1, 640);
    sender at(b, g);
    const uint64_t step = 9;
    place::buffer word(8);
    word.put_bytes(&step, 8);
    dr_call call = in_segments(640, step);
    const encoded want = encode_on_cpu(b.method, g, call);
    call.step = reinterpret_cast<uintptr_t>(word.at());
    call.flags = DR_CALL_STEP_AT;
    const encoded got = at.encode(call);
    REQUIRE(got.status == DR_OK);
    require_same(got.frame, want.frame, "frame");
  }
  require_no_trouble();
}

TEST_CASE("segments: a value that is not finite is the tensor's, at the tensor's element") {
  for (const char* codecs :
       {"sparsify=topr(ratio=0.1) index=golomb value=qsgd", "sparsify=topr(ratio=0.1) index=bloom(fpr=0.01) value=qsgd",
        "index=all value=qsgd", "sparsify=none index=raw value=fit_poly"})
    for (const dr_dtype dtype : {DR_F32, DR_BF16}) {
      gradients g{make(dtype, 500, 1), make(dtype, 5000, 2)};
      put(g[1], 4321, an_infinity);
      put(g[1], 2017, a_nan);
      both_ways(codecs, g, in_segments(640));
      gradients kept = g;
      for (gradient& one : kept) one.give_state();
      // (What a state holds then differs: the CPU's is as before, a GPU's has the gradient, but for what is not finite.)
      const std::string text = std::string("feedback=residual ") + codecs;
      const placed_batch b(text, kept, 1, 640);
      sender at(b, kept);
      const encoded got = at.encode(in_segments(640)), want = encode_on_cpu(b.method, kept, in_segments(640));
      REQUIRE(want.status == DR_E_ARGUMENT);
      CHECK(got.status == want.status);
      CHECK(got.result.tensor == 1);
      CHECK(got.result.where == 2017);
      for (size_t i = 0; i < kept.size(); ++i) {
        const auto state = at.state(i);
        floats held(kept[i].universe);
        std::memcpy(held.data(), state.data() + 2, 4 * held.size());
        CHECK(std::all_of(held.begin(), held.end(), [](float v) { return std::isfinite(v); }));
        CHECK(std::any_of(held.end() - 100, held.end(), [](float v) { return v != 0; }));
      }
    }
  gradients wide{make_of(
      DR_F32, 3500, 1, [](uint64_t, rng& r) { return r.laplace(1); }, 5)};
  put(wide[0], 3217, an_infinity);
  both_ways("index=all value=qsgd", wide, in_segments(160));
  both_ways("index=golomb value=qsgd", wide, in_segments(160));
  gradients sparse{make_sparse(DR_F32, 5000, 300, 5)};
  put(sparse[0], 200, a_nan);
  both_ways("index=golomb value=qsgd", sparse, in_segments(640));
  require_no_trouble();
}

TEST_CASE("segments: a state of another tensor, and indices that do not ascend, are faults of the tensor") {
  gradients g{make(DR_F32, 500, 1), make(DR_F32, 3000, 2)};
  for (gradient& one : g) one.give_state();
  g[1].state[0] = 77;
  for (const char* text : {"sparsify=topr(ratio=0.1) feedback=residual index=golomb", "feedback=residual index=all"}) {
    const placed_batch b(text, g, 1, 640);
    sender at(b, g);
    const encoded got = at.encode(in_segments(640));
    CHECK(got.status == DR_E_ARGUMENT);
    CHECK(got.result.tensor == 1);
    CHECK(at.state(1) == g[1].state);
  }
  gradients sparse{make_sparse(DR_F32, 5000, 300, 5, DR_I64)};
  const int64_t again = 4000;
  std::memcpy(sparse[0].indices.data() + 8 * 10, &again, 8);
  const placed_batch b("index=golomb value=raw", sparse, 1, 640);
  sender at(b, sparse);
  const encoded got = at.encode(in_segments(640));
  CHECK(got.status == DR_E_ARGUMENT);
  CHECK(got.result.tensor == 0);
  CHECK(got.result.stream == DR_STREAM_NONE);
  CHECK(got.result.where == 11);
  require_no_trouble();
}

TEST_CASE("frames in segments merge in the order of the frames, by pairs and by tiles, into outputs of any type") {
  for (const char* text : {"sparsify=topr(ratio=0.2) index=golomb value=qsgd", "sparsify=topr(ratio=0.001) index=raw",
                           "sparsify=threshold(value=1,max_ratio=0.3) index=golomb", "index=all value=half",
                           "sparsify=topr(ratio=0.1) index=golomb value=fit_poly"})
    for (const dr_dtype dtype : {DR_F32, DR_F16})
      for (const size_t k : {size_t{1}, size_t{3}, size_t{70}})
        require_same_merge(
            text, dtype, k,
            [&](size_t i) {
              return gradients{make(dtype, 20000, i), make(dtype, 300, i + 1), make(dtype, 9001, i + 2)};
            },
            4992);
  require_no_trouble();
}

TEST_CASE("any number of segments takes as many launches as whole tensors, and one that cuts the selection") {
  for (const char* text :
       {"sparsify=topr(ratio=0.1) index=golomb value=qsgd", "sparsify=none index=golomb value=raw"}) {
    const gradients g{make(DR_F32, 32000, 1), make(DR_F32, 300, 2)};
    const uint32_t whole = placed_batch(text, g).info.launches;
    CHECK(placed_batch(text, g, 1, 16000).info.launches == whole + 1);
    CHECK(placed_batch(text, g, 1, 96).info.launches == whole + 1);
  }
  const gradients g{make(DR_F32, 32000, 1)};
  CHECK(placed_batch("index=all value=raw", g, 1, 96).info.launches ==
        placed_batch("index=all value=raw", g).info.launches);
}

TEST_CASE("segments that have no path on a GPU are refused by name") {
  const auto refusal = [](const char* text, const std::vector<dr_tensor>& tensors, uint64_t rows) {
    const context c;
    const plan p(text);
    const place::stream on(1);
    const dr_place at = on.at();
    dr_batch* batch = nullptr;
    CHECK(dr_batch_create(c.handle, p.handle, &at, tensors.data(), sizeof(dr_tensor), tensors.size(), rows, &batch) ==
          DR_E_UNSUPPORTED);
    dr_batch_destroy(batch);
    return c.error();
  };
  gradients two{make(DR_F32, 3000, 1), make(DR_F32, 3000, 2)};
  CHECK(refusal("bucket=flat sparsify=topr(ratio=0.1) index=golomb", tensors_of(two), 992) ==
        "tensor 0: segments of a bucket (bucket=flat) have no CUDA path");
  dr_tensor large = two[0].tensor();
  large.universe = uint64_t{1} << 32;
  CHECK(refusal("sparsify=topr(count=100) index=golomb", {large}, 0) ==
        "tensor 0: 2^32 rows and more have no CUDA path");
  dr_tensor patch = two[0].tensor();
  patch.universe = 10000;
  CHECK(refusal("sparsify=changed(max_ratio=0.1) index=golomb value=raw", {patch}, 4096) ==
        "tensor 0: changed: max_ratio of patches in segments has no CUDA path");
}
