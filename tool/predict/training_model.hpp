// The model that is trained: its tensors, the ready times of their gradients, and the computing of a step
// (docs/model.schema.json). Times in ns.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace dr::predict {

struct tensor_spec {
  std::string name;
  double elements = 0;
  double ready_ns = 0;  // since the start of backward
  double rows = 0;      // of its matrix in PowerSGD; 0: unknown
  double energy = 0;    // ‖g‖²; 0: unknown
};

struct training {
  std::string name;
  double batch = 0;  // 0: unknown
  double forward_ns = 0, backward_ns = 0, rest_ns = 0;
  std::optional<double>
      skew_ns;  // delay of the slowest of `skew_ranks` ranks relative to rank 0, whose times these are
  double skew_ranks = 0;
  bool times_known = false, ready_known = false;
  std::vector<tensor_spec> tensors;  // in the order of the model's parameters

  double elements() const;
  double compute_ns() const { return forward_ns + backward_ns + rest_ns; }
  // Scales computing by `factor`.
  training scaled(double factor) const;
};

// Throws std::runtime_error that names the file, the place in it and the value.
training read_training(const std::string& path);
training parse_training(const nlohmann::json& text, const std::string& path);

// "1000,25600,3x2048x512": elements, or shapes, of tensors t0, t1, … Throws std::invalid_argument.
training sized_training(const std::string& text);

}  // namespace dr::predict
