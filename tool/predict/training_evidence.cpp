#include "training_evidence.hpp"

#include <cstdlib>
#include <string_view>

namespace dr::predict {
namespace {

// of: trained models; good: those as good as by dense.
struct evidence {
  const char* words;
  int good, of;
};

constexpr evidence exact{"", 1, 1};
constexpr evidence no_training{"no training of such a plan is recorded: compare your loss with that of dense", 0, 0};
// "vs dense" of bench/results/train.md, 2 ranks: six models, 150 to 1,000 steps.
constexpr evidence dropped{
    "what is not sent is lost without feedback=residual: Top-1 % without a residual scored worse than dense on all 4 "
    "models",
    0, 4};
constexpr evidence top_1{"Top-1 % with a residual scored worse than dense on 5 of 6 models, in 150 to 1,000 steps", 1,
                         6};
constexpr evidence top_10{"Top-10 % with a residual was as good as dense on 3 of 6 models, in 150 to 1,000 steps", 3,
                          6};
// The table of docs/PYTORCH.md: a GPT of 3.3 M parameters, 2 ranks, 300 steps.
constexpr evidence factors{"rank 4 with a residual was 0.035 of loss behind dense, in 300 steps of one GPT", 0, 1};
constexpr evidence levels{"8 and 4 bits with a residual were within 0.01 of dense's loss, in 300 steps of one GPT", 1,
                          1};

double number_of(const dr_stage* stage, const char* parameter) {
  const dr_stage_param* const p = stage ? find_param(*stage, parameter) : nullptr;
  return p ? std::strtod(p->text, nullptr) : 0;
}

evidence evidence_of(const plan& method) {
  const std::vector<dr_stage> stages = method.stages();
  const auto name_of = [&](const char* role) {
    const dr_stage* const stage = find_stage(stages, role);
    return std::string_view(stage ? stage->name : "none");
  };
  const bool residual = name_of("feedback") == "residual";
  if (name_of("transform") == "lowrank") {
    const double rank = number_of(find_stage(stages, "transform"), "rank");
    return residual && rank >= 4 ? factors : no_training;
  }
  if (name_of("transform") != "none") return no_training;
  const std::string_view sparsify = name_of("sparsify"), value = name_of("value");
  if (sparsify == "none") {
    if (value == "raw") return exact;
    return residual && value == "uniform_quant" && number_of(find_stage(stages, "value"), "bits") >= 4 ? levels
                                                                                                       : no_training;
  }
  if (name_of("feedback") == "none") return dropped;
  const double ratio = number_of(find_stage(stages, "sparsify"), "ratio");
  if (!residual || sparsify != "topr" || ratio <= 0) return no_training;
  // (Shares below 1 % send less, so what 1 % loses is the least that they lose.)
  return ratio <= 0.02 ? top_1 : ratio >= 0.05 && ratio <= 0.2 ? top_10 : no_training;
}

}  // namespace

std::string training_evidence(const plan& method) { return evidence_of(method).words; }

bool trained_as_dense(const plan& method) {
  const evidence found = evidence_of(method);
  return found.of > 0 && 2 * found.good >= found.of;
}

}  // namespace dr::predict
