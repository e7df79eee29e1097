// What papers prove of codecs that draw, over many seeds: no bias, Lemma 9 of DeepReduce (Xu et al. 2021) for P1, and
// means whose error falls as 1 / n. A z-score is a sample mean's distance to what is expected, in standard errors;
// seeds are fixed, so a test that passes once passes always, and |z| < 4 leaves a fair one a chance of 6e-5 to have
// failed on the day it was written.
#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "client.hpp"

using namespace client;

namespace {

constexpr double widest_z = 4;

class sample {
 public:
  void add(double x) {
    ++n_;
    const double step = x - mean_;
    mean_ += step / n_;
    squares_ += step * (x - mean_);
  }
  double mean() const { return mean_; }
  double z(double expected) const { return (mean_ - expected) / std::sqrt(squares_ / (n_ - 1) / n_); }

 private:
  double n_ = 0, mean_ = 0, squares_ = 0;
};

double squared(const floats& v) {
  return std::accumulate(v.begin(), v.end(), 0.0, [](double sum, double x) { return sum + x * x; });
}

// scale * got - x, squared and summed.
double squared_error(const floats& x, const floats& got, double scale = 1) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += std::pow(scale * double{got[i]} - double{x[i]}, 2);
  return sum;
}

// What one rank sends of x. Seeds are those of dr_call: `seed` all ranks share, `own` is the rank's.
floats sent(context& c, const std::string& plan, const floats& x, uint64_t seed, uint64_t own) {
  return decode(c, encode(c, plan, {dense(x)}, {.seed = seed, .private_seed = own}), x.size());
}

// As Laplace, as ramp (the largest last, so a rule that prefers low positions shows) and with a few large ones.
struct shape {
  const char* name;
  floats values;
};
std::vector<shape> shapes(uint64_t d) {
  floats ramp(d), spikes = laplace(d, 8, 1e-4);
  for (uint64_t i = 0; i < d; ++i) ramp[i] = (i % 2 ? -1.0f : 1.0f) * static_cast<float>(i + 1) / static_cast<float>(d);
  for (uint64_t i = d - 5; i < d; ++i) spikes[i] = 1;
  return {{"laplace", laplace(d, 7)}, {"ramp", ramp}, {"spikes", spikes}};
}

// Weights of sums that a bias would show in: of everything, towards or away from zero, of each half, of large and small
// ones.
std::vector<floats> weights_for(const floats& x) {
  const size_t d = x.size();
  floats ones(d, 1), signs(d), first(d), large(d), any(d);
  floats sorted(d);
  std::transform(x.begin(), x.end(), sorted.begin(), [](float v) { return std::fabs(v); });
  std::nth_element(sorted.begin(), sorted.begin() + d / 2, sorted.end());
  const float median = sorted[d / 2];
  rng random{99};
  for (size_t i = 0; i < d; ++i) {
    signs[i] = x[i] < 0 ? -1.0f : 1.0f;
    first[i] = i < d / 2 ? signs[i] : 0;
    large[i] = std::fabs(x[i]) > median ? signs[i] : 0;
    any[i] = random.next() & 1 ? 1.0f : -1.0f;
  }
  return {ones, signs, first, large, any, x};
}

// scale * (what is decoded of `from`) is x in the mean over seeds; error: its expected squared error.
void check_unbiased(const std::string& plan, const floats& from, const floats& x, double scale, double error, int seeds,
                    bool private_seeds) {
  context c;
  const auto weights = weights_for(x);
  std::vector<sample> sums(weights.size());
  sample errors;
  for (int seed = 1; seed <= seeds; ++seed) {
    const auto key = static_cast<uint64_t>(seed);
    const floats got = private_seeds ? sent(c, plan, from, 5, key) : sent(c, plan, from, key, 0);
    for (size_t k = 0; k < weights.size(); ++k) {
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += double{weights[k][i]} * (scale * double{got[i]} - double{x[i]});
      sums[k].add(sum);
    }
    errors.add(squared_error(x, got, scale));
  }
  for (size_t k = 0; k < sums.size(); ++k) {
    CAPTURE(k);
    CHECK(std::fabs(sums[k].z(0)) < widest_z);
  }
  CHECK(std::fabs(errors.z(error)) < widest_z);
}

// Of QSGD: s = levels |v| / norm lies p above a whole number, and is rounded up with probability p: (norm / levels)² p
// (1 - p).
double qsgd_variance(const floats& x, double levels, size_t bucket) {
  double sum = 0;
  for (size_t begin = 0; begin < x.size(); begin += bucket) {
    const floats part(x.begin() + static_cast<ptrdiff_t>(begin),
                      x.begin() + static_cast<ptrdiff_t>(std::min(begin + bucket, x.size())));
    const double norm = static_cast<float>(std::sqrt(squared(part)));
    for (const float v : part) {
      const double scaled = levels * std::fabs(double{v}) / norm, p = scaled - std::floor(scaled);
      sum += std::pow(norm / levels, 2) * p * (1 - p);
    }
  }
  return sum;
}

// Sum of weight * frame, which is what every rank computes of what all send.
floats merged(context& c, const std::vector<bytes>& frames, float weight, uint64_t d) {
  std::vector<dr_bytes> list;
  for (const bytes& f : frames) list.push_back({f.data(), f.size()});
  const floats weights(frames.size(), weight);
  floats values(d, -77);
  dr_tensor_out out = dense_out(values);
  const dr_status s =
      dr_merge(c.handle, nullptr, list.data(), weights.data(), list.size(), nullptr, &out, sizeof out, 1);
  INFO(c.error());
  REQUIRE(s == DR_OK);
  return values;
}

// n times the squared error of the mean of n ranks, over groups of n ranks of their own.
sample error_of_means(const std::string& plan, const floats& x, double scale, uint64_t n, uint64_t groups,
                      const std::function<dr_call(uint64_t rank)>& call_of) {
  context c;
  sample errors;
  for (uint64_t group = 0; group < groups; ++group) {
    std::vector<bytes> frames;
    for (uint64_t rank = 0; rank < n; ++rank)
      frames.push_back(encode(c, plan, {dense(x)}, call_of(group * n + rank + 1)));
    const floats mean = merged(c, frames, static_cast<float>(scale / static_cast<double>(n)), x.size());
    errors.add(static_cast<double>(n) * squared_error(x, mean));
  }
  return errors;
}

}  // namespace

// dgc keeps the largest, so it is biased, on purpose; it draws where it looks only (unit/chance_sparsifiers.cpp).
TEST_CASE("each codec that draws is in the tests below, but for dgc") {
  std::set<std::string> drawing;
  for (size_t i = 0; i < dr_codec_count(); ++i)
    if (dr_codec_at(i)->traits & (DR_SHARED_RANDOM | DR_PRIVATE_RANDOM)) drawing.insert(dr_codec_at(i)->name);
  CHECK(drawing == std::set<std::string>{"qsgd", "ternary", "natural", "seeded", "random", "bloom", "dgc"});
}

TEST_CASE("qsgd: no bias over private seeds, and the variance that its paper derives") {
  for (const auto& [name, x] : shapes(1500))
    for (const auto& [levels, bucket] : {std::pair{1, 64}, {4, 512}, {127, 512}}) {
      CAPTURE(std::string(name));
      CAPTURE(levels);
      const std::string value = "qsgd(levels=" + std::to_string(levels) + ",bucket=" + std::to_string(bucket) + ")";
      check_unbiased("index=all value=" + value, x, x, 1, qsgd_variance(x, levels, static_cast<size_t>(bucket)), 600,
                     true);
    }
}

// Of natural: |v| = 2^e (1 + p) is rounded up with probability p: 4^e p (1 - p), at most v² / 8 (Horváth et al. 2019).
double natural_variance(const floats& x) {
  double sum = 0;
  for (const float v : x) {
    const double power = v != 0 ? std::ldexp(1.0, std::ilogb(v)) : 1, p = v != 0 ? std::fabs(double{v}) / power - 1 : 0;
    sum += power * power * p * (1 - p);
  }
  return sum;
}

TEST_CASE("natural: no bias over private seeds, and the variance that its paper derives, at most an eighth") {
  for (const auto& [name, x] : shapes(1500)) {
    CAPTURE(std::string(name));
    CHECK(natural_variance(x) <= squared(x) / 8);
    check_unbiased("index=all value=natural", x, x, 1, natural_variance(x), 600, true);
  }
  floats thirds(1500, 4.0f / 3);  // where the bound is reached
  for (size_t i = 0; i < thirds.size(); i += 3) thirds[i] = -8.0f / 3;
  CHECK(std::fabs(natural_variance(thirds) / (squared(thirds) / 8) - 1) < 1e-6);
  check_unbiased("index=all value=natural", thirds, thirds, 1, natural_variance(thirds), 600, true);
}

// Wen et al. 2017: E of what is sent is the clipped value, and of each the variance is |v| (s - |v|).
TEST_CASE("ternary: no bias over private seeds but for the clipping, and TernGrad's variance") {
  for (const auto& [name, x] : shapes(1500))
    for (const double clip : {0.0, 2.5, 1.0}) {
      CAPTURE(std::string(name));
      CAPTURE(clip);
      const double n = static_cast<double>(x.size()), mean = std::accumulate(x.begin(), x.end(), 0.0) / n,
                   deviation = std::sqrt(squared(x) / n - mean * mean);
      double scale = std::fabs(
          *std::max_element(x.begin(), x.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
      if (clip > 0) scale = std::min(scale, clip * deviation);
      floats clipped = x;
      double variance = 0;
      for (float& v : clipped) {
        v = std::clamp(v, static_cast<float>(-scale), static_cast<float>(scale));
        variance += std::fabs(double{v}) * (scale - std::fabs(double{v}));
      }
      check_unbiased("index=all value=ternary(clip=" + std::to_string(clip) + ")", x, clipped, 1, variance, 600, true);
    }
}

// E ||(d / r) C(x) - x||² = (d / r - 1) ||x||²: Stich et al. 2018.
TEST_CASE("random and seeded: d / r times what is selected has no bias over shared seeds, and Random-k's variance") {
  constexpr double d = 1500, r = 150;
  for (const auto& [name, x] : shapes(1500))
    for (const char* plan :
         {"sparsify=random(count=150) index=golomb value=raw", "index=seeded(count=150) value=raw"}) {
      CAPTURE(std::string(name));
      CAPTURE(std::string(plan));
      check_unbiased(plan, x, x, d / r, (d / r - 1) * squared(x), 2000, false);
    }
}

// Given the filter, P1 keeps each r of its positives P as often as any other: E ||x - C(x)||² = ||x||² - (r / |P|)
// ||x_P||². Lemma 9: behind Top-r that is at most (1 - r / d) ||x||²; behind Random-r, whose P is as good as random, it
// is just that.
TEST_CASE("bloom p1: the contraction of Lemma 9, behind Top-r, Random-r and on a gradient that is sparse") {
  constexpr uint64_t d = 3000, r = 60;
  const std::string filter = "index=bloom(fpr=0.02,policy=";
  const auto lost = [&](const std::string& plan, const floats& x) {
    context c;
    sample errors;
    for (uint64_t seed = 1; seed <= 1500; ++seed) errors.add(squared_error(x, sent(c, plan, x, seed, 0)) / squared(x));
    return errors;
  };
  auto inputs = shapes(d);
  floats sparse(d);
  for (uint64_t i = 0; i < r; ++i) sparse[i * d / r + i % 7] = 1 + static_cast<float>(i) / r;
  inputs.push_back({"sparse", sparse});
  for (const auto& [name, x] : inputs) {
    CAPTURE(std::string(name));
    const std::string sparsify = x == sparse ? "" : "sparsify=topr(count=60) ";
    context c;
    const floats positives = sent(c, sparsify + filter + "p0) value=raw", x, 1, 0);
    const dr_tensor_info p = inspect(encode(c, sparsify + filter + "p0) value=raw", {dense(x)}));
    REQUIRE(p.support > r + 20);
    const sample errors = lost(sparsify + filter + "p1) value=raw", x);
    const double share = double{r} / static_cast<double>(p.support);
    CHECK(std::fabs(errors.z(1 - share * squared(positives) / squared(x))) < widest_z);
    CHECK(errors.z(1 - double{r} / d) < widest_z);
    if (x == sparse) continue;
    const sample random = lost("sparsify=random(count=60) " + filter + "p1) value=raw", x);
    CHECK(std::fabs(random.z(1 - double{r} / d)) < widest_z);
  }
}

TEST_CASE("the mean of n ranks is off by 1 / n of what one is, if each draws by itself") {
  const floats x = laplace(1000, 7);
  const auto own_seed = [](uint64_t rank) { return dr_call{.seed = 5, .private_seed = rank}; };
  const auto own_support = [](uint64_t rank) { return dr_call{.seed = rank}; };
  const auto same = [](uint64_t) { return dr_call{.seed = 5, .private_seed = 1}; };
  const double qsgd = qsgd_variance(x, 4, 512), random = (10 - 1) * squared(x);
  const std::string quantised = "index=all value=qsgd(levels=4)",
                    kept = "sparsify=random(ratio=0.1) index=golomb value=raw";
  for (const uint64_t n : {1, 4, 16, 64}) {
    CAPTURE(n);
    const uint64_t groups = 1280 / n;
    CHECK(std::fabs(error_of_means(quantised, x, 1, n, groups, own_seed).z(qsgd)) < widest_z);
    CHECK(std::fabs(error_of_means(kept, x, 10, n, groups, own_support).z(random)) < widest_z);
  }
  // Ranks that share their seed make the same error, so it does not fall.
  CHECK(error_of_means(quantised, x, 1, 16, 2, same).mean() > 12 * qsgd);
}
