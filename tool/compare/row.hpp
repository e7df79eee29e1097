// One line of a report: a plan against a tensor, or against the tensors of a batch. columns.hpp names its numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "metrics.hpp"

namespace dr::compare {

// Bytes of a frame and of its streams, and bits for a nonzero (divided by r).
struct frame_sizes {
  uint64_t total = 0;
  std::optional<uint64_t> index, value, order, header;  // header: everything but the three streams
  double relative_volume = undefined;                   // total / (4 · d): of dense f32, whatever the dtype
  double index_bits = undefined, value_bits = undefined, index_bound_bits = undefined;
};

// Medians over the rounds, in ns. encode excludes sparsify; merge decodes and adds up one frame of every rank.
struct row_times {
  uint64_t rounds = 0;
  timing sparsify{0, undefined}, encode{0, undefined}, decode{0, undefined}, merge;
  double encode_cpu = undefined, decode_cpu = undefined;  // of all threads; encode_cpu includes sparsify
  double choose = undefined, index = undefined, regather = undefined, value = undefined,
         order = undefined;                                           // in encode
  std::vector<double> encode_samples, decode_samples, merge_samples;  // of every round
};

// The model of a link, see link_model.hpp.
struct row_model {
  double pays_below = undefined, pays_below_bf16 = undefined;  // bit/s; 0: at no speed
  double step_ns = undefined, gather_step_ns = undefined, dense_step_ns = undefined, bf16_step_ns = undefined;
  std::string verdict;  // "pays", "even", "slower", "unknown"; "" without a link
};

struct row {
  std::string input, tensor;
  std::string kind;   // of the layer, see layer_kind.hpp
  uint64_t step = 1;  // of training
  std::string dtype;
  uint64_t d = 0;
  std::optional<uint64_t> r, support;
  std::string plan;      // canonical text, or "memcpy": a plain copy of the dense tensor
  std::string preset;    // names of the presets that contain the plan, joined by ", "
  std::string choice;    // the codecs that `auto` chose, as stages
  std::string fallback;  // what the frame fell back to: none, raw_index or dense; "" for memcpy
  frame_sizes sizes;
  double total_error = undefined;
  std::optional<distortion> error;  // none for memcpy
  row_times times;
  row_model model;

  bool is_memcpy() const { return plan == "memcpy"; }
};

// A plan that failed on a subject.
struct failure {
  std::string input, tensor;
  uint64_t step = 1;
  std::string sparsify, plan, error;
};

}  // namespace dr::compare
