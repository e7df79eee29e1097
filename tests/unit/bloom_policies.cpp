// How much of a support each policy of index=bloom gives back: what the published figures promise, and more.
#include <algorithm>
#include <iterator>
#include <random>

#include "client.hpp"

using namespace client;

namespace {

std::vector<uint32_t> uniform_support(uint64_t d, uint64_t r, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> support;
  for (uint64_t i = 0; support.size() < r; ++i)
    if (random() % (d - i) < r - support.size()) support.push_back(static_cast<uint32_t>(i));
  return support;
}

// Mean share of the r true indices among the decoded ones, over supports and filter seeds.
double recovered(context& c, const std::string& index, uint64_t d, uint64_t r, uint64_t rounds) {
  double sum = 0;
  const floats values(r, 1.0f);
  for (uint64_t seed = 0; seed < rounds; ++seed) {
    const auto support = uniform_support(d, r, 1000 + seed);
    const std::string plan = "index=bloom(" + index + ",seed=" + std::to_string(1000 * seed) + ")";
    dr_call call{};
    call.seed = seed;
    const pairs got = decode_sparse(c, encode(c, plan, {sparse(support, values, d)}, call));
    std::vector<uint64_t> both;
    std::set_intersection(support.begin(), support.end(), got.indices.begin(), got.indices.end(),
                          std::back_inserter(both));
    sum += static_cast<double>(both.size()) / static_cast<double>(r);
  }
  return sum / static_cast<double>(rounds);
}

struct row {
  uint64_t d, r;
  const char* fpr;
  double published, ours;  // p2: the published code's rule, and what ours has on average, less three standard errors
  uint64_t rounds;
};
constexpr row rows[] = {{36864, 368, "0.001", 0.9993, 0.9993, 200},  {36864, 368, "0.002", 0.9938, 0.9973, 100},
                        {36864, 368, "0.004", 0.9656, 0.989, 100},   {36864, 368, "0.01", 0.8129, 0.905, 100},
                        {36864, 368, "0.02", 0.5447, 0.670, 100},    {36864, 3686, "0.01", 0.9866, 0.9903, 20},
                        {2359296, 23592, "0.001", 0.9980, 0.9988, 3}};

}  // namespace

TEST_CASE("p2 returns at least what the published rule does, and p1 what chance does") {
  context c;
  for (const row& x : rows) {
    const std::string fpr = std::string(",fpr=") + x.fpr;
    CAPTURE(x.d);
    CAPTURE(fpr);
    const double p2 = recovered(c, "policy=p2" + fpr, x.d, x.r, x.rounds);
    CHECK(p2 >= x.published);
    CHECK(p2 >= x.ours);
    const double d = static_cast<double>(x.d), r = static_cast<double>(x.r);
    const double chance = r / (r + std::strtod(x.fpr, nullptr) * (d - r));
    for (const char* policy : {"leftmost", "middle", "rightmost", "p1"}) {
      CAPTURE(policy);
      CHECK(recovered(c, "policy=" + std::string(policy) + fpr, x.d, x.r, std::max<uint64_t>(3, x.rounds / 10)) ==
            doctest::Approx(chance).epsilon(0.06));
    }
    CHECK(recovered(c, "policy=p0" + fpr, x.d, x.r, 2) == 1);
  }
}

TEST_CASE("split blocks keep the rate that was asked for, and the policies' promises") {
  context c;
  const uint64_t d = 300000, r = 3000;
  const floats values(r, 1.0f);
  for (const char* fpr : {"0.1", "0.01", "0.001"}) {
    CAPTURE(fpr);
    double positives = 0;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const std::string plan =
          std::string("index=bloom(policy=p0,layout=split_block,fpr=") + fpr + ",seed=" + std::to_string(seed) + ")";
      positives +=
          static_cast<double>(inspect(encode(c, plan, {sparse(uniform_support(d, r, seed), values, d)})).support);
    }
    const double rate = (positives / 5 - r) / (d - r);
    CHECK(rate == doctest::Approx(std::strtod(fpr, nullptr)).epsilon(0.15));
  }
  CHECK(recovered(c, "policy=p2,layout=split_block,fpr=0.001", d, r, 3) > 0.99);
}

TEST_CASE("bits yields a filter of that many bits an index, whatever the row's size") {
  context c;
  for (const char* layout : {"standard", "split_block"})
    for (const uint64_t r : {400, 4000}) {
      CAPTURE(layout);
      const floats values(r, 1.0f);
      const auto e = encode(c, std::string("index=bloom(bits=12.8,layout=") + layout + ")",
                            {sparse(uniform_support(100000, r, 1), values, 100000)});
      CHECK(static_cast<double>(inspect(e).index_size) == doctest::Approx(1.6 * static_cast<double>(r)).epsilon(0.03));
    }
  bytes frame;
  const floats values(3, 1.0f);
  const std::vector<uint32_t> three{1, 5, 9};
  CHECK(try_encode(c, "index=bloom(bits=8,fpr=0.01)", {sparse(three, values, 100)}, frame) == DR_E_ARGUMENT);
  CHECK(c.error().find("not both") != std::string::npos);
  CHECK(try_encode(c, "index=bloom(layout=split_block,fpr=1e-19)", {sparse(three, values, 100)}, frame) ==
        DR_E_ARGUMENT);
  CHECK(try_encode(c, "index=bloom(bits=8)", {sparse(three, values, 3)}, frame) == DR_E_ARGUMENT);
}

TEST_CASE("p0 falls back to raw keys above max_ratio, and not at it") {
  context c;
  const uint64_t d = 5000, r = 100;
  const floats values(r, 1.0f);
  const auto support = uniform_support(d, r, 3);
  const auto with = [&](uint64_t most) {
    const std::string ratio = std::to_string((static_cast<double>(most) + 0.5) / static_cast<double>(d));
    return inspect(encode(c, "index=bloom(policy=p0,fpr=0.1,max_ratio=" + ratio + ")", {sparse(support, values, d)}));
  };
  const uint64_t positives = inspect(encode(c, "index=bloom(policy=p0,fpr=0.1)", {sparse(support, values, d)})).support;
  REQUIRE(positives > r);
  CHECK(with(positives).fallback == DR_FALLBACK_NONE);
  CHECK(with(positives).support == positives);
  CHECK(with(positives - 1).fallback == DR_FALLBACK_RAW_INDEX);
  CHECK(with(positives - 1).support == r);
}

TEST_CASE("policies that choose among all positives fall back where these are too many, to the last") {
  context c;
  const uint64_t d = 40000, r = 100, most = 4 * r + d / 32 + 4096;
  const floats values(r, 1.0f);
  const auto support = uniform_support(d, r, 5);
  bool within = false, beyond = false;
  for (const char* fpr : {"0.11", "0.12", "0.125", "0.13", "0.14", "0.16", "0.2"}) {
    const std::string rest = std::string(",fpr=") + fpr + ",max_ratio=1)";
    const uint64_t n = inspect(encode(c, "index=bloom(policy=p0" + rest, {sparse(support, values, d)})).support;
    for (const char* policy : {"middle", "p1", "p2"}) {
      const auto frame = encode(c, std::string("index=bloom(policy=") + policy + rest, {sparse(support, values, d)});
      CHECK((inspect(frame).fallback == DR_FALLBACK_NONE) == (n <= most));
      CHECK(decode_sparse(c, frame).indices.size() == r);
    }
    within |= n <= most;
    beyond |= n > most;
  }
  CHECK(within);
  CHECK(beyond);
}

TEST_CASE("frames and decodes of large rows do not depend on the number of threads") {
  const uint64_t d = 3'000'001;
  floats g(d);
  for (uint64_t i = 0; i < d; ++i) g[i] = static_cast<float>(i * 2654435761u % 1000003);
  context one, many(5);
  for (const char* policy : {"leftmost", "p0", "middle", "rightmost", "p1", "p2"})
    for (const char* layout : {"standard", "split_block"}) {
      const std::string plan =
          std::string("sparsify=topr(count=3000) index=bloom(policy=") + policy + ",fpr=0.001,layout=" + layout + ")";
      CAPTURE(plan);
      const std::vector<dr_tensor> tensors{dense(g)};
      const bytes frame = encode(one, plan, tensors);
      CHECK((encode(many, plan, tensors) == frame));
      const pairs a = decode_sparse(one, frame), b = decode_sparse(many, frame);
      CHECK((a.indices == b.indices));
      CHECK((a.values == b.values));
    }
}

TEST_CASE("a filter that would have more than 16 bits for each element is not made: keys are sent, or the dense row") {
  context c;
  const floats g = laplace(10000, 4);
  for (const char* index : {"policy=leftmost", "policy=p0", "policy=naive", "policy=middle", "policy=rightmost",
                            "policy=p1", "policy=p2", "policy=p0,layout=split_block", "policy=p2,layout=split_block"})
    for (const char* tail : {"", "+huffman", "+zstd"}) {
      // 40 bits an index: of 45 % of the elements too many, of 40 % not.
      const auto plan = [&](const char* ratio) {
        return "sparsify=topr(ratio=" + std::string(ratio) + ") index=bloom(bits=40," + index + ")" + tail;
      };
      const bytes few = encode(c, plan("0.39"), {dense(g)}), many = encode(c, plan("0.45"), {dense(g)});
      CAPTURE(plan("0.45"));
      CHECK(inspect(few).fallback == DR_FALLBACK_NONE);
      CHECK(inspect(many).fallback == DR_FALLBACK_RAW_INDEX);
      const floats x = decode(c, many, g.size());
      size_t kept = 0, right = 0;
      for (size_t i = 0; i < g.size(); ++i) {
        kept += x[i] != 0;
        right += x[i] == g[i];
      }
      CHECK(kept == 4500);
      CHECK(right == 4500);
    }
  const bytes whole = encode(c, "index=bloom(fpr=1e-9)", {dense(g)});
  CHECK(inspect(whole).fallback == DR_FALLBACK_DENSE);
  CHECK(same_bits(decode(c, whole, g.size()), g));
}
