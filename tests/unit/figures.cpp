// The figures of the paper (Xu et al. 2021, Figs. 8 and 15) that the codecs must meet, to the byte.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "client.hpp"
#if defined(DR_WITH_INPUTS)
#include "bench/compare/inputs.hpp"
#endif

using namespace client;

namespace {

constexpr double fig8_d = 36864, fig8_r = 368;

double per_nonzero(uint64_t size) { return 8 * static_cast<double>(size) / fig8_r; }
double volume(uint64_t size, double d) { return static_cast<double>(size) / (4 * d); }

// Of the values on the support that was kept.
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

}  // namespace

TEST_CASE("Fig. 8's Laplace tensor costs what the definitions say") {
  for (const uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    const floats g = laplace(36864, seed);
    check_fig8(g, 2e-4);
    context c;
    const dr_tensor_info info = inspect(encode(c, "sparsify=topr(ratio=0.01) index=golomb value=raw", {dense(g)}));
    CHECK(per_nonzero(info.index_size) <= 8.20);
  }
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
      if (t.elements != 36864 || layer) continue;
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
