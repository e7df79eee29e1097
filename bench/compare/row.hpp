// One line of a report: a plan against a tensor. The names below are the names in JSON and CSV, and are stable.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

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
  std::string fallback;  // what the frame fell back to: none, raw_index or dense; "" for memcpy
  uint64_t bytes = 0;
  std::optional<uint64_t> index_bytes, value_bytes, order_bytes, header_bytes;  // header: all that is no section
  double relative_volume = undefined;  // bytes / (4 · d): of dense f32, also for tensors of a smaller type
  double index_bits_per_nonzero = undefined, value_bits_per_nonzero = undefined;  // divided by r
  double index_bound_bits_per_nonzero = undefined;
  double sparsify_ns = 0, encode_ns = 0, decode_ns = 0;  // medians; encode without sparsify
  double encode_ns_spread = undefined, decode_ns_spread = undefined;
  double index_recall = undefined, relative_l2_error = undefined, max_relative_error = undefined;
  double cosine_similarity = undefined, contraction = undefined;
  double total_error = undefined, gradient_energy = undefined, kept_energy = undefined;
  std::optional<uint64_t> missed, false_positives;

  bool is_memcpy() const { return plan == "memcpy"; }
};

// The columns in order; undefined is null.
nlohmann::ordered_json to_json(const row& r);

// Below this speed of each rank's link, in bit/s, an all-gather of n = ranks > 1 frames takes less time than a ring
// all-reduce of dense f32, all one after the other and nothing else in the way:
//   sparsify + encode + n decode + 8 (n - 1) bytes / speed  <  64 d (n - 1) / n / speed
// 0: at no speed. Modelled, not measured; adding up is free in both, and so is latency.
double break_even_speed(const row& r, uint32_t ranks);

}  // namespace dr::compare
