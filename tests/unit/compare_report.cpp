// Histograms of selected values, and a page that treats every text as data.
#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tool/compare/histograms.hpp"
#include "tool/compare/html_report.hpp"
#include "tool/show/output.hpp"

using nlohmann::ordered_json;
using namespace dr::compare;

namespace {

subject of_floats(const std::vector<float>& values) {
  tensor g;
  g.input = "g.npy";
  g.elements = values.size();
  g.data = tensor_bytes::copy_of(std::as_bytes(std::span(values)));
  return {g};
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("histograms count each gap and each magnitude in its power of two") {
  std::vector<float> values(16, 0.25f);
  values[0] = 1.0f, values[3] = -0.75f, values[4] = 6.0f, values[12] = 0.0f;
  const std::vector<std::vector<uint64_t>> kept = {{0, 3, 4, 12}};  // gaps 1, 3, 1, 8
  const ordered_json facts = subject_facts(of_floats(values), "sparsify=topr(count=4)", kept);
  CHECK(facts["gaps"]["log2"] == ordered_json({2, 1, 0, 1}));
  CHECK(facts["magnitudes"]["log2_first"] == -1);
  CHECK(facts["magnitudes"]["counts"] == ordered_json({1, 1, 0, 1}));  // 0.75, 1, none in [2, 4), 6
  CHECK(facts["magnitudes"]["zeros"] == 1);
  CHECK(facts["magnitudes"]["not_finite"] == 0);
  CHECK(facts["r"] == 4);
  CHECK(facts["d"] == 16);
  CHECK(facts["kept_energy"].get<double>() == doctest::Approx(1 + 0.5625 + 36));
  CHECK(facts["gradient_energy"].get<double>() == doctest::Approx(1 + 0.5625 + 36 + 12 * 0.0625));
}

TEST_CASE("histograms of a batch restart with each tensor") {
  subject batch = of_floats({1, 1, 1});
  batch.push_back(of_floats({2, 2}).front());
  const ordered_json facts = subject_facts(batch, "sparsify=none", {{2}, {0}});
  CHECK(facts["gaps"]["log2"] == ordered_json({1, 1}));  // 3 and 1
  CHECK(facts["magnitudes"]["counts"] == ordered_json({1, 1}));
  CHECK(facts["d"] == 5);
  CHECK(facts["r"] == 2);
  CHECK(facts["gradient_energy"] == 11);
}

TEST_CASE("histograms of values without a power of two") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<std::vector<uint64_t>> kept = {{0, 1, 2}};
  const ordered_json facts =
      subject_facts(of_floats({nan, tiny, -std::numeric_limits<float>::infinity()}), "sparsify=none", kept);
  CHECK(facts["magnitudes"]["not_finite"] == 2);
  CHECK(facts["magnitudes"]["log2_first"] == -149);
  CHECK(facts["magnitudes"]["counts"] == ordered_json({1}));
  CHECK(facts["gradient_energy"].is_null());
  CHECK(facts["kept_energy"].is_null());
  const ordered_json none = subject_facts(of_floats({1.0f}), "sparsify=none", {{}});
  CHECK(none["gaps"]["log2"] == ordered_json::array());
  CHECK(none["magnitudes"]["counts"] == ordered_json::array());
}

TEST_CASE("no text of a document can end the element that holds it") {
  ordered_json document{{"rows", {{{"input", "g.npy"}, {"samples", {{"encode_ns", {1, 2}}}}}}}};
  if (!has_html_report()) {
    CHECK_THROWS_WITH_AS(html_report(document), doctest::Contains("libjs-chart.js"), output_error);
    return;
  }
  const std::string plain = html_report(document);
  const std::string hostile = "</script><script>alert(1)</script><!--<script>\" \\ ' & \xe2\x80\xa8 \xff";
  document["rows"][0]["plan"] = hostile;
  const std::string page = html_report(document);
  for (const char* part : {"<script", "</script", "<!--"}) CHECK(count(page, part) == count(plain, part));
  const std::string open = "id=\"measured\">";
  const size_t begin = page.find(open) + open.size();
  const ordered_json back = ordered_json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  const std::string text = back["rows"][0]["plan"];
  CHECK(text == hostile.substr(0, hostile.size() - 1) + "\xef\xbf\xbd");  // what is not UTF-8 is replaced
  CHECK(!back["rows"][0].contains("samples"));
  CHECK(page.find("http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'") != std::string::npos);
}
