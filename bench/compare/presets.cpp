#include "presets.hpp"

#include <fmt/core.h>

#include <cstring>
#include <string_view>

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
    {"paper", "SKCompress", "index=gap_huffman value=sketch(buckets=2)+huffman",
     "Fig. 8: streams of 0.34 % of dense in the paper and here, 9.6 + 1.3 bits there, 8.3 + 2.6 here, for our\n"
     "Huffman table is long. No MinMaxSketch. NCF's 0.2175 is not reproduced: its number of buckets is not known."},
    {"paper", "SketchML", "sparsify=none index=all value=sketch(buckets=64)+huffman",
     "Fig. 16: 0.1004 of dense in the paper, about 0.19 here, for there is no MinMaxSketch: its two rows of\n"
     "d / 5 bytes, the defaults of the published code, are 0.1 and lossy; 64 buckets by themselves are 6 bits."},
    {"paper", "3LC", "sparsify=none index=all value=three_lc",
     "Fig. 16: 0.0016 of dense in the paper, 0.0036 here, zero runs included. A byte of 3LC has 14 groups of five\n"
     "zeros at most, which is 1 / 280 = 0.00357: no tensor gets to 0.0016 by the format that 3LC's paper has."},
    {"fastpfor", "VByte", "index=delta_varint value=raw"},
    {"fastpfor", "BP128", "index=delta_bitpack value=raw"},
    {"fastpfor", "PFor", "index=delta_pfor value=raw"},
    {"grace", "topk", "sparsify=topr(ratio=0.01) index=raw value=raw"},
    {"grace", "randomk", "sparsify=random(ratio=0.01) index=raw value=raw"},
    {"grace", "threshold", "sparsify=threshold(value=0.01) index=raw value=raw"},
    {"grace", "natural", "sparsify=none index=all value=natural"},
    {"grace", "8bit", "sparsify=none index=all value=dynamic_tree"},
    {"grace", "inceptionn", "sparsify=none index=all value=inceptionn",
     "A bound of 2^-10 of the absolute error, which is what GRACE makes of error_bound=2e-10."},
    {"grace", "adaq", "sparsify=adaq(ratio=0.01) feedback=residual index=golomb value=sign(scale=means)"},
    {"grace", "graddrop",
     "sparsify=dgc(ratio=0.01,sample=0.001,corrections=0) feedback=residual index=golomb value=raw"},
    {"grace", "tbq",
     "sparsify=threshold(value=0.01) feedback=residual index=golomb value=sign(scale=level,level=0.01)"},
    {"grace", "signsgd", "sparsify=none index=all value=sign merge=vote"},
    {"grace", "signum", "sparsify=none feedback=momentum(beta=0.9) index=all value=sign merge=vote"},
    {"grace", "efsignsgd", "sparsify=none feedback=efsignsgd(lr=0.1) index=all value=sign(scale=mean)"},
    {"grace", "onebit", "sparsify=none feedback=residual index=all value=sign(scale=means)"},
    {"grace", "terngrad", "sparsify=none index=all value=ternary"},
    {"grace", "dgc", "sparsify=dgc(ratio=0.001) feedback=dgc(momentum=0.9) index=golomb value=raw"},
    {"transforms", "powersgd", "transform=lowrank(rank=4) feedback=residual",
     "Two factors that ranks all-reduce, and no frame: for exchanges, deepreduce.torch and deepreduce.transform.\n"
     "There is nothing that compare could encode."},
};

// The note's lines behind so many spaces.
std::string indented(const preset& p, size_t spaces) {
  std::string text = p.note;
  if (text.empty()) return text;
  const std::string margin(spaces, ' ');
  for (size_t at = 0; (at = text.find('\n', at)) != text.npos; ++at) text.insert(at + 1, margin);
  return margin + text + '\n';
}

}  // namespace

std::span<const preset> presets() { return list; }

std::vector<std::string> preset_plans(const std::string& name, const std::string& sparsify) {
  const auto is_whole = [](std::string_view plan) {
    return plan.starts_with("sparsify=") || plan.starts_with("transform=");
  };
  std::vector<std::string> plans;
  for (const preset& p : list)
    if (name == p.set || name == p.name) plans.push_back(is_whole(p.plan) ? p.plan : sparsify + " " + p.plan);
  return plans;
}

std::string preset_notes(const std::string& name) {
  std::string text;
  for (const preset& p : list)
    if (*p.note != 0 && (name == p.set || name == p.name)) text += fmt::format("{}:\n{}", p.name, indented(p, 2));
  return text;
}

std::string preset_table(const std::string& name) {
  std::string text;
  const char* set = "";
  for (const preset& p : list) {
    if (!name.empty() && name != p.set && name != p.name) continue;
    if (std::strcmp(set, p.set) != 0) text += fmt::format("{}{}\n", text.empty() ? "" : "\n", p.set);
    set = p.set;
    text += fmt::format("  {:<16} {}\n", p.name, p.plan) + indented(p, 19);
  }
  return text;
}

}  // namespace dr::compare
