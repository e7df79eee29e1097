// Faults of the published code (DeepReduce, TF and PyTorch), each as a promise that ours keeps.
#include <cstdlib>
#include <limits>

#include "client.hpp"

using namespace client;

namespace {

const char* const topr = "sparsify=topr(ratio=0.02) ";

// Every decoded value is the gradient's own at that index.
void check_own_values(const floats& g, const pairs& p) {
  for (size_t i = 0; i < p.indices.size(); ++i) CHECK(p.values[i] == g[p.indices[i]]);
}

}  // namespace

TEST_CASE("with Bloom in both modes, false positives carry the gradient's own values, none is shifted") {
  context c;
  const floats g = laplace(20000, 4);
  for (const char* index : {"index=bloom(fpr=0.02)", "index=bloom(policy=p0,fpr=0.02)"}) {
    CAPTURE(index);
    check_own_values(g, decode_sparse(c, encode(c, std::string(topr) + index + " value=raw", {dense(g)})));
  }
}

TEST_CASE("naive is what the paper means by it: the first false positive shifts every value behind it") {
  context c;
  const floats g = laplace(20000, 4);
  const pairs kept = decode_sparse(c, encode(c, std::string(topr) + "index=golomb", {dense(g)}));
  const pairs naive = decode_sparse(c, encode(c, std::string(topr) + "index=bloom(policy=naive,fpr=0.02)", {dense(g)}));
  CHECK(naive.values == kept.values);
  CHECK(naive.indices != kept.indices);
}

TEST_CASE("p0 keeps r out of the values, whatever codes them") {
  context c;
  const floats g = laplace(20000, 5);
  for (const char* value : {"qsgd", "fit_poly", "raw+deflate"}) {
    CAPTURE(value);
    const bytes frame = encode(c, std::string(topr) + "index=bloom(policy=p0,fpr=0.01) value=" + value, {dense(g)});
    CHECK(inspect(frame).count == 400);
    CHECK(inspect(frame).support > 400);
    decode(c, frame, g.size());
  }
}

TEST_CASE("counts beyond 2^24 are exact") {
  context c;
  const uint64_t d = (1u << 24) + 40, r = (1u << 24) + 3;
  std::vector<uint16_t> half(d, 0);
  for (uint64_t i = 0; i < r; ++i) half[i] = 0x3c00;
  dr_tensor t{};
  t.struct_size = sizeof t;
  t.dtype = DR_F16;
  t.universe = d;
  t.values = half.data();
  CHECK(inspect(encode(c, "index=golomb(block=13) value=qsgd(levels=1,bucket=4096)", {t})).count == r);
}

TEST_CASE("frames of different sizes tell their own, so padded gathers decode") {
  context c;
  const floats g = laplace(5000, 6);
  bytes frame = encode(c, std::string(topr) + "index=bloom(policy=p0,fpr=0.01) value=fit_poly", {dense(g)});
  const floats alone = decode(c, frame, g.size());
  frame.resize(frame.size() + 1000, 0xa5);
  CHECK(same_bits(decode(c, frame, g.size()), alone));
}

TEST_CASE("no global random state is touched, and draws differ from step to step and rank to rank") {
  context c;
  const floats g = laplace(5000, 7);
  const std::string plan = std::string(topr) + "index=golomb value=qsgd";
  dr_call call{};
  std::srand(11);
  const int expected = std::rand();
  std::srand(11);
  const bytes first = encode(c, plan, {dense(g)}, call);
  CHECK(std::rand() == expected);
  CHECK(encode(c, plan, {dense(g)}, call) == first);
  call.step = 1;
  CHECK(encode(c, plan, {dense(g)}, call) != first);
  call.step = 0;
  call.private_seed = 1;
  CHECK(encode(c, plan, {dense(g)}, call) != first);
}

TEST_CASE("an order of any length fits its bits, powers of two and a single value too") {
  context c;
  for (uint64_t n = 1; n <= 70; ++n) {
    CAPTURE(n);
    floats g(2000, 0);
    rng r{n};
    for (uint64_t i = 0; i < n; ++i) g[29 * i % 2000] = r.laplace(1) + 3;
    const floats decoded = decode(c, encode(c, "index=golomb value=fit_poly", {dense(g)}), g.size());
    double error = 0, norm = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      error += std::pow(double{g[i]} - double{decoded[i]}, 2);
      norm += double{g[i]} * double{g[i]};
    }
    CHECK(error < 0.02 * norm);  // in the wrong order it would be far off
  }
}

TEST_CASE("a fit stands one-sided, short and constant curves") {
  context c;
  for (const float sign : {1.0f, -1.0f})
    for (const uint64_t n : {1, 2, 5, 6, 7, 30, 31, 155, 156, 1000}) {
      CAPTURE(n);
      floats g(n, sign * 0.25f);
      const floats decoded = decode(c, encode(c, "index=raw value=fit_poly", {dense(g)}), n);
      for (const float v : decoded) CHECK(v == doctest::Approx(sign * 0.25f));
    }
}

TEST_CASE("p0 on sparse input without re-gathering sends zeros for what it does not know") {
  context c;
  const std::vector<uint64_t> indices{5, 900, 44, 3000, 17};
  const floats values{1, 2, 3, 4, 5};
  for (const char* regather : {"", " regather=off"}) {
    const pairs p = decode_sparse(
        c, encode(c, std::string("index=bloom(policy=p0,fpr=0.05)") + regather, {sparse(indices, values, 5000)}));
    CHECK(p.indices.size() > 5);
    float sum = 0;
    for (const float v : p.values) sum += v;
    CHECK(sum == 15);
  }
}

TEST_CASE("a filter works beyond 18 million elements and with many hashes") {
  context c;
  std::vector<uint64_t> indices;
  floats values;
  for (uint64_t i = 0; i < 50; ++i) {
    indices.push_back(i * 399'989 + 7);
    values.push_back(static_cast<float>(i + 1));
  }
  const bytes frame = encode(c, "index=bloom(policy=p0,fpr=1e-12)", {sparse(indices, values, 20'000'000)});
  // More elements to ask than a frame of this size may have without a limit that says so.
  const dr_decode_options options{.struct_size = sizeof options, .max_elements = 20'000'000};
  const pairs p = decode_sparse(c, frame, &options);
  CHECK(p.indices == indices);
  CHECK(p.values == values);
  CHECK(std::string(inspect(frame).plan).find("k=40") != std::string::npos);
}

TEST_CASE("QSGD yields zeros for a zero bucket, and takes more levels than a byte holds") {
  context c;
  floats g(1200, 0);
  for (size_t i = 512; i < 1200; ++i) g[i] = static_cast<float>(i) * 1e-3f;
  std::vector<uint64_t> all(g.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  for (const int levels : {1, 127, 128, 255, 256, 32767}) {
    CAPTURE(levels);
    const floats decoded = decode(
        c, encode(c, "index=golomb value=qsgd(levels=" + std::to_string(levels) + ")", {sparse(all, g, g.size())}),
        g.size());
    for (size_t i = 0; i < 512; ++i) CHECK(decoded[i] == 0);
    for (size_t i = 512; i < 1200; ++i) CHECK(std::abs(decoded[i] - g[i]) <= 25.0f / static_cast<float>(levels));
  }
}

TEST_CASE("NaN and infinities are carried bit for bit by exact codecs and refused by lossy ones, with the place") {
  context c;
  floats g = laplace(3000, 8);
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    g[1234] = odd;
    const floats decoded =
        decode(c, encode(c, std::string(topr) + "index=golomb value=raw+deflate", {dense(g)}), g.size());
    CHECK(std::memcmp(&decoded[1234], &g[1234], 4) == 0);
    for (const char* value : {"qsgd", "fit_poly"}) {
      bytes frame;
      CHECK(try_encode(c, std::string(topr) + "index=golomb value=" + value, {dense(g)}, frame) == DR_E_ARGUMENT);
      CHECK(c.error().find("1234") != std::string::npos);
      CHECK(c.error().find(value) != std::string::npos);
    }
  }
}

TEST_CASE("empty, all-zero, one-element and full tensors pass through every codec") {
  context c;
  const floats none, zeros(100, 0), one{3}, full = laplace(500, 9);
  for (const char* index : {"raw", "golomb", "rice", "bloom(fpr=0.1)", "bloom(policy=p0,fpr=0.1)"})
    for (const char* value : {"raw", "qsgd", "fit_poly", "raw+deflate"}) {
      CAPTURE(index);
      CAPTURE(value);
      for (const floats* g : {&none, &zeros, &one, &full}) {
        const bytes frame = encode(c, std::string("index=") + index + " value=" + value, {dense(*g)});
        const floats decoded = decode(c, frame, g->size());
        if (g == &zeros) CHECK(same_bits(decoded, zeros));
        CHECK(frame.size() <= 4 * g->size() + 64);  // no tensor costs more than the dense one and its row
      }
    }
}

TEST_CASE("universes beyond 2^31 and 2^32 work, in segments where they must") {
  context c;
  for (const uint64_t universe :
       {(uint64_t{1} << 31) + 5, (uint64_t{1} << 32) - 1, uint64_t{1} << 32, (uint64_t{1} << 34) + 123}) {
    CAPTURE(universe);
    const std::vector<uint64_t> indices{0, 1, 77, universe / 2, universe - 2, universe - 1};
    const floats values{1, -2, 3, -4, 5, -6};
    for (const char* index : {"raw", "golomb", "rice"}) {
      const bytes frame = encode(c, std::string("index=") + index, {sparse(indices, values, universe)});
      CHECK(inspect(frame).universe == universe);
      const pairs p = decode_sparse(c, frame);
      CHECK(p.indices == indices);
      CHECK(p.values == values);
    }
  }
}
