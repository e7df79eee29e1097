// Sweeps: one text of many plans.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tool/read/plan_sweep.hpp"

using namespace dr::compare;
using texts = std::vector<std::string>;

namespace {

std::string refusal_of_sweep(const std::string& text, size_t limit = 100) {
  try {
    (void)expand(text, limit);
  } catch (const sweep_error& e) {
    return e.what();
  }
  return "";
}

bool says(const std::string& message, const char* part) { return message.find(part) != message.npos; }

}  // namespace

TEST_CASE("a text without alternatives is itself") {
  CHECK(expand("sparsify=topr(ratio=0.01) index=raw+huffman value=raw", 1) ==
        texts{"sparsify=topr(ratio=0.01) index=raw+huffman value=raw"});
  CHECK(expand("", 1) == texts{""});
}

TEST_CASE("alternatives multiply, the last fastest, and nest in parentheses") {
  CHECK(expand("index=rice|bloom(fpr=1e-3|1e-2) value=half|raw", 100) ==
        texts{"index=rice value=half", "index=rice value=raw", "index=bloom(fpr=1e-3) value=half",
              "index=bloom(fpr=1e-3) value=raw", "index=bloom(fpr=1e-2) value=half",
              "index=bloom(fpr=1e-2) value=raw"});
  CHECK(expand("index=bloom(policy=p0|p2,fpr=1|2)", 100) ==
        texts{"index=bloom(policy=p0,fpr=1)", "index=bloom(policy=p0,fpr=2)", "index=bloom(policy=p2,fpr=1)",
              "index=bloom(policy=p2,fpr=2)"});
  CHECK(expand("value=raw+deflate|qsgd", 100) == texts{"value=raw+deflate", "value=qsgd"});
  CHECK(expand("value=raw+(deflate|zstd(level=1|3))", 100) ==
        texts{"value=raw+deflate", "value=raw+zstd(level=1)", "value=raw+zstd(level=3)"});
  CHECK(expand("index=(rice|golomb(adaptive=0|1))", 100) ==
        texts{"index=rice", "index=golomb(adaptive=0)", "index=golomb(adaptive=1)"});
}

TEST_CASE("ranges: every integer, decades in steps of 1, 2 and 5, equal ratios") {
  CHECK(expand("b=3..6", 100) == texts{"b=3", "b=4", "b=5", "b=6"});
  CHECK(expand("b=-1..1|8", 100) == texts{"b=-1", "b=0", "b=1", "b=8"});
  CHECK(expand("r=0.001..0.1", 100) == texts{"r=0.001", "r=0.002", "r=0.005", "r=0.01", "r=0.02", "r=0.05", "r=0.1"});
  CHECK(expand("r=0.003..0.07", 100) == texts{"r=0.003", "r=0.005", "r=0.01", "r=0.02", "r=0.05", "r=0.07"});
  CHECK(expand("f=1e-3..1e-2", 100) == texts{"f=0.001", "f=0.002", "f=0.005", "f=0.01"});
  CHECK(expand("r=0.5..0.5", 100) == texts{"r=0.5"});
  CHECK(expand("r=0.001..0.1/5", 100) == texts{"r=0.001", "r=0.00316", "r=0.01", "r=0.0316", "r=0.1"});
  CHECK(expand("n=1..100/3", 100) == texts{"n=1", "n=10", "n=100"});
  CHECK(expand("n=1..3/9", 100) == texts{"n=1", "n=2", "n=3"});
}

TEST_CASE("a sweep that is none is refused with its place") {
  CHECK(says(refusal_of_sweep("index=a||b"), "position 8: an alternative is empty"));
  CHECK(says(refusal_of_sweep("index=a|"), "an alternative is empty"));
  CHECK(says(refusal_of_sweep("index=bloom(fpr=1"), "position 11: '(' without ')'"));
  CHECK(says(refusal_of_sweep("a (value=raw|value=half)"), "position 8: '=' in a group of alternatives"));
  CHECK(says(refusal_of_sweep("index=a)"), "position 7: ')' without '('"));
  CHECK(says(refusal_of_sweep("index|value=raw"), "after '='"));
  CHECK(says(refusal_of_sweep("b=6..3"), "6 is above 3"));
  CHECK(says(refusal_of_sweep("r=0..0.5"), "ends above 0"));
  CHECK(says(refusal_of_sweep("r=1..2/1"), "at least 2"));
  CHECK(says(refusal_of_sweep("r=1..x"), "a range is"));
  CHECK(says(refusal_of_sweep("r=1..1e999"), "a range is"));
  CHECK(says(refusal_of_sweep(std::string(50, '(') + std::string(50, ')')), "more than 32 parentheses"));
}

TEST_CASE("more plans than the limit are refused before they are made") {
  CHECK(says(refusal_of_sweep("b=1..10 c=1..11"), "more than 100 plans"));
  CHECK(expand("b=1..10 c=1..10", 100).size() == 100);
  CHECK(says(refusal_of_sweep("b=1..1000000000"), "more than 100 values"));
  CHECK(says(refusal_of_sweep("b=1..1000000000/1000000000"), "more than 100 values"));
  CHECK(says(refusal_of_sweep("b=1..50|1..51"), "more than 100 plans"));
  std::string all = "a=1|2";
  for (int i = 0; i < 60; ++i) all += " a=1|2";  // 2^61
  CHECK(says(refusal_of_sweep(all), "more than 100 plans"));
}
