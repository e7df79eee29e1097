#include "plan/named_plans.hpp"

#include <algorithm>
#include <string>

#include "plan/suggestions.hpp"

namespace dr {
namespace {

constexpr dr_preset of(const char* set, const char* name, const char* plan, const char* note = "") {
  return {sizeof(dr_preset), name, set, plan, note};
}

// The paper's methods with its settings: a false-positive rate of 0.001, pieces of degree 5, 127 levels, buckets of
// 512.
constexpr dr_preset list[] = {
    of("start", "recommended", "transform=lowrank(rank=4) feedback=residual",
       "For DDP and other all-reduces, where a step waits for the link. A GPT of 3.3 M parameters (AdamW, 2 ranks) "
       "reached a\n"
       "held-out loss of 2.3 in 9, 10 and 13 s on an unshaped link, at 1 Gbit/s and at 100 Mbit/s; dense f32 in\n"
       "8, 16 and 109 s, Top-1 % in 22, 22 and 26 (docs/PYTORCH.md). Where frames are needed, or no loss may be "
       "risked:\n"
       "index=all value=uniform_quant(bits=8) feedback=residual. Measure yours: DDPHook(\"auto\"), deepreduce "
       "predict."),
    of("start", "patch", "sparsify=changed index=auto value=ulp",
       "Of weights, against those that the receiver has: exact (docs/PATCH.md)."),
    of("start", "patch_chain", "sparsify=changed index=history value=history",
       "Of weights, step by step: fewer bytes, for sender and receivers keep a history of earlier patches."),
    of("paper", "Top-r", "index=raw value=raw"),
    of("paper", "BF-naive", "index=bloom(policy=naive,fpr=0.001) value=raw"),
    of("paper", "BF-P0", "index=bloom(policy=p0,fpr=0.001) value=raw"),
    of("paper", "BF-P1", "index=bloom(policy=p1,fpr=0.001) value=raw"),
    of("paper", "BF-P2", "index=bloom(policy=p2,fpr=0.001) value=raw"),
    of("paper", "RLE", "index=rle value=raw"),
    of("paper", "Huffman", "index=raw+huffman value=raw"),
    of("paper", "Fit-Poly", "index=raw value=fit_poly"),
    of("paper", "Fit-DExp", "index=raw value=fit_dexp"),
    of("paper", "Deflate", "index=raw value=raw+deflate"),
    of("paper", "QSGD", "index=raw value=qsgd"),
    of("paper", "BF-P0+Fit-Poly", "index=bloom(policy=p0,fpr=0.001) value=fit_poly"),
    of("paper", "BF-P1+Fit-Poly", "index=bloom(policy=p1,fpr=0.001) value=fit_poly"),
    of("paper", "BF-P2+Fit-Poly", "index=bloom(policy=p2,fpr=0.001) value=fit_poly"),
    of("paper", "BF-P2+Fit-DExp", "index=bloom(policy=p2,fpr=0.001) value=fit_dexp"),
    of("paper", "BF-P0+QSGD", "index=bloom(policy=p0,fpr=0.001) value=qsgd"),
    of("paper", "BF-P2+QSGD", "index=bloom(policy=p2,fpr=0.001) value=qsgd"),
    of("paper", "SKCompress", "index=gap_huffman value=sketch(buckets=2)+huffman",
       "Fig. 8: streams of 0.34 % of dense in the paper and here, 9.6 + 1.3 bits there, 8.3 + 2.6 here, for our\n"
       "Huffman table is long. No MinMaxSketch. NCF's 0.2175 is not reproduced: its number of buckets is not known."),
    of("paper", "SketchML", "sparsify=none index=all value=sketch(buckets=64)+huffman",
       "Fig. 16: 0.1004 of dense in the paper, about 0.19 here, for there is no MinMaxSketch: its two rows of\n"
       "d / 5 bytes, the defaults of the published code, are 0.1 and lossy; 64 buckets by themselves are 6 bits."),
    of("paper", "3LC", "sparsify=none feedback=residual index=all value=three_lc",
       "Fig. 16: 0.0016 of dense in the paper, 0.0036 here, zero runs included. A byte of 3LC has 14 groups of five\n"
       "zeros at most, which is 1 / 280 = 0.00357: no tensor gets to 0.0016 by the format that 3LC's paper has."),
    of("fastpfor", "VByte", "index=delta_varint value=raw"),
    of("fastpfor", "BP128", "index=delta_bitpack value=raw"),
    of("fastpfor", "PFor", "index=delta_pfor value=raw"),
    of("grace", "topk", "sparsify=topr(ratio=0.01) index=raw value=raw"),
    of("grace", "randomk", "sparsify=random(ratio=0.01) index=raw value=raw"),
    of("grace", "threshold", "sparsify=threshold(value=0.01) index=raw value=raw"),
    of("grace", "none", "sparsify=none index=all value=raw"),
    of("grace", "fp16", "sparsify=none index=all value=half"),
    of("grace", "bf16", "sparsify=none index=all value=half(type=bf16)"),
    of("grace", "qsgd", "sparsify=none index=all value=qsgd", "Of all elements; QSGD, in capitals, is of Top-1 %."),
    of("grace", "natural", "sparsify=none index=all value=natural"),
    of("grace", "natural_deterministic", "sparsify=none index=all value=natural(rounding=nearest)"),
    of("grace", "8bit", "sparsify=none index=all value=dynamic_tree"),
    of("grace", "inceptionn", "sparsify=none index=all value=inceptionn(classes=exponent)",
       "The paper's classes, from 2^-10 on, which is what GRACE makes of error_bound=2e-10. classes=bound keeps the "
       "bound."),
    of("grace", "adaq", "sparsify=adaq(ratio=0.01) feedback=residual index=golomb value=sign(scale=means)"),
    of("grace", "graddrop",
       "sparsify=dgc(ratio=0.01,sample=0.001,corrections=0) feedback=residual index=golomb value=raw"),
    of("grace", "tbq",
       "sparsify=threshold(value=0.01) feedback=residual index=golomb value=sign(scale=level,level=0.01)"),
    of("grace", "signsgd", "sparsify=none index=all value=sign merge=vote"),
    of("grace", "signum", "sparsify=none feedback=momentum(beta=0.9) index=all value=sign merge=vote"),
    of("grace", "efsignsgd", "sparsify=none feedback=efsignsgd(lr=0.1) index=all value=sign(scale=mean)"),
    of("grace", "onebit", "sparsify=none feedback=residual index=all value=sign(scale=means)"),
    of("grace", "terngrad", "sparsify=none index=all value=ternary"),
    of("grace", "dgc", "sparsify=dgc(ratio=0.001) feedback=dgc(momentum=0.9) index=golomb value=raw"),
    of("outer", "sparseloco",
       "sparsify=chunks(count=64) feedback=residual(beta=0.95) index=gap_huffman value=lloyd(levels=2)",
       "SparseLoCo (arXiv 2508.15706): of a pseudo-gradient the 64 largest of each 4,096 elements, in 2 bits, and a\n"
       "residual that decays. Here chunks are contiguous, not 64 x 64 of a matrix; two magnitudes are fitted to the\n"
       "values; and indices are entropy-coded: 9.3 bits an element or fewer, 14 there."),
    of("outer", "demo",
       "sparsify=chunks(count=32) feedback=residual(beta=0.999) index=chunks value=half(type=bf16) transform=dct",
       "DeMo (Peng et al. 2024, arXiv 2411.19870): of a momentum the 32 largest cosine coefficients of each 64 x 64\n"
       "chunk of a matrix. Here the momentum is a residual of coefficients, the same in exact arithmetic; edges are\n"
       "cut by powers of two, not divisors of a side; values are bf16; and the mean is not replaced by its signs,\n"
       "which an optimizer may do."),
    of("outer", "distro", "sparsify=chunks(count=4) feedback=residual(beta=0.999) index=chunks value=sign(scale=mean)",
       "DisTrO (github.com/PsycheFoundation/nousnet): the signs of 4 of each 4,096 elements, which there are DCT\n"
       "coefficients of 64 x 64 chunks, and here the elements themselves. 12 bits an element, 17 there."),
    of("outer", "pulseloco", "sparsify=visible feedback=residual index=golomb(adaptive=1) value=raw",
       "PULSELoCo (arXiv 2602.03839): of a pseudo-gradient what would change the weights in bf16, in f32; the rest "
       "waits.\n"
       "It takes the weights beside: dr_tensor.base, encode(weights=); deepreduce.outer.Outer has them."),
    of("transforms", "powersgd", "transform=lowrank(rank=4) feedback=residual",
       "Two factors that ranks all-reduce, and no frame: for exchanges, deepreduce.torch and deepreduce.transform."),
};

constexpr const char* any_sparsifier = "sparsify=topr(ratio=0.01)";  // if neither name nor stages have one

constexpr size_t name_max = 32;

// A slip in a preset's name or a codec's, or a stage without its codec.
dr_status unknown(std::string_view name, dr_error& error) {
  const std::string word(name);
  if (std::ranges::find(stage_roles, name) != std::end(stage_roles))
    return fail(error, DR_E_ARGUMENT, "plan: '%s' must be followed by '=' and a name, without spaces", word.c_str());
  const auto apart = [&](const dr_preset& p) { return letters_apart(name, p.name); };
  const dr_preset& near = *std::ranges::min_element(list, {}, apart);
  size_t of_codec = 0;
  const std::string stage = stage_with(name, &of_codec);
  if (!stage.empty() && (of_codec < apart(near) || of_codec == 0))
    return fail(error, DR_E_ARGUMENT, "plan: '%s' is neither a stage (role=codec) nor a preset; is it '%s'?",
                word.c_str(), stage.c_str());
  if (is_near(name, apart(near)))
    return fail(error, DR_E_ARGUMENT, "plan: '%s' is neither a stage (role=codec) nor a preset; is it '%s'?",
                word.c_str(), near.name);
  return fail(error, DR_E_ARGUMENT,
              "plan: '%s' is neither a stage (role=codec) nor one of the %zu presets (topk, signsgd, BF-P0, …)",
              word.c_str(), std::size(list));
}

// Whether a word may be a preset's name: it has no character that only stages have.
bool is_preset_word(std::string_view word) {
  return !word.empty() && word.size() <= name_max && std::ranges::all_of(word, [](char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return letter || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '+';
  });
}

}  // namespace

std::span<const dr_preset> preset_list() { return list; }

void expand_naive(std::vector<plan_stage>& stages) {
  bool naive = false;
  for (plan_stage& stage : stages)
    if (stage.role == "index" && stage.calls[0].name == "bloom")
      for (plan_argument& a : stage.calls[0].arguments)
        if (a.key == "policy" && a.value == "naive") {
          a.value = "leftmost";
          naive = true;
        }
  if (!naive) return;
  std::erase_if(stages, [](const plan_stage& s) { return s.role == "regather"; });
  stages.push_back({"regather", {{"off", {}}}});
}

dr_status read_plan(std::string_view text, std::vector<plan_stage>& stages, dr_error& error) {
  constexpr std::string_view spaces = " \t\n\r";
  const size_t begin = std::min(text.find_first_not_of(spaces), text.size());
  const size_t end = std::min(text.find_first_of(spaces, begin), text.size());
  const std::string_view name = text.substr(begin, end - begin);
  if (!is_preset_word(name)) return parse_plan(text, stages, error);

  const auto preset = std::ranges::find(list, name, [](const dr_preset& p) { return std::string_view(p.name); });
  if (preset == std::end(list)) return unknown(name, error);
  // Blanks in place of the name preserve the columns that errors report.
  std::string given(text);
  std::fill_n(given.begin() + static_cast<ptrdiff_t>(begin), name.size(), ' ');
  if (const dr_status s = parse_plan(given, stages, error)) return s;
  std::vector<plan_stage> own;
  if (const dr_status s = parse_plan(preset->plan, own, error)) return s;
  const auto has = [&](std::string_view role) {
    return std::ranges::find(stages, role, &plan_stage::role) != stages.end();
  };
  for (plan_stage& stage : own)
    if (!has(stage.role)) stages.push_back(std::move(stage));
  if (has("sparsify") || has("transform")) return DR_OK;
  const std::string whole = print_plan(stages) + ' ' + any_sparsifier;
  return parse_plan(whole, stages = {}, error);
}

}  // namespace dr
