// Which tensors are compared, and with which plans if none are given.
#pragma once

#include <string>
#include <vector>

#include "console.hpp"
#include "inputs.hpp"

namespace dr::compare {

struct subject_options {
  std::vector<std::string> inputs;  // none: the bundled accumulators and gradients
  std::vector<std::string> globs;   // tensors by name; none: all
  bool per_tensor = false;          // one subject a tensor; else the tensors of an input joined
  bool flat = false;                // joined even though there are globs
  std::optional<dtype> cast;        // to this type, integers too
};

// Reads the inputs; none comes back empty. Throws input_error, also if a glob matches nothing.
std::vector<tensor> read_subjects(const subject_options& options, console& console);

// Each subject by itself, one step of it.
std::vector<std::vector<tensor>> apart(std::vector<tensor> subjects);

// Inputs as steps of one training: of each tensor its steps, in the order of the inputs. Throws input_error if the inputs
// differ in names, types or sizes.
std::vector<std::vector<tensor>> in_steps(std::vector<tensor> subjects);

// "sparsify=…" of a plan that names none: topr, or for what is sparse already none.
std::string default_sparsifier(const tensor& g);

// Plan texts that show the choices there are, for a tensor whose gradient is dense or already sparse.
std::vector<std::string> default_plans(const tensor& g);

}  // namespace dr::compare
