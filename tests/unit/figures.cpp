// The figures of the paper (Xu et al. 2021, Figs. 8 and 15) that the codecs must meet, to the byte.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "client.hpp"
#if defined(DR_WITH_INPUTS)
#include "tool/read/inputs.hpp"
#endif

using namespace client;

namespace {

constexpr double fig8_d = 36864, fig8_r = 368;

double per_nonzero(uint64_t size) { return 8 * static_cast<double>(size) / fig8_r; }
double volume(uint64_t size, double d) { return static_cast<double>(size) / (4 * d); }

// Of the values on the selected support.
double squared_relative_error(const floats& g, const floats& decoded) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < g.size(); ++i)
    if (decoded[i] != 0) {
      error += std::pow(double{g[i]} - double{decoded[i]}, 2);
      norm += double{g[i]} * double{g[i]};
    }
  return error / norm;
}

// What holds for Fig. 8's tensor, wherever it comes from. Bits are per true nonzero.
void check_fig8(const floats& g, double fit_poly_error) {
  context c;
  const auto run = [&](const char* streams) {
    return encode(c, std::string("sparsify=topr(ratio=0.01) ") + streams, {dense(g)});
  };
  REQUIRE(g.size() == 36864);

  const bytes golomb = run("index=golomb value=raw");
  const dr_tensor_info info = inspect(golomb);
  CHECK(info.count == 368);
  CHECK(volume(info.index_size + info.value_size, fig8_d) <= 0.0126);
  CHECK(volume(golomb.size(), fig8_d) <= 0.0128);

  const dr_tensor_info bloom = inspect(run("index=bloom(fpr=0.001) value=raw"));
  CHECK(per_nonzero(bloom.index_size) == doctest::Approx(14.38).epsilon(0.01));

  const bytes poly = run("index=golomb value=fit_poly");
  const dr_tensor_info fitted = inspect(poly);
  CHECK(per_nonzero(fitted.order_size) == doctest::Approx(9).epsilon(0.01));
  CHECK(per_nonzero(fitted.value_size) <= 2.5);
  CHECK(squared_relative_error(g, decode(c, poly, g.size())) <= fit_poly_error);
}

// Of all values that were sent, be they true or false positives.
double relative_error_of_sent(context& c, const floats& g, const bytes& frame) {
  const pairs sent = decode_sparse(c, frame);
  double error = 0, norm = 0;
  for (size_t i = 0; i < sent.indices.size(); ++i) {
    const double own = g[sent.indices[i]];
    error += std::pow(own - double{sent.values[i]}, 2);
    norm += own * own;
  }
  return std::sqrt(error / norm);
}

// A false positive's own value is near zero, and a piece of the curve must not span the jump from what was selected.
void check_fit_behind_bloom(const floats& g) {
  context c;
  for (const char* policy : {"p0", "p2", "leftmost"}) {
    CAPTURE(std::string(policy));
    const auto encoded = [&](const char* value) {
      const std::string index = std::string("index=bloom(fpr=0.001,policy=") + policy + ")";
      return encode(c, "sparsify=topr(ratio=0.01) " + index + " value=" + value, {dense(g)});
    };
    const bytes frame = encoded("fit_poly");
    CHECK(relative_error_of_sent(c, g, frame) <= 0.015);
    CHECK(frame.size() <= encoded("fit_poly(knots=fractions)").size() + 24);
    CHECK(relative_error_of_sent(c, g, encoded("fit_poly(knots=chord)")) <= 0.015);
  }
}

}  // namespace

TEST_CASE("Fig. 8's Laplace tensor behind a Bloom filter: fit_poly keeps its error, whatever the seed") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    check_fit_behind_bloom(laplace(36864, seed));
  }
}

TEST_CASE("fit_poly by itself has pieces behind a jump only where values come that were not selected") {
  context c;
  const floats g = laplace(36864, 1);
  const auto run = [&](const char* streams) {
    return encode(c, std::string("sparsify=topr(ratio=0.01) ") + streams, {dense(g)});
  };
  for (const char* index : {"index=golomb", "index=raw", "index=rice"})
    CHECK(run((std::string(index) + " value=fit_poly").c_str()) ==
          run((std::string(index) + " value=fit_poly(knots=fractions)").c_str()));
  CHECK(run("index=bloom value=fit_poly") == run("index=bloom value=fit_poly(knots=jump)"));
  CHECK(run("index=bloom value=fit_poly") != run("index=bloom value=fit_poly(knots=fractions)"));
}

TEST_CASE("Fig. 8's Laplace tensor costs what the definitions say") {
  for (const uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    const floats g = laplace(36864, seed);
    check_fig8(g, 2e-4);
    context c;
    const dr_tensor_info info = inspect(encode(c, "sparsify=topr(ratio=0.01) index=golomb value=raw", {dense(g)}));
    CHECK(per_nonzero(info.index_size) <= 8.20);

    const bytes uniform = encode(c, "sparsify=topr(ratio=0.01) index=golomb value=uniform_quant", {dense(g)});
    CHECK(per_nonzero(inspect(uniform).value_size) <= 6.4);
    CHECK(squared_relative_error(g, decode(c, uniform, g.size())) <= 2.5e-5);
  }
}

// What we set out to reach on Fig. 8's tensor: a frame of 0.33 % of dense with a squared error of 1.2e-2. 368 values
// are few, so what one seed meets is chance: those that meet both are counted.
TEST_CASE("Fig. 8's Laplace tensor over 20 seeds: volumes with their errors") {
  const struct {
    const char* streams;
    double most, most_error;  // of any seed
    int meet_both;            // seeds, at least
  } promises[] = {{"index=golomb value=uniform_quant(error=0.1095)", 0.0034, 1.2e-2, 16},
                  {"index=golomb value=lloyd(levels=2)", 0.0034, 1.95e-2, 7},
                  {"index=auto value=auto(error=0.07)", 0.0035, 4.9e-3, 0}};
  context c;
  for (const auto& p : promises) {
    CAPTURE(std::string(p.streams));
    int met = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      CAPTURE(seed);
      const floats g = laplace(36864, seed);
      const bytes frame = encode(c, std::string("sparsify=topr(ratio=0.01) ") + p.streams, {dense(g)});
      const double share = volume(frame.size(), fig8_d), error = squared_relative_error(g, decode(c, frame, g.size()));
      CHECK(share <= p.most);
      CHECK(error <= p.most_error);
      met += share <= 0.0033 && error <= 1.2e-2;
    }
    CHECK(met >= p.meet_both);
  }
}

TEST_CASE("quantised values of a million Laplace values keep to their bits and errors") {
  context c;
  const floats g = laplace(1000000, 5);
  const struct {
    const char* value;
    double bits, squared_error;
  } promises[] = {{"uniform_quant", 5.87, 2.5e-5},
                  {"uniform_quant(error=0.07)", 2.15, 4.9e-3},  // QSGD's error is 5e-3 at 8 bits
                  {"log_quant", 4.0, 6e-4},
                  {"lloyd(levels=2)", 1.6, 1.4e-2},
                  {"lloyd(levels=8)", 3.3, 1.3e-3}};
  for (const auto& p : promises) {
    CAPTURE(p.value);
    const bytes frame = encode(c, std::string("sparsify=topr(ratio=0.01) index=golomb value=") + p.value, {dense(g)});
    CHECK(8 * static_cast<double>(inspect(frame).value_size) / 10000 <= p.bits);
    CHECK(squared_relative_error(g, decode(c, frame, g.size())) <= p.squared_error);
  }
}

TEST_CASE("Fig. 8's Laplace tensor: every form of a curve fit meets the paper's error, at bits that are stated") {
  context c;
  const struct {
    const char* value;
    double error, bits;
  } forms[] = {{"fit_poly", 2e-4, 2.4},
               {"fit_poly(sign=order)", 1e-4, 2.7},
               {"fit_poly(knots=chord)", 4e-5, 4.5},
               {"fit_poly(degree=1,knots=chord,segments=8)", 5e-5, 3.3},
               {"fit_poly(degree=0,knots=chord,segments=32)", 1e-3, 7.1},
               {"fit_poly(degree=2,knots=chord,sign=order,segments=8)", 5e-5, 3.4},
               {"fit_dexp", 1e-3, 0.79},
               {"fit_dexp(sign=order)", 1e-3, 1.35},
               {"rank_fit(bits=2)", 5e-3, 3.35},
               {"rank_fit", 3e-4, 5.53}};
  for (const auto& form : forms)
    for (const uint64_t seed : {1, 2, 3}) {
      CAPTURE(std::string(form.value));
      CAPTURE(seed);
      const floats g = laplace(36864, seed);
      const bytes frame =
          encode(c, std::string("sparsify=topr(ratio=0.01) index=golomb value=") + form.value, {dense(g)});
      CHECK(per_nonzero(inspect(frame).value_size) <= form.bits);
      CHECK(squared_relative_error(g, decode(c, frame, g.size())) <= form.error);
    }
}

TEST_CASE("the top 1 % of 2359296 Laplace values: two exponentials, and levels on a curve") {
  context c;
  const floats g = laplace(2359296, 5);
  const auto error = [&](const char* value) {
    const std::string text = std::string("sparsify=topr(ratio=0.01) index=golomb value=") + value;
    return squared_relative_error(g, decode(c, encode(c, text, {dense(g)}), g.size()));
  };
  CHECK(error("fit_dexp") <= 6.4e-4);
  CHECK(error("fit_dexp(sign=order)") <= 6.4e-4);
  CHECK(error("fit_poly") <= 2e-4);
  CHECK(error("rank_fit(bits=2)") <= error("qsgd"));
  CHECK(error("rank_fit(bits=3)") <= 1e-3);
  CHECK(error("rank_fit") <= 2.6e-4);
}

#if defined(DR_WITH_INPUTS)
TEST_CASE("a captured layer of that size and the whole ResNet-20 gradient stay under every point of Fig. 15") {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(DR_DATASETS) / "gradients")) {
    if (!entry.path().filename().string().starts_with("resnet20")) continue;
    CAPTURE(entry.path().string());
    floats flat;
    bool layer = false;
    for (const auto& t : dr::compare::read_input(entry.path().string())) {
      const auto* values = reinterpret_cast<const float*>(t.data.data());
      flat.insert(flat.end(), values, values + t.elements);
      if (t.elements != 36864) continue;
      check_fit_behind_bloom({values, values + t.elements});
      if (layer) continue;
      layer = true;
      check_fig8({values, values + t.elements}, 2e-3);
    }
    CHECK(layer);
    REQUIRE(flat.size() == 269722);
    context c;
    const bytes frame = encode(c, "sparsify=topr(ratio=0.01) index=golomb value=raw", {dense(flat)});
    CHECK(volume(frame.size(), 269722) <= 0.0127);  // Fig. 15's smallest: 0.01271, lossy
    ++files;
  }
  CHECK(files == 3);
}
#endif
