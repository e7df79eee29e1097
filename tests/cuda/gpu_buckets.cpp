// Buckets (bucket=flat): several tensors are one row of a frame, read where they are and written where they belong.
#include "cuda/gpu_case.hpp"

namespace {

using namespace client;

const std::string flat = " bucket=flat";
// Tensors of one type, some of them empty or of one element, off any vector's bounds.
gradients bucket_of(dr_dtype dtype, const std::vector<uint64_t>& sizes, uint64_t seed = 1) {
  gradients all;
  for (size_t i = 0; i < sizes.size(); ++i) all.push_back(make(dtype, sizes[i], seed + i, i % 13 == 6 ? 0.9 : 0));
  return all;
}

// Selected by one block; by a sample, in tiles that belong to several tensors or to a part of one.
std::vector<std::vector<uint64_t>> shapes() {
  std::vector<std::vector<uint64_t>> all{{40, 17}, {0, 300, 0, 1, 77, 0}, {5000, 1, 4096, 3}, {9000, 0, 1, 8193, 2}};
  std::vector<uint64_t> many;
  for (size_t i = 0; i < 161; ++i) many.push_back(i % 23 == 5 ? 0 : i % 31 == 7 ? 1 : (i * i * 37 + 5) % 500);
  all.push_back(many);
  if (!only_small()) {
    for (uint64_t& d : many) d *= 120;
    all.push_back(many);
    all.push_back({2000000, 7, 0, 1000001, 300});
  }
  return all;
}

TEST_CASE("a bucket is one row: every pair of codecs, every type, every kind of selection") {
  for (const std::vector<uint64_t>& sizes : shapes())
    for (const dr_dtype dtype : value_types)
      for (const std::string& pair : pairs_of_codecs()) {
        if (only_small() && sizes.size() > 100 && (dtype == DR_F16 || pair.find("fit_poly") != std::string::npos))
          continue;
        INFO(sizes.size() << " tensors, the first of " << sizes[0] << ", type " << dtype);
        both_ways("sparsify=topr(ratio=0.05) " + pair + flat, bucket_of(dtype, sizes), {}, 1, sizes.size() % 3);
      }
  for (const char* s : {"sparsify=none ", "sparsify=threshold(value=3) ", "sparsify=threshold(value=1,max_ratio=0.2) "})
    for (const std::vector<uint64_t>& sizes : shapes())
      for (const dr_dtype dtype : value_types)
        both_ways(s + std::string("index=golomb value=qsgd") + flat, bucket_of(dtype, sizes), {}, 2, 1);
  require_no_trouble();
}

TEST_CASE("buckets of one tensor, of none that has elements, and of more tensors than a launch has jobs") {
  const std::string text = "sparsify=topr(ratio=0.1) index=golomb value=qsgd" + flat;
  both_ways(text, {make(DR_F32, 5000, 1)});
  both_ways(text, {make(DR_F32, 0, 1), make(DR_F32, 0, 2)});
  std::vector<uint64_t> sizes;
  for (size_t i = 0; i < 1300; ++i) sizes.push_back(i * i % 50);
  both_ways(text, bucket_of(DR_F32, sizes));
  gradients fed = bucket_of(DR_BF16, sizes);
  for (gradient& g : fed) g.give_state();
  both_ways(text + " feedback=residual", fed);
  require_no_trouble();
}

TEST_CASE("a bucket whose sample misleads: constant, sorted and extreme tensors side by side") {
  for (const dr_dtype dtype : value_types)
    for (const uint64_t d : only_small() ? std::vector<uint64_t>{6000} : std::vector<uint64_t>{6000, 300000})
      for (const named_gradient& n : awkward(dtype, d)) {
        INFO(n.name << ", d " << d << ", type " << dtype);
        for (const char* s : {"sparsify=topr(ratio=0.01) ", "sparsify=topr(ratio=0.6) "})
          both_ways(s + std::string("index=golomb value=raw") + flat,
                    {make(dtype, 500, 3), n.g, make(dtype, 0, 4), n.g}, {}, 1, 3);
      }
  gradients fed;  // the radix over residuals
  for (const named_gradient& n : awkward(DR_F16, 5000)) fed.push_back(n.g);
  for (gradient& g : fed) g.set(0, 0.25f), g.give_state();
  both_ways("sparsify=topr(ratio=0.3) feedback=residual index=golomb value=raw" + flat, fed);
  gradients same(7, make_of(DR_F32, 4001, 1, [](uint64_t, rng&) { return 0.25f; }));
  for (gradient& g : same) g.give_state();
  both_ways("sparsify=topr(ratio=0.3) feedback=residual index=golomb value=raw" + flat, same);
  require_no_trouble();
}

TEST_CASE("a value that is not finite is a fault of its tensor and element, not of the bucket's") {
  for (const dr_dtype dtype : value_types)
    for (const uint64_t d : {uint64_t{500}, uint64_t{5000}})
      for (const named_gradient& n : not_finite(dtype, d)) {
        INFO(n.name << ", d " << d << ", type " << dtype);
        for (const char* p :
             {"index=golomb value=qsgd", "index=raw value=fit_poly", "index=bloom(fpr=0.01) value=qsgd"})
          both_ways(std::string("sparsify=topr(ratio=0.1) ") + p + flat,
                    {make(dtype, 700, 1), make(dtype, 0, 3), n.g, make(dtype, 4000, 2)});
      }
  require_no_trouble();
}

TEST_CASE("feedback of a bucket: a state for each tensor, which continues as on the CPU") {
  for (const char* p : {"index=golomb value=qsgd", "index=raw value=fit_poly",
                        "index=bloom(policy=p0,fpr=0.01) value=qsgd", "index=bloom(fpr=0.02) value=raw"})
    for (const char* s : {"sparsify=topr(ratio=0.05) feedback=residual(beta=0.9,gamma=0.5) ",
                          "sparsify=threshold(value=2,max_ratio=0.2) feedback=residual "})
      for (const dr_dtype dtype : value_types) {
        const uint64_t d = only_small() ? 3000 : 40000;
        for (const std::vector<uint64_t>& sizes : {std::vector<uint64_t>{300, 0, 1, 41}, {400, d, 0, 9001, 3}})
          steps_with_states(std::string(s) + p + flat, bucket_of(dtype, sizes), 1);
      }
  require_no_trouble();
}

TEST_CASE("a state that is none is a fault of its tensor, and no state of the bucket changes but for a header") {
  gradients own = bucket_of(DR_F32, {3000, 0, 9000, 500, 20});
  for (gradient& g : own) g.give_state();
  const placed_batch b("sparsify=topr(ratio=0.05) feedback=residual index=golomb value=qsgd" + flat, own);
  for (gradient& g : own) g.state[0] = 0;
  own[3].state[0] = 5;
  own[2].state[0] = 6;
  own[2].state[5] = 0x7fc000007fc00000;  // stays: it may be anything
  sender at(b, own);
  const encoded got = at.encode();
  CHECK(got.status == DR_E_ARGUMENT);
  CHECK(got.result.tensor == 2);
  for (size_t i = 0; i < own.size(); ++i) {
    auto state = at.state(i);
    if (i != 2 && i != 3) state[0] = own[i].state[0], state[1] = own[i].state[1];
    CHECK(state == own[i].state);
  }
  require_no_trouble();
}

TEST_CASE("buckets merge into their tensors, to the CPU's bit") {
  for (const char* pair :
       {"sparsify=topr(ratio=0.1) index=golomb value=qsgd", "sparsify=topr(ratio=0.002) index=golomb value=raw",
        "sparsify=topr(ratio=0.02) index=golomb value=raw", "sparsify=topr(ratio=0.2) index=golomb value=fit_poly",
        "sparsify=none index=golomb value=raw"})
    for (const dr_dtype dtype : value_types)
      for (const size_t k : {size_t{1}, size_t{2}, size_t{9}}) {
        const std::string text = pair + flat;
        const std::vector<uint64_t> sizes = only_small() ? std::vector<uint64_t>{4500, 0, 4097, 3, 1, 8192, 0}
                                                         : std::vector<uint64_t>{300000, 0, 4097, 3};
        require_same_merge(text, dtype, k, [&](size_t i) { return bucket_of(dtype, sizes, 10 * i); });
      }
  require_no_trouble();
}

TEST_CASE("a bucket without a prepared batch, and a frame of one tensor that its receiver has in parts") {
  for (const uint32_t width : {1u, 3u}) {
    const plan p("sparsify=" + std::string(width == 1 ? "topr(ratio=0.05)" : "none") + " index=golomb value=qsgd");
    gradients whole{make(DR_F32, 9100, 3, 0.7, width)};
    const bytes want = encode_on_cpu(p, whole).frame;
    gradients parts;
    for (const uint64_t d : {uint64_t{4100}, uint64_t{0}, uint64_t{5000}})
      parts.push_back(make(DR_F32, d, 1, 0, width));
    const place::stream stream;
    const dr_place at = stream.at();
    context c;
    const place::buffer frame = buffer_with(want.data(), want.size());
    std::vector<place::buffer> values;
    std::vector<dr_tensor_out> outs;
    for (const gradient& g : parts) {
      values.emplace_back(out_size(g, true));
      outs.push_back(out_for(g, true, values.back().at()));
    }
    const auto decode = [&] {
      return dr_decode(c.handle, &at, frame.at(), want.size(), nullptr, outs.data(), sizeof outs[0], outs.size());
    };
    REQUIRE(decode() == DR_OK);
    const decoded host = decode_on_cpu(want, parts, true);
    for (size_t i = 0; i < outs.size(); ++i) require_same(values[i].bytes(), host.values[i], "values");
    outs[2].universe = 4999;
    CHECK(decode() == DR_E_ARGUMENT);
    CHECK(c.error().find("9100") != std::string::npos);
    for (const place::buffer& v : values) CHECK(v.intact());
  }
  require_no_trouble();
}

TEST_CASE("launches do not grow with the tensors of a bucket") {
  for (const std::string& pair : pairs_of_codecs()) {
    const std::string text = "sparsify=topr(ratio=0.05) " + pair + flat;
    const auto launches = [&](size_t n) {
      gradients all;
      for (size_t i = 0; i < n; ++i) all.push_back(make(DR_F32, 32200 / n, i));
      return placed_batch(text, all).info.launches;
    };
    CHECK(launches(161) == launches(41));
    CHECK(launches(1) <= launches(41));  // one block may do all of a small one
  }
}

}  // namespace
