#include "presets.hpp"

#include <fmt/core.h>

#include <cstring>

namespace dr::compare {
namespace {

// In the paper's settings: a false-positive rate of 0.001, pieces of degree 5, 127 levels and buckets of 512.
constexpr preset list[] = {
    {"paper", "Top-r", "index=raw value=raw"},
    {"paper", "BF-naive", "index=bloom(policy=naive,fpr=0.001) value=raw"},
    {"paper", "BF-P0", "index=bloom(policy=p0,fpr=0.001) value=raw"},
    {"paper", "BF-P1", "index=bloom(policy=p1,fpr=0.001) value=raw"},
    {"paper", "BF-P2", "index=bloom(policy=p2,fpr=0.001) value=raw"},
    {"paper", "RLE", "index=rle value=raw"},
    {"paper", "Huffman", "index=raw+huffman value=raw"},
    {"paper", "Fit-Poly", "index=raw value=fit_poly"},
    {"paper", "Fit-DExp", "index=raw value=fit_dexp"},
    {"paper", "Deflate", "index=raw value=raw+deflate"},
    {"paper", "QSGD", "index=raw value=qsgd"},
    {"paper", "BF-P0+Fit-Poly", "index=bloom(policy=p0,fpr=0.001) value=fit_poly"},
    {"paper", "BF-P1+Fit-Poly", "index=bloom(policy=p1,fpr=0.001) value=fit_poly"},
    {"paper", "BF-P2+Fit-Poly", "index=bloom(policy=p2,fpr=0.001) value=fit_poly"},
    {"paper", "BF-P2+Fit-DExp", "index=bloom(policy=p2,fpr=0.001) value=fit_dexp"},
    {"paper", "BF-P0+QSGD", "index=bloom(policy=p0,fpr=0.001) value=qsgd"},
    {"paper", "BF-P2+QSGD", "index=bloom(policy=p2,fpr=0.001) value=qsgd"},
    {"paper", "SKCompress", "index=delta_varint+huffman value=sketch+huffman"},
    {"paper", "SketchML", "index=raw value=sketch(buckets=64)"},
    {"paper", "3LC", "index=raw value=three_lc"},
    {"fastpfor", "VByte", "index=delta_varint value=raw"},
    {"fastpfor", "BP128", "index=delta_bitpack value=raw"},
    {"fastpfor", "PFor", "index=delta_pfor value=raw"},
    {"grace", "topk", "sparsify=topr(ratio=0.01) index=raw value=raw"},
    {"grace", "randomk", "sparsify=random(ratio=0.01) index=raw value=raw"},
    {"grace", "threshold", "sparsify=threshold(value=0.01) index=raw value=raw"},
    {"grace", "dgc", "sparsify=dgc(ratio=0.01) index=raw value=raw"},
};

}  // namespace

std::span<const preset> presets() { return list; }

std::vector<std::string> preset_plans(const std::string& name, const std::string& sparsify) {
  std::vector<std::string> plans;
  for (const preset& p : list)
    if (name == p.set || name == p.name)
      plans.push_back(std::strncmp(p.plan, "sparsify=", 9) == 0 ? p.plan : sparsify + " " + p.plan);
  return plans;
}

std::string preset_table() {
  std::string text;
  const char* set = "";
  for (const preset& p : list) {
    if (std::strcmp(set, p.set) != 0) text += fmt::format("{}{}\n", text.empty() ? "" : "\n", p.set);
    set = p.set;
    text += fmt::format("  {:<16} {}\n", p.name, p.plan);
  }
  return text;
}

}  // namespace dr::compare
