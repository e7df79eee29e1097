// One line of a report: a plan against a tensor, or against the tensors of a batch. The names below are the names in JSON
// and CSV, and are stable.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "metrics.hpp"

namespace dr::compare {

struct row {
  std::string input, tensor;
  std::string kind;   // of the layer, see layer_kind.hpp
  uint64_t step = 1;  // of those that feedback went through
  std::string dtype;
  uint64_t d = 0;
  std::optional<uint64_t> r, support;
  std::string plan;      // canonical text, or "memcpy": the dense tensor copied, as it is
  std::string preset;    // names of the presets that gave it, joined by ", "
  std::string choice;    // the codecs that `auto` took, as stages
  std::string fallback;  // what the frame fell back to: none, raw_index or dense; "" for memcpy
  uint64_t bytes = 0;
  std::optional<uint64_t> index_bytes, value_bytes, order_bytes, header_bytes;  // header: all that is no section
  double relative_volume = undefined;  // bytes / (4 · d): of dense f32, also for tensors of a smaller type
  double index_bits_per_nonzero = undefined, value_bits_per_nonzero = undefined;  // divided by r
  double index_bound_bits_per_nonzero = undefined;
  uint64_t rounds = 0;  // that were timed
  // Medians with their spreads, (q75 − q25) / median; encode without sparsify. merge: a frame of each rank.
  double sparsify_ns = 0, encode_ns = 0, decode_ns = 0, merge_ns = undefined;
  double sparsify_ns_spread = undefined, encode_ns_spread = undefined, decode_ns_spread = undefined;
  double merge_ns_spread = undefined;
  double encode_cpu_ns = undefined, decode_cpu_ns = undefined;  // of all threads; encode with sparsify
  double index_ns = undefined, value_ns = undefined, order_ns = undefined, regather_ns = undefined;  // in encode_ns
  double choose_ns = undefined;                                                                      // likewise
  double total_error = undefined, energy_recall = undefined;
  double index_recall = undefined, relative_l2_error = undefined, max_relative_error = undefined;
  double cosine_similarity = undefined, contraction = undefined;
  double gradient_energy = undefined, kept_energy = undefined;  // ‖g‖² and ‖s‖², by which totals weigh errors
  std::optional<uint64_t> missed, false_positives;
  double pays_below = undefined, pays_below_bf16 = undefined;  // bit/s; 0: at no speed
  double step_ns = undefined, gather_step_ns = undefined, dense_step_ns = undefined, bf16_step_ns = undefined;
  std::string verdict;  // "pays", "even", "slower"; "" without a link

  std::vector<double> encode_samples, decode_samples, merge_samples;  // ns, of each round

  bool is_memcpy() const { return plan == "memcpy"; }
};

// A plan that did not do what it should.
struct failure {
  std::string input, tensor;
  uint64_t step = 1;
  std::string sparsify, plan, error;
};

// The columns in order; undefined is null.
nlohmann::ordered_json to_json(const row& r);

// A row that has in each column a cell of its type.
nlohmann::ordered_json column_types();

// {"encode_ns": […], "decode_ns": […], "merge_ns": […]}, in the order of the rounds.
nlohmann::ordered_json samples_json(const row& r);

nlohmann::ordered_json to_json(const failure& f);

// For --help: each column with its meaning and unit.
extern const char* const column_help;

}  // namespace dr::compare
