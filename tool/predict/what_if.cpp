#include "what_if.hpp"

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

namespace dr::predict {
namespace {

using nlohmann::ordered_json;

struct axis {
  std::string text;
  std::vector<double> x;
  std::function<step_model(double)> at;
  std::function<candidate(const candidate&, double)> change;
};

candidate with_codecs(const candidate& c, double time, double size) {
  candidate other = c;
  for (auto& w : other.works) w = std::make_shared<const plan_work>(w->scaled(time, size));
  return other;
}

axis axis_of(const std::string& kind, const step_model& m) {
  axis a;
  a.change = [](const candidate& c, double) { return c; };
  if (kind == "bandwidth") {
    a.text = "bandwidth, bit/s";
    for (const double gbit : {1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 25, 30, 40, 50, 75, 100}) a.x.push_back(1e9 * gbit);
    a.at = [&m](double x) { return m.with_rate(x); };
  } else if (kind == "compute") {
    a.text = "computing, times as fast, codecs, too";
    a.x = {1, 1.5, 2, 3, 4, 5, 6, 7, 8};
    a.at = [&m](double x) { return m.with_compute(1 / x); };
    a.change = [](const candidate& c, double x) { return with_codecs(c, 1 / x, 1); };
  } else if (kind == "ranks") {
    a.text = "ranks";
    for (double n = 2; n <= 1024; n *= 2) a.x.push_back(n);
    a.at = [&m](double x) { return m.with_ranks(static_cast<uint32_t>(x)); };
  } else {
    a.text = "codecs k times as fast, frames k times as large: k";
    a.x = {0.125, 0.25, 0.5, 1, 2, 4, 8};
    a.at = [&m](double) { return m; };
    a.change = [](const candidate& c, double x) { return with_codecs(c, 1 / x, x); };
  }
  return a;
}

}  // namespace

ordered_json what_if(const std::string& kind, const step_model& m, std::span<const candidate> candidates) {
  const axis a = axis_of(kind, m);
  ordered_json result{{"kind", kind}, {"axis", a.text}, {"x", a.x}, {"series", ordered_json::array()}};
  for (size_t i = 0; i < candidates.size(); ++i) {
    auto steps = ordered_json::array();
    for (const double x : a.x) try {
        steps.push_back(std::llround(a.at(x).step(a.change(candidates[i], x)).step_ns));
      } catch (const unsupported_model&) {
        steps.push_back(nullptr);
      }
    result["series"].push_back({{"number", i + 1}, {"candidate", candidates[i].name}, {"step_ns", std::move(steps)}});
  }
  return result;
}

}  // namespace dr::predict
